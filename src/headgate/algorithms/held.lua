-- Buckets with open reservations. Twin of held.py. Appended to the prelude in scripts with bucket algorithms.
--
-- In Redis, such a bucket is a string of doubles: the expiry of the key, up to four values of the state (-1: no value),
-- what the newest reservation can refund and its fraction, its number, when it was charged, and the reset after that;
-- four bytes that tell this form from others; then, for each older reservation, oldest first: number, what it can
-- refund, the fraction, the time and the reset.
--
-- A level is a whole number and a fraction: units and 1/window, or, for gcra, microseconds and 1/limit.
-- A bucket has two more functions:
--   level(now, quota, ...)               -> level, part
--   lower(now, quota, by, part, ...)   -> ...           where REFUNDS is true
-- Most calls see no such bucket, so these functions are created when the first one is seen.
begin_held = function()
  local HEAD, ENTRY, MAX_OPEN = 84, 40, 1024
  held = {}

  load_held = function(key, value)
    local expires, a, b, c, d, low, part, reservation, since, reset = unpack('<dddddddddd', value)
    local older = string.sub(value, HEAD + 1)
    held[key] = { low = low, part = part, reservation = reservation, since = since, reset = reset, older = older }
    return expires, a, b, c >= 0 and c or nil, d >= 0 and d or nil
  end

  -- Call before a charge: no reservation can refund more than the level.
  touch_held = function(key, quota, twin, a, b, c, d)
    local one = held[key]
    if not one then return end
    local level, part = twin.level(now, quota, a, b, c, d)
    if level < one.low or (level == one.low and part < one.part) then one.low, one.part = level, part end
  end

  save_held = function(key, expires, is_new, save, a, b, c, d)
    local one = held[key]
    if one.low == 0 and one.part == 0 then
      held[key] = nil
      return save(key, expires, true, a, b, c, d)
    end
    local head = pack('<ddddd', expires, a, b, c or -1, d or -1)
      .. pack('<dddddc4', one.low, one.part, one.reservation, one.since, one.reset, 'held')
    if is_new then
      call('SET', key, head .. one.older, 'PX', ttl(expires))
    else
      call('SETRANGE', key, '0', head)
    end
  end

  -- Call after a reservation was charged.
  open_held = function(key, quota, twin, reservation, reset, a, b, c, d)
    local one = held[key]
    local older, since = '', now
    if one and (one.low > 0 or one.part > 0) then
      older = one.older .. pack('<ddddd', one.reservation, one.low, one.part, one.since, one.reset)
      since = max(now, one.since) -- in order, even when the clock went back
      if #older >= MAX_OPEN * ENTRY then return end
    end
    local level, part = twin.level(now, quota, a, b, c, d)
    held[key] = { low = level, part = part, reservation = reservation, since = since, reset = reset, older = older }
  end
end
