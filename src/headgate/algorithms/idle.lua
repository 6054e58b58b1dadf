-- Refunds: twin of idle.py, and of `settled` and `refund` in held.py. Appended to the prelude only in scripts that
-- refund.
REFUNDS = true

-- Returns an upper bound of the time that a bucket would have been idle since charged_at without the charge.
idle = function(now, quota, cost, charged_at, reset)
  local share, rest = muldiv(cost, quota.window, quota.limit)
  local busy = max(0, reset - 1 - share - (rest > 0 and 1 or 0))
  return max(0, now - charged_at - busy)
end

-- Undoes a charge; the charge of a reservation if `reservation` is not 0. Returns the amount refunded.
undo = function(twin, key, quota, cost, charged_at, reset, reservation)
  if twin.release then
    return twin.release(key, format('%s:%.0f:%.0f', slot, cost, quota.window)) and cost or 0
  end
  local expires, a, b, c, d = twin.load(key)
  if not expires then return 0 end
  if not twin.level then -- a window
    local limit, largest = quota.limit, quota.limit
    local before = twin.figures(now, quota, a, b, c, d)
    if before == 0 then -- more than the limit may be counted: with the largest one, what remains tells how much
      largest = EXACT - 1
      quota.limit = largest
      before = twin.figures(now, quota, a, b, c, d)
      quota.limit = limit
    end
    local new_a, new_b, new_c, new_d = twin.refund(now, quota, cost, charged_at, reset, a, b, c, d)
    if new_a ~= a or new_b ~= b or new_c ~= c or new_d ~= d then
      twin.save(key, expires, false, new_a, new_b, new_c, new_d)
    end
    quota.limit = largest
    local after = twin.figures(now, quota, new_a, new_b, new_c, new_d)
    quota.limit = limit
    return after - before
  end

  local one = held and held[key]
  if reservation ~= 0 and not one then return 0 end
  local is_gcra = twin.load == load2
  local base = is_gcra and quota.limit or quota.window
  local level, part = twin.level(now, quota, a, b, c, d)

  local function less(low, low_part, other, other_part)
    return low < other or (low == other and low_part < other_part)
  end
  local function minus(low, low_part, other, other_part)
    if low_part < other_part then return low - other - 1, low_part + (base - other_part) end
    return low - other, low_part - other_part
  end

  -- What each reservation can refund now, newest first.
  local known, found = {}, nil
  if one then
    touch_held(key, quota, twin, a, b, c, d)
    local low, low_part = one.low, min(one.part, base - 1)
    known[1] = { one.reservation, low, low_part, one.since, one.reset }
    for at = #one.older - 39, 1, -40 do
      local older_reservation, older, older_part, since, its_reset = unpack('<ddddd', one.older, at)
      if less(older, older_part, low, low_part) then low, low_part = older, min(older_part, base - 1) end
      known[#known + 1] = { older_reservation, low, low_part, since, its_reset }
    end
    for i = 1, #known do
      if known[i][1] == reservation then found = i end
    end
    if reservation ~= 0 and not found then return 0 end
  end

  local back, back_part = 0, 0
  if found then
    local low, low_part = known[found][2], known[found][3]
    back, back_part = cost, 0
    if is_gcra then back, back_part = muldiv(cost, quota.window, quota.limit) end
    if less(low, low_part, back, back_part) then back, back_part = low, low_part end
    local rest, rest_part = minus(low, low_part, back, back_part)
    for i = 1, #known do
      local it = known[i]
      if i < found then
        it[2], it[3] = minus(it[2], it[3], back, back_part)
      elseif less(rest, rest_part, it[2], it[3]) then
        it[2], it[3] = rest, rest_part
      end
    end
    table.remove(known, found)
    if back > 0 or back_part > 0 then
      a, b, c, d = twin.lower(now, quota, back, back_part, a, b, c, d)
    end
  else
    local new_a, new_b, new_c, new_d = twin.refund(now, quota, cost, charged_at, reset, a, b, c, d)
    if new_a == a and new_b == b and new_c == c and new_d == d then return 0 end
    a, b, c, d = new_a, new_b, new_c, new_d
    back, back_part = minus(level, part, twin.level(now, quota, a, b, c, d))
    local loss, loss_part = back, back_part -- of reservations that were made before the charge
    local kept, kept_part = muldiv(cost, quota.window, quota.limit)
    local drained, drained_part = min(max(0, now - charged_at), kept + 1), 0
    if not is_gcra then
      kept, kept_part = cost, 0
      drained, drained_part = muldiv(drained, quota.limit, quota.window)
    end
    if less(drained, drained_part, kept, kept_part) then
      kept, kept_part = minus(kept, kept_part, drained, drained_part)
      loss, loss_part = 0, 0
      if less(kept, kept_part, back, back_part) then loss, loss_part = minus(back, back_part, kept, kept_part) end
    end
    for i = 1, #known do
      local it = known[i]
      local by, by_part = back, back_part
      if it[4] < charged_at or (it[4] == charged_at and it[5] < reset) then by, by_part = loss, loss_part end
      if less(it[2], it[3], by, by_part) then
        it[2], it[3] = 0, 0
      else
        it[2], it[3] = minus(it[2], it[3], by, by_part)
      end
    end
  end

  if one then
    local older, newest = {}, nil
    for i = #known, 1, -1 do
      local it = known[i]
      if it[2] > 0 or it[3] > 0 then
        if newest then older[#older + 1] = pack('<ddddd', newest[1], newest[2], newest[3], newest[4], newest[5]) end
        newest = it
      end
    end
    held[key] = newest and {
      reservation = newest[1], low = newest[2], part = newest[3], since = newest[4], reset = newest[5],
      older = table.concat(older),
    } or nil
    twin.save(key, max(expires, now + 1000000), true, a, b, c, d)
  else
    twin.save(key, expires, false, a, b, c, d)
  end

  if not is_gcra then return back end
  local units, rest = muldiv(back, quota.limit, quota.window)
  rest = rest + back_part % quota.window
  return units + (back_part - back_part % quota.window) / quota.window + (rest >= quota.window and 1 or 0)
end
