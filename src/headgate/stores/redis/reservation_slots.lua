-- The register of slots that hold records of reservations, on a cluster; see reservation_slots.py.
--
-- KEYS
--   looks    a sorted set: numbers of slots, scored by the time of the next search for expired reservations
--   ends     a sorted set: numbers of slots, scored by the end of their registration; and `since`, scored by the time
--            at which the register was created
-- ARGV
--   now      microseconds, or empty: the server's own time
--   verb     register: slot, time until its first search, time to live   replies `since`
--            due: time until the next search of each slot                replies `since`, and slots to search now
--
-- Times are in microseconds. The keys live as long as the longest registration.
local AT_ONCE = 100
local looks, ends = KEYS[1], KEYS[2]

-- Adds a slot, or moves it, if it is later in the order than this.
local function keep(key, slot, score, later)
  local known = tonumber(call('ZSCORE', key, slot) or nil)
  if not known or (score > known) == later then call('ZADD', key, whole(score), slot) end
end

if ARGV[2] == 'register' then
  local slot, first, life = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
  if not call('ZSCORE', ends, 'since') then call('ZADD', ends, whole(now), 'since') end
  keep(looks, slot, now + first, false)
  keep(ends, slot, now + life, true)
  local ttl = math.ceil(life / 1000) + slack
  for i = 1, 2 do
    if call('PTTL', KEYS[i]) < ttl then call('PEXPIRE', KEYS[i], whole(ttl)) end
  end
  return { call('ZSCORE', ends, 'since') }
end

local reply = { call('ZSCORE', ends, 'since') or '' }
local slots = call('ZRANGE', looks, '-inf', whole(now), 'BYSCORE', 'LIMIT', 0, AT_ONCE)
for i = 1, #slots do
  local slot = slots[i]
  if tonumber(call('ZSCORE', ends, slot) or 0) > now then
    call('ZADD', looks, whole(now + ARGV[3]), slot)
  else
    call('ZREM', looks, slot)
    call('ZREM', ends, slot)
  end
  reply[i + 1] = slot
end
return reply
