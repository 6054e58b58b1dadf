-- What the Lua twins share. Assembled in front of them into one script; see stores/redis/script.py.
--
-- Each twin adds a table to `algorithms`. A state is up to four values, written `...` here; a key never seen has none.
--   load(key)                                          -> expires, ...
--   admit(now, quota, cost, ...)                       -> wait, ...
--   figures(now, quota, ...)                           -> remaining, reset
--   refund(now, quota, cost, charged_at, reset, ...)   -> ...         where REFUNDS is true
--   save(key, expires, is_new, ...)                    is_new: Redis does not know of this time to expire yet
-- The meaning is that of the Python twins (algorithms/__init__.py). Times are in microseconds.
-- A quota is a table: limit, window, burst; and what a twin cares to remember in it for the time of the call.
--
-- Every key remembers when it expires: to tell Redis takes longer than to decide, and is only done when it must live
-- longer. So each is given some time more than it needs.
--
-- What a bucket owes is a state of one value more: gcra has since when, and the leaky bucket 1. A bucket that owes
-- expires at 0, as far as load tells, so that its key is written as a whole: what it no longer owes is not to stay.
--
-- Lua has doubles only: whole numbers are exact below 2^53, and ours stay below that. Where a product
-- might not, muldiv does it in steps.
--
-- A script runs from its top at every call, and what it makes there takes time: nothing is made that is not used. For
-- the same reason, `x + 0` makes a number of a text: it takes half as long as tonumber.

local algorithms = {}
local REFUNDS, idle, undo = false, nil, nil -- see idle.lua
local held -- by key: what is known of its open reservations; nil: none was met
local begin_held, load_held, save_held, touch_held, open_held -- see held.lua
local slot = '' -- the id of the slot that a group takes or gives back; see concurrency.lua
local NEVER = -1
local EXACT = 9007199254740992
local LONGEST = 6307200000000000 -- to wait for a debt; see debt.py
local KEYS, ARGV = KEYS, ARGV
local call, try, pack, unpack, format = redis.call, redis.pcall, struct.pack, struct.unpack, string.format
local ceil, floor, max, min = math.ceil, math.floor, math.max, math.min

local now = tonumber(ARGV[1])
local least, slack = 0, 1000000 -- how long a key must outlive its meaning, and how long it does when Redis is told
if now then
  least, slack = 1800000000, 3600000000 -- a clock of the caller's own may run slower than ours, by which keys expire
else
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

-- floor(a * b / c), and the remainder; exact for a, b, c from 0 to 2^53-1 whose quotient is below 2^53.
local function muldiv(a, b, c)
  local product = a * b
  if product < EXACT then
    local remainder = product % c
    return (product - remainder) / c, remainder
  end
  local whole = floor(a / c)
  a = a - whole * c
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
  return quotient + whole * b, remainder
end

-- In how many milliseconds, as text: Redis reads it faster than a number.
local function ttl(expires)
  return format('%d', ceil((expires - now) / 1000))
end

-- When a key expires that matters until reset, and whether Redis has to be told.
local function lasting(expires, reset)
  local ends = now + reset
  if expires and expires >= ends + least and expires <= ends + slack then return expires, false end
  return ends + slack, true
end

-- States of two and of three numbers are kept as little-endian doubles behind the time at which the key expires: a
-- fifth of the time that text takes. A value of any other form (an older version's, or another program's) counts as
-- never seen; the last result is the value that was found.
local function load2(key)
  local value = try('GET', key)
  if value and #value == 24 then
    local expires, a, b = unpack('<ddd', value)
    return expires, a, b
  end
  if value and #value == 32 then -- it owes
    local _, a, b, c = unpack('<dddd', value)
    return 0, a, b, c
  end
  if value and #value % 24 == 16 and #value >= 64 and begin_held then
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
  if value and #value == 40 then -- it owes
    local _, a, b, c, d = unpack('<ddddd', value)
    return 0, a, b, c, d
  end
  if value and #value % 24 == 16 and #value >= 64 and begin_held then
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
