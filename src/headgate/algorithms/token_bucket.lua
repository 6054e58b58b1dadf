-- Token bucket. Twin of token_bucket.py. State: tokens (below 0: a debt), part (in 1/window), last.
-- In Redis: a string of them.
do
  -- Tokens and part, now.
  local function filled(state, now, quota)
    local window, burst = quota.window, quota.burst
    if not state then return burst, 0 end
    local tokens, part = state[1], min(state[2], window - 1)
    if now > state[3] then
      local gained, gained_part = muldiv(now - state[3], quota.limit, window)
      tokens, part = tokens + gained, part + gained_part
      if part >= window then tokens, part = tokens + 1, part - window end
    end
    if tokens < burst then return tokens, part end
    return burst, 0
  end

  -- The time until missing more tokens are there, of which part is.
  local function until_(missing, part, quota)
    if missing == 0 then return 0 end
    if missing > quota.burst and missing / quota.limit * quota.window >= LONGEST then return LONGEST end
    local quotient, remainder = muldiv(missing, quota.window, quota.limit)
    return quotient - floor((part - remainder) / quota.limit)
  end

  local function admit(state, now, quota, cost)
    local tokens, part = filled(state, now, quota)
    if cost <= tokens then
      return 0, cost > 0 and { tokens - cost, part, now } or state
    end
    if state and state[3] > now then state = { tokens, part, now } end -- from the future
    return cost > quota.burst and NEVER or until_(cost - tokens, part, quota), state
  end

  local function figures(state, now, quota)
    local tokens, part = filled(state, now, quota)
    return max(0, tokens), until_(quota.burst - tokens, part, quota)
  end

  local function refund(state, now, quota, cost, charged_at, reset)
    local tokens, part = filled(state, now, quota)
    local window, burst = quota.window, quota.burst
    local lost, lost_part = muldiv(idle(now, quota, cost, charged_at, reset), quota.limit, window)
    if cost > lost or (cost == lost and lost_part == 0) then
      tokens, part = tokens + (cost - lost), part - lost_part
      if part < 0 then tokens, part = tokens - 1, part + window end
    end
    if tokens < burst then return { tokens, part, now } end
    return { burst, 0, now }
  end

  algorithms.token_bucket =
    { load = load3, admit = admit, figures = figures, refund = refund, save = save3 }
end
