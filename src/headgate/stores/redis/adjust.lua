-- Settles: undoes charges, and makes such as nobody can refuse. Assembled behind the algorithms and force.lua.
--
-- KEYS, two per change:
--   state    the key of the check
--   refunds  a list: time and cost of each refund of late; see Refunds in ../reservations.py
-- ARGV
--   now      microseconds, or empty: the server's own time
--   per change: algorithm (text), limit, window in microseconds, burst, cost, and
--     of a refund: when it was charged, and the reset that was answered then; of a charge: -1 and 0
-- Reply: nothing.
--
-- Times are in microseconds. Every key that is written gets a time to live.
local MAX_REFUNDS = 128
local MAX_INT = EXACT - 1
local BUCKETS = { token_bucket = true, leaky_bucket = true, gcra = true }
local slack = 1000 -- milliseconds that a key outlives its meaning
local now = tonumber(ARGV[1])
if now then
  slack = 3600000 -- a clock of the caller's own may run slower than ours, by which keys expire
else
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

-- What it takes for so many units to flow, rounded up; no more than a century.
local function time_of(units, quota)
  if units / quota.limit * quota.window > 3153600000000000 then return 3153600000000001 end
  local time, rest = muldiv(units, quota.window, quota.limit)
  return rest > 0 and time + 1 or time
end

-- Takes note of a refund; the reset to make it with.
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
  call('PEXPIRE', key, format('%d', ceil(refill / 1000) + slack))
  return max(0, reset - time_of(given, quota))
end

local at = 1
for i = 1, #KEYS, 2 do
  local key = KEYS[i]
  local name, cost = ARGV[at + 1], tonumber(ARGV[at + 5])
  local charged_at, reset = tonumber(ARGV[at + 6]), tonumber(ARGV[at + 7])
  local quota = {
    algorithm = name,
    limit = tonumber(ARGV[at + 2]),
    window = tonumber(ARGV[at + 3]),
    burst = tonumber(ARGV[at + 4]),
  }
  at = at + 7
  local twin = algorithms[name]
  local before = twin.load(key)
  if charged_at < 0 then
    local state = forces[name](before, now, quota, cost)
    local _, left = twin.figures(state, now, quota)
    twin.save(key, state, format('%d', ceil(left / 1000) + slack))
  else
    if BUCKETS[name] then reset = noted(KEYS[i + 1], quota, cost, charged_at, reset) end
    if before then
      local state = twin.refund(before, now, quota, cost, charged_at, reset)
      if state ~= before then twin.save(key, state, max(1, call('PTTL', key))) end
    end
  end
end

return {}
