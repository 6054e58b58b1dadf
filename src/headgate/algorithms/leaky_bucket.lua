-- Leaky bucket. Twin of leaky_bucket.py. State: level, part (in 1/window), last; for a debt also 1.
-- In Redis: a string.
do
  -- Returns the level and its fraction now.
  local function drained(now, quota, level, part, last, owes)
    if not level then return 0, 0 end
    local window, burst = quota.window, quota.burst
    if part >= window then part = window - 1 end
    if now > last then
      local leaked, leaked_part = muldiv(now - last, quota.limit, window)
      level, part = level - leaked, part - leaked_part
      if part < 0 then level, part = level - 1, part + window end
      if level < 0 then return 0, 0 end
    end
    if level < burst or owes then return level, part end
    return burst, 0
  end

  -- Returns the time until level and part have drained.
  local function until_(level, part, quota)
    local limit = quota.limit
    if level > quota.burst and level / limit * quota.window >= LONGEST then return LONGEST end
    local quotient, remainder = muldiv(level, quota.window, limit)
    local rest = part % limit
    quotient = quotient + (part - rest) / limit
    if rest > limit - remainder then return quotient + 2 end
    return (rest > 0 or remainder > 0) and quotient + 1 or quotient
  end

  local function admit(now, quota, cost, kept, kept_part, last, owes)
    local level, part = drained(now, quota, kept, kept_part, last, owes)
    local burst = quota.burst
    local full = part > 0 and level + 1 or level
    if cost <= burst - full then
      if cost == 0 then return 0, kept, kept_part, last, owes end
      return 0, level + cost, part, now
    end
    if kept and (last > now or kept >= burst) then
      kept, kept_part, last = level, part, now -- from the future, or from a larger burst
    end
    local wait = cost > burst and NEVER or until_(cost - (burst - level), part, quota)
    return wait, kept, kept_part, last, owes
  end

  local function figures(now, quota, level, part, last, owes)
    level, part = drained(now, quota, level, part, last, owes)
    local remaining = quota.burst - level - (part > 0 and 1 or 0)
    return remaining > 0 and remaining or 0, until_(level, part, quota)
  end

  local refund = REFUNDS and function(now, quota, cost, charged_at, reset, level, part, last, owes)
    level, part = drained(now, quota, level, part, last, owes)
    local window = quota.window
    local lost, lost_part = muldiv(idle(now, quota, cost, charged_at, reset), quota.limit, window)
    if cost > lost or (cost == lost and lost_part == 0) then
      level, part = level - (cost - lost), part + lost_part
      if part >= window then level, part = level + 1, part - window end
    end
    if level < 0 then level, part = 0, 0 end
    return level, part, now, owes -- owes is ignored when the bucket is empty
  end

  local lower = REFUNDS and function(now, quota, by, by_part, level, part, last, owes)
    level, part = drained(now, quota, level, part, last, owes)
    if part < by_part then return level - by - 1, part + (quota.window - by_part), now, owes end
    return level - by, part - by_part, now, owes
  end

  algorithms.leaky_bucket = {
    load = load3,
    admit = admit,
    figures = figures,
    refund = refund,
    level = drained,
    lower = lower,
    save = save3,
  }
end
