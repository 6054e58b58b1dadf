-- Code that the Lua twins share. Comes before them in each script; see stores/redis/script.py.
--
-- Each twin adds a table to `algorithms`. A state is up to four values, written `...` here; a new key has none.
--   load(key)                                          -> expires, ...
--   admit(now, quota, cost, ...)                       -> wait, ...
--   figures(now, quota, ...)                           -> remaining, reset
--   refund(now, quota, cost, charged_at, reset, ...)   -> ...         where REFUNDS is true
--   save(key, expires, is_new, ...)                    is_new: this expiry was not sent to Redis yet
-- The functions mean what they mean in the Python twins (algorithms/__init__.py). Times are in microseconds.
-- A quota is a table: limit, window, burst; and values that a twin caches in it during the call.
--
-- Every key stores its own expiry. Setting an expiry in Redis takes longer than the decision, so it is only set when
-- the key must live longer, and then to somewhat later than needed.
--
-- The state of a bucket in debt has one more value: the time of the debt for gcra, and 1 for the leaky bucket. load
-- returns 0 as the expiry of a bucket in debt, so that save rewrites the whole key and drops a debt that is paid off.
--
-- Lua numbers are doubles: whole numbers are exact below 2^53, and ours stay below that. muldiv computes products that
-- might not, in steps.
--
-- A script runs from its top at every call, and creating values there takes time, so nothing is created that is not
-- used. For the same reason, `x + 0` converts text to a number: it takes half as long as tonumber.

local algorithms = {}
local REFUNDS, idle, undo = false, nil, nil -- see idle.lua
local held -- by key: its open reservations; nil: none seen yet
local begin_held, load_held, save_held, touch_held, open_held -- see held.lua
local slot = '' -- the id of the slot that a group takes or releases; see concurrency.lua
local arrived = -1 -- when the request began to wait for the slot; 0: now; -1: it does not wait
local NEVER = -1
local EXACT = 9007199254740992
local LONGEST = 6307200000000000 -- the longest wait for a debt; see debt.py
local KEYS, ARGV = KEYS, ARGV
local call, try, pack, unpack, format = redis.call, redis.pcall, struct.pack, struct.unpack, string.format
local ceil, floor, max, min = math.ceil, math.floor, math.max, math.min

local now = tonumber(ARGV[1])
local least, slack = 0, 1000000 -- how long a key must outlive its meaning, and how long it does when its expiry is set
if now then
  least, slack = 1800000000, 3600000000 -- the caller's clock may run slower than Redis's, by which keys expire
else
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

-- Returns floor(a * b / c) and the remainder. Exact for a, b, c from 0 to 2^53-1 whose quotient is below 2^53.
local function muldiv(a, b, c)
  local product = a * b
  if product < EXACT then
    local remainder = product % c
    return (product - remainder) / c, remainder
  end
  if a >= c then
    local rest = a % c
    local quotient, remainder = muldiv(rest, b, c)
    return quotient + (a - rest) / c * b, remainder
  end
  local base = floor(EXACT / 2 / c)
  if base > 1 then -- long division: b's last digit to this base, after the digits before it
    local digit = b % base
    local quotient, remainder = muldiv(a, (b - digit) / base, c)
    local dividend = remainder * base + a * digit -- below 2 * base * c
    remainder = dividend % c
    return quotient * base + (dividend - remainder) / c, remainder
  end
  local quotient, remainder = 0, 0
  local bit = 1
  while bit * 2 <= b do bit = bit * 2 end
  local rest = b
  while bit >= 1 do
    -- quotient, remainder := twice (quotient, remainder), plus a if the bit is set; nothing exceeds 2^53.
    quotient = quotient * 2
    if remainder >= c - remainder then
      remainder = remainder - (c - remainder)
      quotient = quotient + 1
    else
      remainder = remainder + remainder
    end
    if rest >= bit then
      rest = rest - bit
      if remainder >= c - a then
        remainder = remainder - (c - a)
        quotient = quotient + 1
      else
        remainder = remainder + a
      end
    end
    bit = bit / 2
  end
  return quotient, remainder
end

-- Returns the milliseconds until expires, as text, which Redis reads faster than a number.
local function ttl(expires)
  return format('%d', ceil((expires - now) / 1000))
end

-- Returns the expiry of a key that matters until reset, and whether it has to be set in Redis.
local function lasting(expires, reset)
  local ends = now + reset
  if expires and expires >= ends + least and expires <= ends + slack then return expires, false end
  return ends + slack, true
end

-- States of two and of three numbers are stored as little-endian doubles after the expiry of the key: five times as
-- fast as text. A value of any other form (from an older version or another program) is treated as a new key; the last
-- result is the value that was found.
local function load2(key)
  local value = try('GET', key)
  if value and #value == 24 then
    local expires, a, b = unpack('<ddd', value)
    return expires, a, b
  end
  if value and #value == 32 then -- in debt
    local _, a, b, c = unpack('<dddd', value)
    return 0, a, b, c
  end
  if value and #value % 40 == 4 and #value >= 84 and begin_held then
    if not held then begin_held() end
    return load_held(key, value)
  end
  return nil, nil, nil, nil, nil, value
end

local function save2(key, expires, is_new, a, b, c)
  if held and held[key] then return save_held(key, expires, is_new, save2, a, b, c) end
  if is_new then
    call('SET', key, pack(c and '<dddd' or '<ddd', expires, a, b, c), 'PX', ttl(expires))
  else
    call('SETRANGE', key, '8', pack(c and '<ddd' or '<dd', a, b, c))
  end
end

local function load3(key)
  local value = try('GET', key)
  if value and #value == 32 then
    local expires, a, b, c = unpack('<dddd', value)
    return expires, a, b, c
  end
  if value and #value == 40 then -- in debt
    local _, a, b, c, d = unpack('<ddddd', value)
    return 0, a, b, c, d
  end
  if value and #value % 40 == 4 and #value >= 84 and begin_held then
    if not held then begin_held() end
    return load_held(key, value)
  end
  return nil, nil, nil, nil, nil, value
end

local function save3(key, expires, is_new, a, b, c, d)
  if held and held[key] then return save_held(key, expires, is_new, save3, a, b, c, d) end
  if is_new then
    call('SET', key, pack(d and '<ddddd' or '<dddd', expires, a, b, c, d), 'PX', ttl(expires))
  else
    call('SETRANGE', key, '8', pack(d and '<dddd' or '<ddd', a, b, c, d))
  end
end
