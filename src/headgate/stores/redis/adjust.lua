-- Settles: undoes charges, and makes charges that cannot be refused. Appended to the algorithms, with their refunds,
-- and force.lua.
--
-- KEYS, two per change:
--   state    the key of the check
--   refunds  a list: time and cost of each recent refund; see Refunds in ../reservations.py
-- ARGV
--   now      microseconds, or empty: the server's own time
--   per change: algorithm (text), limit, window in microseconds, burst, cost, and
--     for a refund: the time of the charge, and the reset that was returned; for a charge: -1 and 0;
--     the mark of the reservation that it is part of, or 0
-- Reply: for each refund, how much was given back.
--
-- Times are in microseconds. Every key that is written gets a time to live.
local MAX_REFUNDS = 128
local MAX_INT = EXACT - 1
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

local reply = {}
local at = 1
for i = 1, #KEYS, 2 do
  local key = KEYS[i]
  local name, cost = ARGV[at + 1], ARGV[at + 5] + 0
  local charged_at, reset = ARGV[at + 6] + 0, ARGV[at + 7] + 0
  local quota = { limit = ARGV[at + 2] + 0, window = ARGV[at + 3] + 0, burst = ARGV[at + 4] + 0 }
  local mark = ARGV[at + 8] + 0
  at = at + 8
  local twin = algorithms[name]
  if charged_at < 0 then
    local _, a, b, c, d = twin.load(key)
    if held then touch_held(key, quota, twin, a, b, c, d) end
    a, b, c, d = forces[name](now, quota, cost, a, b, c, d)
    local left
    _, left = twin.figures(now, quota, a, b, c, d)
    twin.save(key, now + left + slack, true, a, b, c, d) -- the whole key: whether it is in debt may have changed
  else
    if BUCKETS[name] then reset = noted(KEYS[i + 1], quota, cost, charged_at, reset) end
    reply[#reply + 1] = undo(twin, key, quota, cost, charged_at, reset, mark)
  end
end

return reply
