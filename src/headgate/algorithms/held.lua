-- Buckets with open reservations. Twin of held.py. Assembled behind the prelude where there are buckets.
--
-- In Redis, such a bucket is a string of doubles: when the key expires, up to four values of the state (-1: there is no
-- such value), what the newest reservation can give back and the part of that, and its mark; then, of each older one
-- and the oldest first: mark, what it can give back, and part.
--
-- Levels are a whole number and a part of the next one: units and 1/window, but microseconds and 1/limit for gcra.
-- A bucket has two functions more:
--   level(now, quota, ...)               -> level, part
--   lowered(now, quota, by, part, ...)   -> ...           where REFUNDS is true
-- Most calls meet no such bucket, and need none of this: it is made when the first one is met.
begin_held = function()
  local HEAD, ENTRY, MAX_OPEN = 64, 24, 1024
  held = {}

  load_held = function(key, value)
    local expires, a, b, c, d, low, part, mark = unpack('<dddddddd', value)
    held[key] = { low = low, part = part, mark = mark, older = string.sub(value, HEAD + 1) }
    return expires, a, b, c >= 0 and c or nil, d >= 0 and d or nil
  end

  -- Before a charge: none can give back more than the level.
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

  -- After a reservation was charged.
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
