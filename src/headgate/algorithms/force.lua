-- Force: charges that nobody can refuse any more. Twin of force.py. Assembled behind the algorithms into the script
-- that settles; see stores/redis/adjust.lua.
--
-- forces[algorithm](state, now, quota, cost) -> state
local forces = {}
do
  local MOST = 4503599627370496
  local MAX_REFILL = 3153600000000000

  -- Of a bucket, in units. What is above 2^53 is not exact, and the smaller one is taken anyway.
  local function most_debt(quota)
    local most = min(MOST, EXACT - 1 - quota.burst)
    if MAX_REFILL / quota.window * quota.limit >= 2 * MOST then return most end
    return min(most, (muldiv(MAX_REFILL, quota.limit, quota.window)))
  end

  function forces.fixed_window(state, now, quota, cost)
    local start = now - now % quota.window
    local count = state and state[1] >= start and state[2] or 0
    return { start, min(MOST, count + cost) }
  end

  function forces.sliding_window_counter(state, now, quota, cost)
    local window = quota.window
    local start = now - now % window
    local current, previous = 0, 0
    if state then
      if state[1] > now then -- from the future
        current = min(quota.limit, state[2] + state[3])
      elseif state[1] >= start then
        current, previous = state[2], state[3]
      elseif state[1] >= start - window then
        previous = state[2]
      end
    end
    return { start, min(MOST, current + cost), previous }
  end

  function forces.sliding_window_log(state, now, quota, cost)
    local log = algorithms.sliding_window_log
    local stamp = log.stamp(now, quota)
    if state then
      local _
      _, state = log.admit(state, now, quota, 0) -- without what has left the window
    end
    if not state then
      cost = min(MOST, cost)
      return { fresh = true, gone = 0, future = 0, push = true, oldest = stamp, total = cost, stamp = stamp,
               cost = cost }
    end
    cost = max(0, min(MOST - state.total, cost))
    if cost == 0 then return state end
    local same = state.stamp == stamp
    return { gone = state.gone, future = state.future, push = state.push or not same, oldest = state.oldest,
             total = state.total + cost, stamp = stamp, cost = same and state.cost + cost or cost }
  end

  -- A refund of nothing brings a bucket's state up to now.
  local function current(state, now, quota)
    return algorithms[quota.algorithm].refund(state, now, quota, 0, now, 0)
  end

  function forces.token_bucket(state, now, quota, cost)
    state = state and current(state, now, quota) or { quota.burst, 0 }
    return { max(-most_debt(quota), state[1] - cost), state[2], now }
  end

  function forces.leaky_bucket(state, now, quota, cost)
    state = state and current(state, now, quota) or { 0, 0 }
    local level = min(quota.burst + most_debt(quota), state[1] + cost)
    return { level, state[2], now, level >= quota.burst and 1 or nil }
  end

  function forces.gcra(state, now, quota, cost)
    local limit = quota.limit
    local horizon, horizon_part = muldiv(quota.burst, quota.window, limit)
    local tat, part = now, 0
    if state and state[1] >= now then
      tat, part = state[1], min(state[2], limit - 1)
      if tat > now + horizon or (tat == now + horizon and part > horizon_part) then
        if state[3] then
          tat = tat - max(0, state[3] - now)
        else
          tat, part = now + horizon, horizon_part
        end
      end
    end
    local most = now + horizon + MAX_REFILL
    if cost / limit * quota.window > 2 * MAX_REFILL then return { most, 0, now } end
    local step, step_part = muldiv(cost, quota.window, limit)
    tat = tat + step
    if part >= limit - step_part then
      tat, part = tat + 1, part - (limit - step_part)
    else
      part = part + step_part
    end
    if tat >= most then tat, part = most, 0 end
    return { tat, part, tat >= now + horizon and now or nil }
  end
end
