-- Token bucket. Twin of token_bucket.py. State: tokens (below 0: a debt), part (in 1/window), last.
-- In Redis: a string.
do
  -- Returns the tokens and the fraction of the next one now.
  local function filled(now, quota, tokens, part, last)
    local window, burst = quota.window, quota.burst
    if not tokens then return burst, 0 end
    if part >= window then part = window - 1 end
    if now > last then
      local gained, gained_part = muldiv(now - last, quota.limit, window)
      tokens, part = tokens + gained, part + gained_part
      if part >= window then tokens, part = tokens + 1, part - window end
    end
    if tokens < burst then return tokens, part end
    return burst, 0
  end

  -- Returns the time until missing tokens have been added, given that part of the next one already has.
  local function until_(missing, part, quota)
    if missing == 0 then return 0 end
    if missing > quota.burst and missing / quota.limit * quota.window >= LONGEST then return LONGEST end
    local quotient, remainder = muldiv(missing, quota.window, quota.limit)
    return quotient - floor((part - remainder) / quota.limit)
  end

  local function admit(now, quota, cost, kept, kept_part, last)
    local tokens, part = filled(now, quota, kept, kept_part, last)
    if cost <= tokens then
      if cost == 0 then return 0, kept, kept_part, last end
      return 0, tokens - cost, part, now
    end
    if kept and last > now then kept, kept_part, last = tokens, part, now end -- from the future
    local wait = cost > quota.burst and NEVER or until_(cost - tokens, part, quota)
    return wait, kept, kept_part, last
  end

  local function figures(now, quota, tokens, part, last)
    tokens, part = filled(now, quota, tokens, part, last)
    return tokens > 0 and tokens or 0, until_(quota.burst - tokens, part, quota)
  end

  local refund = REFUNDS and function(now, quota, cost, charged_at, reset, tokens, part, last)
    tokens, part = filled(now, quota, tokens, part, last)
    local window, burst = quota.window, quota.burst
    local lost, lost_part = muldiv(idle(now, quota, cost, charged_at, reset), quota.limit, window)
    if cost > lost or (cost == lost and lost_part == 0) then
      tokens, part = tokens + (cost - lost), part - lost_part
      if part < 0 then tokens, part = tokens - 1, part + window end
    end
    if tokens < burst then return tokens, part, now end
    return burst, 0, now
  end

  local function level(now, quota, tokens, part, last)
    tokens, part = filled(now, quota, tokens, part, last)
    if part == 0 then return quota.burst - tokens, 0 end
    return quota.burst - tokens - 1, quota.window - part
  end

  local lower = REFUNDS and function(now, quota, by, by_part, tokens, part, last)
    tokens, part = filled(now, quota, tokens, part, last)
    if part >= quota.window - by_part then return tokens + by + 1, part - (quota.window - by_part), now end
    return tokens + by, part + by_part, now
  end

  algorithms.token_bucket = {
    load = load3,
    admit = admit,
    figures = figures,
    refund = refund,
    level = level,
    lower = lower,
    save = save3,
  }
end
