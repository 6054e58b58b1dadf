-- GCRA. Twin of gcra.py. State: tat, part (in 1/limit); for a debt also its time. In Redis: a string.
do
  -- Returns how far tat is ahead of now, and its part. A time plus two refills could exceed 2^53 one day, so refills
  -- are only added to one another.
  local function current(now, quota, tat, part, since)
    if not quota.refill then
      quota.refill, quota.refill_part = muldiv(quota.burst, quota.window, quota.limit)
    end
    if not tat or tat < now then return 0, 0 end
    if part >= quota.limit then part = quota.limit - 1 end
    local ahead, refill = tat - now, quota.refill
    if ahead > refill or (ahead == refill and part > quota.refill_part) then
      -- Treated as exactly full: anything beyond comes from the future or from a larger burst.
      if not since then return refill, quota.refill_part end
      if since > now then return max(0, tat - since), part end -- a debt stays, even when the clock went back
    end
    return ahead, part
  end

  local function admit(now, quota, cost, tat, tat_part, since)
    local limit = quota.limit
    local ahead, part = current(now, quota, tat, tat_part, since)
    local refill, refill_part = quota.refill, quota.refill_part
    if tat and (tat - now > refill or (tat - now == refill and tat_part > refill_part)) then
      tat, tat_part = now + ahead, part
      if since and since > now then since = now end
    end
    if cost > quota.burst then return NEVER, tat, tat_part, since end
    if quota.cost ~= cost then
      quota.cost, quota.step, quota.step_part = cost, muldiv(cost, quota.window, limit)
    end
    local step_part = quota.step_part
    ahead = ahead + quota.step
    if part >= limit - step_part then
      ahead, part = ahead + 1, part - (limit - step_part)
    else
      part = part + step_part
    end
    if ahead < refill or (ahead == refill and part <= refill_part) then
      if cost == 0 then return 0, tat, tat_part, since end
      return 0, now + ahead, part
    end
    return ahead - refill + (part > refill_part and 1 or 0), tat, tat_part, since
  end

  local function figures(now, quota, tat, part, since)
    local limit, window = quota.limit, quota.window
    local ahead
    ahead, part = current(now, quota, tat, part, since)
    local gap, gap_part = quota.refill - ahead, quota.refill_part - part
    if gap_part < 0 then gap, gap_part = gap - 1, gap_part + limit end
    if gap < 0 then return 0, ahead + (part > 0 and 1 or 0) end -- in debt
    local remaining, rest = muldiv(gap, limit, window)
    rest = rest + gap_part % window
    remaining = remaining + (gap_part - gap_part % window) / window + (rest >= window and 1 or 0)
    return remaining, ahead + (part > 0 and 1 or 0)
  end

  local refund = REFUNDS and function(now, quota, cost, charged_at, reset, tat, part, since)
    local step, step_part = muldiv(cost, quota.window, quota.limit)
    step = step - idle(now, quota, cost, charged_at, reset)
    if step < 0 then return tat, part, since end
    if part < step_part then return tat - step - 1, part + (quota.limit - step_part), since end
    return tat - step, part - step_part, since
  end

  local lower = REFUNDS and function(now, quota, by, by_part, tat, part, since)
    local ahead
    ahead, part = current(now, quota, tat, part, since)
    if since and since > now then since = now end
    if part < by_part then return now + ahead - by - 1, part + (quota.limit - by_part), since end
    return now + ahead - by, part - by_part, since
  end

  algorithms.gcra = {
    load = load2,
    admit = admit,
    figures = figures,
    refund = refund,
    level = current,
    lower = lower,
    save = save2,
  }
end
