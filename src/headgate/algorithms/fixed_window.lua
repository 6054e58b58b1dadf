-- Fixed window. Twin of fixed_window.py. State: start, count. In Redis: a string of them.
do
  local function admit(state, now, quota, cost)
    local limit, window = quota.limit, quota.window
    local start = now - now % window
    local count = 0
    if state then
      if state[1] > now then state = { start, state[2] } end -- from the future
      if state[1] >= start then count = state[2] end
    end
    if cost <= limit - count then
      return 0, cost > 0 and { start, count + cost } or state
    end
    return cost > limit and NEVER or start + window - now, state
  end

  local function figures(state, now, quota)
    local limit, window = quota.limit, quota.window
    local start = now - now % window
    if not state or state[1] < start or state[2] == 0 then return limit, 0 end
    return max(0, limit - state[2]), start + window - now
  end

  local function refund(state, now, quota, cost, charged_at)
    if charged_at < state[1] then return state end
    return { state[1], max(0, state[2] - cost) }
  end

  algorithms.fixed_window =
    { load = load2, admit = admit, figures = figures, refund = refund, save = save2 }
end
