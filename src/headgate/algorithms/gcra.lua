-- GCRA. Twin of gcra.py. State: tat, part (in 1/limit); of a debt also since when. In Redis: a string of them.
do
  local function load(key)
    local value = try('GET', key)
    if type(value) ~= 'string' then return nil end
    if #value == 16 then
      local tat, part = unpack('<dd', value)
      return { tat, part }
    end
    if #value == 24 then
      local tat, part, since = unpack('<ddd', value)
      return { tat, part, since }
    end
  end

  local function save(key, state, ttl)
    if state[3] then save3(key, state, ttl) else save2(key, state, ttl) end
  end

  -- Where the schedule stands and ends, now: tat, part, horizon, horizon_part.
  local function current(state, now, quota)
    if not quota.refill then
      quota.refill, quota.refill_part = muldiv(quota.burst, quota.window, quota.limit)
    end
    local horizon, horizon_part = now + quota.refill, quota.refill_part
    if not state or state[1] < now then return now, 0, horizon, horizon_part end
    local tat, part = state[1], min(state[2], quota.limit - 1)
    if tat > horizon or (tat == horizon and part > horizon_part) then
      if state[3] then -- a debt stands
        tat = tat - max(0, state[3] - now) -- the clock went back
      else
        -- Full, and no fuller than that: what is beyond comes from the future, or from a larger burst.
        tat, part = horizon, horizon_part
      end
    end
    return tat, part, horizon, horizon_part
  end

  local function admit(state, now, quota, cost)
    local limit = quota.limit
    local tat, part, horizon, horizon_part = current(state, now, quota)
    if state and (state[1] > horizon or (state[1] == horizon and state[2] > horizon_part)) then
      state = { tat, part, state[3] and min(state[3], now) }
    end
    if cost > quota.burst then return NEVER, state end
    local step, step_part = muldiv(cost, quota.window, limit)
    tat = tat + step
    if part >= limit - step_part then
      tat, part = tat + 1, part - (limit - step_part)
    else
      part = part + step_part
    end
    if tat < horizon or (tat == horizon and part <= horizon_part) then
      return 0, cost > 0 and { tat, part } or state
    end
    return tat - horizon + (part > horizon_part and 1 or 0), state
  end

  local function figures(state, now, quota)
    local limit, window = quota.limit, quota.window
    local tat, part, horizon, horizon_part = current(state, now, quota)
    local gap, gap_part = horizon - tat, horizon_part - part
    if gap_part < 0 then gap, gap_part = gap - 1, gap_part + limit end
    if gap < 0 then return 0, tat - now + (part > 0 and 1 or 0) end -- in debt
    local remaining, rest = muldiv(gap, limit, window)
    remaining = remaining + floor(gap_part / window) + floor((gap_part % window + rest) / window)
    return remaining, tat - now + (part > 0 and 1 or 0)
  end

  local function refund(state, now, quota, cost, charged_at, reset)
    local step, step_part = muldiv(cost, quota.window, quota.limit)
    step = step - idle(now, quota, cost, charged_at, reset)
    if step < 0 then return state end
    if state[2] < step_part then
      return { state[1] - step - 1, state[2] + (quota.limit - step_part), state[3] }
    end
    return { state[1] - step, state[2] - step_part, state[3] }
  end

  algorithms.gcra =
    { load = load, admit = admit, figures = figures, refund = refund, save = save }
end
