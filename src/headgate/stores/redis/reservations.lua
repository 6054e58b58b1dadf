-- Records of reservations. Twin of ../memory/reservations.py.
--
-- KEYS
--   open     a sorted set: ids of reservations to be settled, scored by expiry
--   late     a sorted set: ids of expired reservations, scored by the time of deletion
--   records  a hash: the records by id
-- ARGV
--   now      microseconds, or empty: the server's own time
--   verb     hold: id, record, time to live    replies nothing
--            renew: id, record, time to live   replies 1 if it was open and is replaced, else 0
--            claim: id                         replies record and status (0 open, 1 overdue, 2 late), or nothing
--            expire                            replies the time until the next expires (-1: none), and records
--
-- Times are in microseconds. The keys live as long as the longest-lived reservation.
local LATE = 3600000000
local AT_ONCE = 100
local open, late, records = KEYS[1], KEYS[2], KEYS[3]

local forgotten = call('ZRANGE', late, '-inf', whole(now), 'BYSCORE', 'LIMIT', 0, AT_ONCE)
for i = 1, #forgotten do
  call('ZREM', late, forgotten[i])
  call('HDEL', records, forgotten[i])
end

-- Makes all three keys live at least this long.
local function prolong(us)
  local ttl = math.ceil(us / 1000) + slack
  for i = 1, 3 do
    if call('PTTL', KEYS[i]) < ttl then call('PEXPIRE', KEYS[i], whole(ttl)) end
  end
end

local verbs = {}

function verbs.hold(id, record, ttl)
  call('ZADD', open, whole(now + ttl), id)
  call('HSET', records, id, record)
  prolong(ttl + LATE)
  return {}
end

function verbs.renew(id, record, ttl)
  if not call('ZSCORE', open, id) then return { 0 } end
  verbs.hold(id, record, ttl)
  return { 1 }
end

function verbs.claim(id)
  local record = call('HGET', records, id)
  if not record then return {} end
  local due = call('ZSCORE', open, id)
  call('ZREM', open, id)
  call('ZREM', late, id)
  call('HDEL', records, id)
  return { record, not due and 2 or tonumber(due) > now and 0 or 1 }
end

function verbs.expire()
  local reply = { -1 }
  local ids = call('ZRANGE', open, '-inf', whole(now), 'BYSCORE', 'LIMIT', 0, AT_ONCE)
  for i = 1, #ids do
    call('ZREM', open, ids[i])
    call('ZADD', late, whole(now + LATE), ids[i])
    local record = call('HGET', records, ids[i])
    if record then reply[#reply + 1] = record end
  end
  if #ids > 0 then prolong(LATE) end
  local next = call('ZRANGE', open, 0, 0, 'WITHSCORES')
  if next[2] then reply[1] = math.max(0, tonumber(next[2]) - now) end
  return reply
end

return verbs[ARGV[2]](ARGV[3], ARGV[4], tonumber(ARGV[5]))
