-- Records of reservations. Twin of ReservationTable in ../memory/records.py.
--
-- KEYS
--   open     a sorted set: ids of reservations to be settled, scored by expiry
--   late     a sorted set: ids of expired reservations, scored by the time of deletion
--   records  a hash: the records by id
--   claims   a hash: by id, how a reservation is being settled: its status, the time of the claim, and the cost
-- ARGV
--   now      microseconds, or empty: the server's own time
--   verb     hold: id, record, time to live    replies nothing
--            renew: id, record, time to live   replies 1 if it was open and is replaced, else 0
--            claim: id, cost                   replies record and claim, or nothing
--            claim_expired                     replies the time until the next expires (-1: none); then ids, records
--                                              and claims
--
-- adjust.lua settles what was claimed, and takes it out in the same step. A claim that is not settled within PENDING
-- expires: claim_expired hands it out again. The status of a claim is 0 (open), 1 (overdue), 2 (late), or 3 (expiring)
-- if claim_expired made it; claim replies such a claim, too.
--
-- Times are in microseconds. The keys live as long as the longest-lived reservation.
local LATE = 3600000000
local PENDING = 10000000
local AT_ONCE = 100
local open, late, records, claims = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

local forgotten = call('ZRANGE', late, '-inf', whole(now), 'BYSCORE', 'LIMIT', 0, AT_ONCE)
for i = 1, #forgotten do
  call('ZREM', late, forgotten[i])
  call('HDEL', records, forgotten[i])
end

-- Makes keys live at least this long: all of them, or from the `first` on.
local function prolong(us, first)
  local ttl = math.ceil(us / 1000) + slack
  for i = first or 1, #KEYS do
    if call('PTTL', KEYS[i]) < ttl then call('PEXPIRE', KEYS[i], whole(ttl)) end
  end
end

-- Claims a reservation until it is settled, or the claim expires.
local function keep_claim(id, claim, status)
  if status == 2 then call('ZREM', late, id) end
  call('ZADD', open, whole(now + PENDING), id)
  call('HSET', claims, id, claim)
  prolong(LATE, status == 0 and 4) -- of one that is open, the other keys live long enough
  return claim
end

local function status_of(id)
  local due = call('ZSCORE', open, id)
  return not due and 2 or tonumber(due) > now and 0 or 1
end

-- Returns the time until the next reservation expires.
local function until_next()
  local next = call('ZRANGE', open, 0, 0, 'WITHSCORES')
  return next[2] and math.max(0, tonumber(next[2]) - now) or -1
end

local function expired_ids()
  return call('ZRANGE', open, '-inf', whole(now), 'BYSCORE', 'LIMIT', 0, AT_ONCE)
end

local verbs = {}

function verbs.hold(id, record, ttl)
  call('ZADD', open, whole(now + ttl), id)
  call('HSET', records, id, record)
  prolong(ttl + LATE)
  return {}
end

function verbs.renew(id, record, ttl)
  if not call('ZSCORE', open, id) or call('HGET', claims, id) then return { 0 } end
  verbs.hold(id, record, ttl)
  return { 1 }
end

function verbs.claim(id, cost)
  local record = call('HGET', records, id)
  if not record then return {} end
  local claim = call('HGET', claims, id)
  if not claim then
    local status = status_of(id)
    return { record, keep_claim(id, status .. ' ' .. whole(now) .. ' ' .. cost, status) }
  end
  return string.sub(claim, 1, 1) == '3' and { record, claim } or {}
end

function verbs.claim_expired()
  local reply = { -1 }
  local ids = expired_ids()
  for i = 1, #ids do
    local record = call('HGET', records, ids[i])
    if record then
      local claim = call('HGET', claims, ids[i]) or '3 ' .. whole(now) .. ' 0'
      reply[#reply + 1] = ids[i]
      reply[#reply + 1] = record
      reply[#reply + 1] = keep_claim(ids[i], claim, 3)
    else
      call('ZREM', open, ids[i])
      call('HDEL', claims, ids[i])
    end
  end
  reply[1] = until_next()
  return reply
end

return verbs[ARGV[2]](ARGV[3], ARGV[4], tonumber(ARGV[5]))
