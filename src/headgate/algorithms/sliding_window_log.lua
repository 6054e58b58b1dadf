-- Sliding window log. Twin of sliding_window_log.py.
-- In Redis: a list, oldest first, of stamp, cost and total per entry; the total of the newest is that of
-- them all.
-- State: key, gone, total, stamp, cost, and what save has to do:
--   gone   how many entries at the list's head have left the window
--   push   the newest entry is not in the list yet
--   future how many entries at the list's tail lay in the future and are merged into the newest
do
  local MAX_ENTRIES = 16384

  -- When a check at time is logged: at the end of its step.
  local function stamp_of(time, quota)
    if quota.limit <= MAX_ENTRIES then return time end
    local step = ceil(quota.window / MAX_ENTRIES)
    return ceil(time / step) * step
  end

  -- Walks entries from the oldest (or, with step -1, from the newest) until visit(stamp, cost) returns true.
  local function walk(key, from, step, visit)
    local size = 4
    while true do
      local chunk
      if step > 0 then
        chunk = call('LRANGE', key, from, from + size - 1)
      else
        chunk = call('LRANGE', key, -from - size, -from - 1)
      end
      for i = 1, #chunk do
        local stamp, cost = unpack('<ddd', chunk[step > 0 and i or #chunk + 1 - i])
        if visit(stamp, cost) then return end
      end
      if #chunk < size then return end
      from, size = from + size, min(size * 4, 1024)
    end
  end

  local function load(key)
    local newest = try('LINDEX', key, -1)
    if type(newest) ~= 'string' or #newest ~= 24 then return nil end
    local stamp, cost, total = unpack('<ddd', newest)
    local oldest = unpack('<ddd', call('LINDEX', key, 0))
    return { key = key, gone = 0, future = 0, total = total, stamp = stamp, cost = cost, oldest = oldest }
  end

  -- Without the entries stamped at horizon or before; the newest is not.
  local function expired(state, horizon)
    local gone, total, oldest = 0, state.total, nil
    walk(state.key, 0, 1, function(stamp, cost)
      oldest = stamp
      if stamp > horizon then return true end
      gone, total = gone + 1, total - cost
    end)
    return { key = state.key, gone = gone, future = 0, total = total, stamp = state.stamp, cost = state.cost,
             oldest = oldest }
  end

  -- With all entries from the future moved to now: a clock that went back.
  local function rebased(state, stamp)
    local future, merged = 0, 0
    walk(state.key, 0, -1, function(other, cost)
      if other < stamp then return true end
      future, merged = future + 1, merged + cost
    end)
    return { key = state.key, gone = state.gone, future = future, push = true, total = state.total,
             stamp = stamp, cost = merged, oldest = min(state.oldest, stamp) }
  end

  -- The stamp of the entry whose leaving frees what is needed, counted from the oldest.
  local function freed(state, needed)
    local at = state.stamp
    if state.cost == state.total then return at end
    walk(state.key, state.gone, 1, function(stamp, cost)
      needed = needed - cost
      at = min(stamp, state.stamp)
      return needed <= 0
    end)
    return at
  end

  -- Without what has left the window, and with nothing in the future; nil when nothing is left.
  local function current(state, horizon, stamp)
    if state.stamp <= horizon then return nil end
    if state.oldest <= horizon then state = expired(state, horizon) end
    return state.stamp > stamp and rebased(state, stamp) or state
  end

  local function admit(state, now, quota, cost)
    local limit, window = quota.limit, quota.window
    local stamp = stamp_of(now, quota)
    if state then state = current(state, now - window, stamp) end
    if not state then -- nothing is left: unless something is charged, what was there may stay until it expires
      if cost > limit then return NEVER, nil end
      return 0, cost > 0 and { fresh = true, gone = 0, future = 0, push = true, oldest = stamp, total = cost,
                               stamp = stamp, cost = cost } or nil
    end
    local total = state.total
    if cost > limit - total then
      return cost > limit and NEVER or freed(state, cost - (limit - total)) + window - now, state
    end
    if cost == 0 then return 0, state end
    local same = state.stamp == stamp
    return 0, { gone = state.gone, future = state.future, push = state.push or not same, oldest = state.oldest,
                total = total + cost, stamp = stamp, cost = same and state.cost + cost or cost }
  end

  local function figures(state, now, quota)
    local limit, window = quota.limit, quota.window
    if state then state = current(state, now - window, stamp_of(now, quota)) end
    if not state then return limit, 0 end
    return max(0, limit - state.total), state.stamp + window - now
  end

  local function refund(state, now, quota, cost, charged_at)
    local stamp = stamp_of(charged_at, quota)
    local index, found = 0, nil
    walk(state.key, 0, -1, function(other, charged)
      index = index - 1
      if other == stamp then found = charged end
      return other <= stamp
    end)
    if not found then return state end
    cost = min(cost, found)
    return { key = state.key, undo = index, undo_stamp = stamp, undo_cost = found - cost,
             total = state.total - cost }
  end

  local function save_refund(key, state)
    call('LSET', key, state.undo, pack('<ddd', state.undo_stamp, state.undo_cost, 0))
    if state.undo_cost == 0 then -- an entry that a refund emptied does not stay
      call('LSET', key, state.undo, '')
      call('LREM', key, -1, '')
    end
    local newest = call('LINDEX', key, -1)
    if newest then
      local stamp, cost = unpack('<ddd', newest)
      call('LSET', key, -1, pack('<ddd', stamp, cost, state.total))
    end
  end

  local function save(key, state, ttl)
    if state.undo then
      save_refund(key, state)
    else
      local newest = pack('<ddd', state.stamp, state.cost, state.total)
      if state.fresh then call('DEL', key) end
      if state.future > 0 then call('LTRIM', key, 0, -1 - state.future) end
      if state.gone > 0 then call('LTRIM', key, state.gone, -1) end
      if state.push then call('RPUSH', key, newest) else call('LSET', key, -1, newest) end
    end
    call('PEXPIRE', key, ttl)
  end

  algorithms.sliding_window_log =
    { load = load, admit = admit, figures = figures, refund = refund, save = save, stamp = stamp_of }
end
