-- Sliding window log. Twin of sliding_window_log.py. State: stamp and cost of the newest entry, total, log.
-- In Redis: a list, oldest first, of stamp, cost, total, oldest and expires per entry. The last three are valid only in
-- the newest entry: the cost of all entries, the stamp of the oldest or an earlier time, and the expiry of the key.
-- The log is a table: key, oldest, newest (the last stamp in the list), and the changes for save to make, if any:
--   gone   how many entries at the head of the list have left the window
--   future how many entries at the tail of the list were in the future and are merged into the newest
--   fresh  nothing in the list counts any more: delete it
--   undo   the index of an entry that a refund changes to undo_stamp and undo_cost
do
  local MAX_ENTRIES = 16384
  local SMALL, LARGE = '<i7I4I4i7i7', '<i7i7i7i7i7'
  local SMALL_SIZE, LARGE_SIZE, SMALL_TOTAL = 29, 35, 4294967296

  local function read(entry)
    return unpack(#entry == SMALL_SIZE and SMALL or LARGE, entry)
  end

  local function written(stamp, cost, total, oldest, expires)
    return pack(total < SMALL_TOTAL and SMALL or LARGE, stamp, cost, total, oldest, expires)
  end

  -- Returns the time under which a check at time is logged: the end of its step.
  local function stamp_of(time, quota)
    if quota.limit <= MAX_ENTRIES then return time end
    local step = ceil(quota.window / MAX_ENTRIES)
    return ceil(time / step) * step
  end

  -- Visits entries from the oldest (or, with step -1, from the newest) until visit(stamp, cost) returns true.
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
        local stamp, cost = read(chunk[step > 0 and i or #chunk + 1 - i])
        if visit(stamp, cost) then return end
      end
      if #chunk < size then return end
      from, size = from + size, min(size * 4, 1024)
    end
  end

  local function load(key)
    local entry = try('LINDEX', key, '-1')
    if not entry or (#entry ~= SMALL_SIZE and #entry ~= LARGE_SIZE) then return nil end
    local stamp, cost, total, oldest, expires = read(entry)
    return expires, stamp, cost, total, { key = key, oldest = oldest, newest = stamp }
  end

  -- Drops the entries stamped at horizon or before; the newest must be later. Returns the total and the log.
  local function expired(horizon, total, log)
    local gone, oldest = 0, nil
    walk(log.key, 0, 1, function(stamp, cost)
      oldest = stamp
      if stamp > horizon then return true end
      gone, total = gone + 1, total - cost
    end)
    return total, { key = log.key, oldest = oldest, newest = log.newest, gone = gone }
  end

  -- Moves all entries from the future to stamp, after the clock went back. Returns their cost and the log.
  local function rebased(stamp, log)
    local future, merged = 0, 0
    walk(log.key, 0, -1, function(other, cost)
      if other < stamp then return true end
      future, merged = future + 1, merged + cost
    end)
    return merged, { key = log.key, oldest = min(log.oldest, stamp), newest = log.newest, gone = log.gone,
                     future = future }
  end

  -- Returns the stamp of the entry that frees needed when it expires, counted from the oldest.
  local function freed(needed, newest, newest_cost, total, log)
    if newest_cost == total then return newest end
    local at = newest
    walk(log.key, log.gone or 0, 1, function(stamp, cost)
      needed = needed - cost
      at = min(stamp, newest)
      return needed <= 0
    end)
    return at
  end

  -- Drops expired entries and moves those from the future to stamp. Returns nil when no entry is left.
  local function current(horizon, stamp, newest, cost, total, log)
    if newest <= horizon then return nil end
    if log.oldest <= horizon then total, log = expired(horizon, total, log) end
    if newest > stamp then
      cost, log = rebased(stamp, log)
      newest = stamp
    end
    return newest, cost, total, log
  end

  local function admit(now, quota, cost, newest, newest_cost, total, log)
    local limit, window = quota.limit, quota.window
    local stamp = limit <= MAX_ENTRIES and now or stamp_of(now, quota)
    if newest and (newest > stamp or log.oldest <= now - window) then
      newest, newest_cost, total, log = current(now - window, stamp, newest, newest_cost, total, log)
    end
    if not newest then -- nothing is left; the old list may stay until it expires unless something is charged
      if cost > limit then return NEVER end
      if cost == 0 then return 0 end
      return 0, stamp, cost, cost, { oldest = stamp, fresh = true }
    end
    if cost > limit - total then
      local wait = NEVER
      if cost <= limit then wait = freed(cost - (limit - total), newest, newest_cost, total, log) + window - now end
      return wait, newest, newest_cost, total, log
    end
    if cost == 0 then return 0, newest, newest_cost, total, log end
    return 0, stamp, newest == stamp and newest_cost + cost or cost, total + cost, log
  end

  local function figures(now, quota, newest, cost, total, log)
    local limit, window = quota.limit, quota.window
    if newest and (newest > now or log.oldest <= now - window) then
      newest, cost, total, log = current(now - window, stamp_of(now, quota), newest, cost, total, log)
    end
    if not newest then return limit, 0 end
    return total < limit and limit - total or 0, newest + window - now
  end

  local refund = REFUNDS and function(now, quota, cost, charged_at, reset, newest, newest_cost, total, log)
    local stamp = stamp_of(charged_at, quota)
    local index, found = 0, nil
    walk(log.key, 0, -1, function(other, charged)
      index = index - 1
      if other == stamp then found = charged end
      return other <= stamp
    end)
    if not found then return newest, newest_cost, total, log end
    cost = min(cost, found)
    return newest, newest_cost, total - cost,
           { key = log.key, oldest = log.oldest, undo = index, undo_stamp = stamp, undo_cost = found - cost }
  end

  local function save_refund(key, expires, total, log)
    call('LSET', key, log.undo, written(log.undo_stamp, log.undo_cost, log.undo_cost, 0, 0))
    if log.undo_cost == 0 then -- remove an entry that a refund emptied
      call('LSET', key, log.undo, '')
      call('LREM', key, -1, '')
    end
    local newest = call('LINDEX', key, -1)
    if newest then
      local stamp, cost = read(newest)
      call('LSET', key, -1, written(stamp, cost, total, log.oldest, expires))
    end
  end

  local function save(key, expires, is_new, stamp, cost, total, log)
    if log.undo then return save_refund(key, expires, total, log) end
    local newest = written(stamp, cost, total, log.oldest, expires)
    if log.fresh then call('DEL', key) end
    if log.future then call('LTRIM', key, 0, -1 - log.future) end
    if log.gone then call('LTRIM', key, log.gone, -1) end
    if log.newest == stamp and not log.future then
      call('LSET', key, '-1', newest)
    else
      call('RPUSH', key, newest)
    end
    if is_new or log.fresh or log.future then call('PEXPIRE', key, ttl(expires)) end -- an emptied list was deleted
  end

  algorithms.sliding_window_log =
    { load = load, admit = admit, figures = figures, refund = refund, save = save, stamp = stamp_of }
end
