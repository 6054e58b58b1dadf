-- Concurrency. Twin of concurrency.py. State: total, latest (when the last slot expires), slots.
-- In Redis: a sorted set. A slot is a member `<id>:<cost>:<ttl>`, scored by its expiry. Two more members have negative
-- scores, so they come first: `expires`, the expiry of the key, and `total`, the cost of all slots together.
-- Slots is a table: first (when the first slot expires), and the changes for save to make, if any:
--   key    the key, if it exists
--   gone   slots have expired: remove them
--   moved  scores and members of slots that were from the future
--   fresh  nothing in the set counts any more: delete it
--   taken  add a slot: at, cost and life are its expiry, cost and time to live
do
  local function cost_of(member)
    return string.match(member, ':(%d+):') + 0
  end

  local function ttl_of(member)
    return string.match(member, '(%d+)$') + 0
  end

  local function load(key)
    local found = try('ZRANGE', key, '0', '2', 'WITHSCORES')
    if #found ~= 6 then return nil end -- of another type, or new
    local expires, total = -found[2], -found[4]
    if found[1] == 'total' then expires, total = total, expires end -- the total is larger than the expiry
    local last = call('ZRANGE', key, '-1', '-1', 'WITHSCORES')
    return expires, total, last[2] + 0, { key = key, first = found[6] + 0, last = last[1] }
  end

  -- Drops expired slots and moves those from the future to now. Returns nil when no slot is left.
  local function current(now, total, latest, slots)
    if slots.first > now and latest - ttl_of(slots.last) <= now then return total, latest, slots end
    local moved, first, last = {}, nil, nil
    local left = call('ZRANGEBYSCORE', slots.key, format('(%.0f', now), '+inf', 'WITHSCORES')
    total, latest = 0, 0
    for i = 1, #left, 2 do
      local member, expires = left[i], left[i + 1] + 0
      local life = ttl_of(member)
      if expires - life > now then
        expires = now + life
        moved[#moved + 1], moved[#moved + 2] = expires, member
      end
      total = total + cost_of(member)
      if not first or expires < first then first = expires end
      if expires >= latest then latest, last = expires, member end
    end
    if not first then return nil end
    return total, latest, { key = slots.key, first = first, last = last, gone = slots.first <= now, moved = moved }
  end

  -- Returns the time at which needed is free at the latest.
  local function free_at(now, needed, slots)
    local times, costs = {}, {}
    local held = call('ZRANGEBYSCORE', slots.key, format('(%.0f', now), '+inf', 'WITHSCORES')
    for i = 1, #held, 2 do
      local expires = held[i + 1] + 0
      if slots.moved then -- moving may have changed the order
        expires = min(expires, now + ttl_of(held[i]))
        times[#times + 1] = expires
        costs[expires] = (costs[expires] or 0) + cost_of(held[i])
      else
        needed = needed - cost_of(held[i])
        if needed <= 0 then return expires end
      end
    end
    table.sort(times)
    for i = 1, #times do
      if i == 1 or times[i] ~= times[i - 1] then needed = needed - costs[times[i]] end
      if needed <= 0 then return times[i] end
    end
  end

  local function admit(now, quota, cost, total, latest, slots)
    local limit, window = quota.limit, quota.window
    if total then total, latest, slots = current(now, total, latest, slots) end
    if not total then -- no slot is left; the old set may stay until it expires unless a slot is taken
      if cost > limit then return NEVER end
      if cost == 0 then return 0 end
      return 0, cost, now + window, { fresh = true, taken = true, cost = cost, at = now + window, life = window }
    end
    if cost == 0 then return 0, total, latest, slots end
    if cost > limit then return NEVER, total, latest, slots end
    if total + cost > limit then return free_at(now, total + cost - limit, slots) - now, total, latest, slots end
    return 0, total + cost, max(latest, now + window), {
      gone = slots.gone, moved = slots.moved, taken = true, cost = cost, at = now + window, life = window,
      first = min(slots.first, now + window),
    }
  end

  local function figures(now, quota, total, latest, slots)
    if total and not slots.taken then total, latest = current(now, total, latest, slots) end
    if not total then return quota.limit, 0 end
    return total < quota.limit and quota.limit - total or 0, latest - now
  end

  local function save(key, expires, is_new, total, latest, slots)
    if slots.fresh then
      call('DEL', key)
      is_new = true -- DEL also removed the expiry
    end
    if slots.gone then call('ZREMRANGEBYSCORE', key, '(0', format('%.0f', now)) end
    local moved = slots.moved or {}
    for i = 1, #moved, 2 do call('ZADD', key, format('%.0f', moved[i]), moved[i + 1]) end
    local cost = format('%.0f', -total)
    if slots.taken then
      local at, member = format('%.0f', slots.at), format('%s:%.0f:%.0f', slot, slots.cost, slots.life)
      if is_new then
        call('ZADD', key, format('%.0f', -expires), 'expires', cost, 'total', at, member)
      else
        call('ZADD', key, cost, 'total', at, member)
      end
    elseif is_new then
      call('ZADD', key, format('%.0f', -expires), 'expires', cost, 'total')
    else
      call('ZADD', key, cost, 'total')
    end
    if is_new then call('PEXPIRE', key, ttl(expires)) end
  end

  -- Releases a slot. Returns whether it was held; an expired slot is not held.
  local function release(key, member)
    local expires = try('ZSCORE', key, member)
    if type(expires) ~= 'string' then return false end
    call('ZREM', key, member)
    if call('ZINCRBY', key, format('%.0f', cost_of(member)), 'total') + 0 >= 0 then call('DEL', key) end
    return expires + 0 > now
  end

  -- Extends a slot to its time to live from now. Returns whether it was held.
  local function renew(key, member)
    local expires = try('ZSCORE', key, member)
    if type(expires) ~= 'string' or expires + 0 <= now then return false end
    local life = ttl_of(member)
    local known = -call('ZSCORE', key, 'expires')
    call('ZADD', key, format('%.0f', now + life), member)
    local lasts, is_new = lasting(known, life)
    if is_new and lasts > known then
      call('ZADD', key, format('%.0f', -lasts), 'expires')
      call('PEXPIRE', key, ttl(lasts))
    end
    return true
  end

  algorithms.concurrency =
    { load = load, admit = admit, figures = figures, save = save, release = release, renew = renew }
end
