-- What the Lua twins share. Assembled in front of them into one script; see stores/redis/script.py.
--
-- Each twin adds a table to `algorithms`:
--   load(key)                                      -> state, or nil
--   admit(state, now, quota, cost)                 -> wait, state
--   figures(state, now, quota)                     -> remaining, reset
--   refund(state, now, quota, cost, charged_at, reset) -> state
--   save(key, state, ttl)                          ttl in milliseconds; as text, Redis reads it faster
-- The meaning is that of the Python twins (algorithms/__init__.py). Times are in microseconds.
-- A quota is a table: limit, window, burst; and what a twin cares to remember in it for the time of the call.
-- A changed state is a new table, never the given one altered.
--
-- Lua has doubles only: whole numbers are exact below 2^53, and all of ours stay below that. Where a product
-- might not, muldiv does it in steps.

local algorithms = {}
local NEVER = -1
local EXACT = 9007199254740992
local LONGEST = 6307200000000000 -- to wait for a debt; see debt.py
local call, try, pack, unpack, format = redis.call, redis.pcall, struct.pack, struct.unpack, string.format
local abs, ceil, floor, max, min = math.abs, math.ceil, math.floor, math.max, math.min

-- floor(a * b / c), and the remainder; exact for a, b, c from 0 to 2^53-1 whose quotient is below 2^53.
local function muldiv(a, b, c)
  local product = a * b
  if product < EXACT then
    local quotient = floor(product / c)
    return quotient, product - quotient * c
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

-- How long a bucket would have stood idle since charged_at, had cost not been charged: an upper bound. See idle.py.
local function idle(now, quota, cost, charged_at, reset)
  local share, rest = muldiv(cost, quota.window, quota.limit)
  local busy = max(0, reset - 1 - share - (rest > 0 and 1 or 0))
  return max(0, now - charged_at - busy)
end

-- States of two and of three numbers are kept as little-endian doubles: a fifth of the time that text takes.
-- What is not one of ours (an older version's, or somebody else's) counts as never seen.
local function load2(key)
  local value = try('GET', key)
  if type(value) ~= 'string' or #value ~= 16 then return nil end
  local a, b = unpack('<dd', value)
  return { a, b }
end

local function save2(key, state, ttl)
  call('SET', key, pack('<dd', state[1], state[2]), 'PX', ttl)
end

local function load3(key)
  local value = try('GET', key)
  if type(value) ~= 'string' or #value ~= 24 then return nil end
  local a, b, c = unpack('<ddd', value)
  return { a, b, c }
end

local function save3(key, state, ttl)
  call('SET', key, pack('<ddd', state[1], state[2], state[3]), 'PX', ttl)
end
