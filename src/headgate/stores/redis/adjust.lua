-- Settles: undoes charges, and makes charges that cannot be refused. Appended to the algorithms, with their refunds,
-- and force.lua.
--
-- Changes come in sections. A section can be guarded, so that it is applied once, however often it is sent.
--
-- KEYS, per section: those of its guard, then two per change:
--   state    the key of the check
--   refunds  a list: time and cost of each recent refund; see Refunds in ../memory/records.py
-- ARGV
--   now      microseconds, or empty: the server's own time
--   per section: guard, the number of changes, and
--     guard none:     nothing
--     guard receipt:  the time of the claim. Key: a receipt, which is set if the section is applied
--     guard claim:    id, and claim as in reservations.lua, whose keys these are. The reservation is taken out
--     per change: algorithm (text), limit, window in microseconds, burst, cost, and
--       for a refund: the time of the charge, and the reset that was returned; for a charge: -1 and 0;
--       the number of the reservation that it is part of, or 0
-- Reply: for each refund, how much was given back: 0 if its section was applied before.
--
-- Times are in microseconds. Every key that is written gets a time to live.
local MAX_REFUNDS = 128
local MAX_INT = EXACT - 1
local RECEIPT = 300000000 -- how long a receipt is kept
local PENDING = 10000000 -- how long a command may be on its way
local LATE = 3600000000 -- as in reservations.lua
local BUCKETS = { token_bucket = true, leaky_bucket = true, gcra = true }

-- Returns the time in which a bucket drains these units, rounded up; at most a century.
local function time_of(units, quota)
  if units / quota.limit * quota.window > 3153600000000000 then return 3153600000000001 end
  local time, rest = muldiv(units, quota.window, quota.limit)
  return rest > 0 and time + 1 or time
end

-- Records a refund. Returns the corrected reset to refund with.
local function noted(key, quota, cost, charged_at, reset)
  local refill = time_of(quota.burst, quota)
  local given, gone, old = 0, 0, true
  local refunds = call('LRANGE', key, 0, -1)
  for i = 1, #refunds do
    local time, units = unpack('<dd', refunds[i])
    old = old and time <= now - refill
    if old then gone = i end
    if time > now - refill and time >= charged_at then given = min(MAX_INT, given + units) end
  end
  call('LTRIM', key, gone, -1)
  call('RPUSH', key, pack('<dd', now, cost))
  if #refunds - gone + 1 > MAX_REFUNDS then
    local _, first = unpack('<dd', call('LPOP', key))
    local time, second = unpack('<dd', call('LPOP', key))
    call('LPUSH', key, pack('<dd', time, min(MAX_INT, first + second)))
  end
  call('PEXPIRE', key, ttl(now + refill + slack))
  return max(0, reset - time_of(given, quota))
end

-- Each guard returns whether its section is to be applied, and the number of its keys and of its arguments.
local guards = {}

function guards.none() return true, 0, 0 end

-- A receipt may have expired before a claim that is repeated late: then nothing is applied.
function guards.receipt(at, key_at)
  local is_late = now - ARGV[at] > RECEIPT - PENDING
  local is_new = not is_late and call('SET', KEYS[key_at], '1', 'PX', ttl(now + RECEIPT + slack), 'NX')
  return is_new, 1, 1
end

function guards.claim(at, key_at)
  local open, late, records, claims = KEYS[key_at], KEYS[key_at + 1], KEYS[key_at + 2], KEYS[key_at + 3]
  local id, claim = ARGV[at], ARGV[at + 1]
  local is_claimed = call('HGET', claims, id) == claim
  if is_claimed then
    call('HDEL', claims, id)
    call('ZREM', open, id)
    if string.sub(claim, 1, 1) == '3' then -- it has expired: only a late settlement follows
      call('ZADD', late, format('%.0f', now + LATE), id)
      local lives = ttl(now + LATE + slack)
      if call('PTTL', late) < lives + 0 then call('PEXPIRE', late, lives) end
      if call('PTTL', records) < lives + 0 then call('PEXPIRE', records, lives) end
    else
      call('HDEL', records, id)
    end
  end
  return is_claimed, 4, 2
end

-- Makes one change. Returns what a refund gave back.
local function change(key_at, at)
  local key = KEYS[key_at]
  local name, cost = ARGV[at], ARGV[at + 4] + 0
  local charged_at, reset = ARGV[at + 5] + 0, ARGV[at + 6] + 0
  local quota = { limit = ARGV[at + 1] + 0, window = ARGV[at + 2] + 0, burst = ARGV[at + 3] + 0 }
  local twin = algorithms[name]
  if charged_at < 0 then
    local _, a, b, c, d = twin.load(key)
    if held then touch_held(key, quota, twin, a, b, c, d) end
    a, b, c, d = forces[name](now, quota, cost, a, b, c, d)
    local left
    _, left = twin.figures(now, quota, a, b, c, d)
    twin.save(key, now + left + slack, true, a, b, c, d) -- the whole key: whether it is in debt may have changed
    return
  end
  if BUCKETS[name] then reset = noted(KEYS[key_at + 1], quota, cost, charged_at, reset) end
  return undo(twin, key, quota, cost, charged_at, reset, ARGV[at + 7] + 0)
end

local reply = {}
local at, key_at = 2, 1
while at <= #ARGV do
  local guard, count = guards[ARGV[at]], ARGV[at + 1] + 0
  local is_new, keys, arguments = guard(at + 2, key_at)
  at, key_at = at + 2 + arguments, key_at + keys
  for _ = 1, count do
    local is_refund = ARGV[at + 5] + 0 >= 0
    local given = is_new and change(key_at, at) or 0
    if is_refund then reply[#reply + 1] = given end
    at, key_at = at + 8, key_at + 2
  end
end

return reply
