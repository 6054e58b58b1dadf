-- Pages that are read, and written if they have not changed since. Twin of ../memory/ledger.py.
--
-- KEYS: one per page
-- ARGV
--   now      microseconds, or empty: the server's own time
--   verb     read                                        replies now, and per page its text, or nothing
--            swap: per page the old text (empty: none),
--                  the new text, milliseconds to live     replies per page 1 if it was written, else 0
if ARGV[2] == 'read' then
  local reply = { whole(now) }
  for i = 1, #KEYS do reply[i + 1] = call('GET', KEYS[i]) end
  return reply
end

local reply = {}
for i = 1, #KEYS do
  local before, after, ttl = ARGV[3 * i], ARGV[3 * i + 1], ARGV[3 * i + 2]
  if (call('GET', KEYS[i]) or '') == before then
    call('SET', KEYS[i], after, 'PX', ttl)
    reply[i] = 1
  else
    reply[i] = 0
  end
end
return reply
