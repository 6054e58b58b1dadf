-- Buckets with open reservations. Twin of held.py. Appended to the prelude in scripts with bucket algorithms.
--
-- In Redis, such a bucket is a string of doubles: the expiry of the key, up to four values of the state (-1: no value),
-- what the newest reservation can refund and its fraction, and its mark; then, for each older reservation, oldest
-- first: mark, what it can refund, and the fraction.
--
-- A level is a whole number and a fraction: units and 1/window, or, for gcra, microseconds and 1/limit.
-- A bucket has two more functions:
--   level(now, quota, ...)               -> level, part
--   lower(now, quota, by, part, ...)   -> ...           where REFUNDS is true
-- Most calls see no such bucket, so these functions are created when the first one is seen.
begin_held = function()
  local HEAD, ENTRY, MAX_OPEN = 64, 24, 1024
  held = {}

  load_held = function(key, value)
    local expires, a, b, c, d, low, part, mark = unpack('<dddddddd', value)
    held[key] = { low = low, part = part, mark = mark, older = string.sub(value, HEAD + 1) }
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
    local head = pack('<dddddddd', expires, a, b, c or -1, d or -1, one.low, one.part, one.mark)
    if is_new then
      call('SET', key, head .. one.older, 'PX', ttl(expires))
    else
      call('SETRANGE', key, '0', head)
    end
  end

  -- Call after a reservation was charged.
  open_held = function(key, quota, twin, mark, a, b, c, d)
    local one = held[key]
    local older = ''
    if one and (one.low > 0 or one.part > 0) then
      older = one.older .. pack('<ddd', one.mark, one.low, one.part)
      if #older > (MAX_OPEN - 1) * ENTRY then older = string.sub(older, ENTRY + 1) end
    end
    local level, part = twin.level(now, quota, a, b, c, d)
    held[key] = { low = level, part = part, mark = mark, older = older }
  end
end
