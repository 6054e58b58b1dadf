-- Sliding window counter. Twin of sliding_window_counter.py. State: start, current, previous.
-- In Redis: a string of them.
do
  -- The time until floor(count * left / window) <= room, from now, while left runs down.
  local function fade(room, count, left, window)
    if count <= room then return 0 end
    local quotient, remainder = muldiv(room + 1, window, count)
    return max(0, left + 1 - quotient - (remainder > 0 and 1 or 0))
  end

  -- The time until no more than room is counted, when this bucket has left to go and nobody comes.
  local function until_(room, current, previous, left, window)
    if current > room then return left + fade(room, current, window, window) end
    return fade(room - current, previous, left, window)
  end

  local function admit(state, now, quota, cost)
    local limit, window = quota.limit, quota.window
    local start = now - now % window
    local current, previous = 0, 0
    if state then
      if state[1] > now then
        -- From the future. What the other bucket had would fade too early here, so it counts in full.
        state = { start, min(limit, state[2] + state[3]), 0 }
      end
      if state[1] >= start then
        current, previous = state[2], state[3]
      elseif state[1] >= start - window then
        previous = state[2]
      end
    end
    local left = start + window - now
    local faded = muldiv(previous, left, window)
    if cost <= limit - current - faded then
      return 0, cost > 0 and { start, current + cost, previous } or state
    end
    return cost > limit and NEVER or until_(limit - cost, current, previous, left, window), state
  end

  local function figures(state, now, quota)
    local limit, window = quota.limit, quota.window
    local start = now - now % window
    local current, previous = 0, 0
    if state then
      if state[1] > now then
        current = min(limit, state[2] + state[3])
      elseif state[1] >= start then
        current, previous = state[2], state[3]
      elseif state[1] >= start - window then
        previous = state[2]
      end
    end
    local left = start + window - now
    local faded = muldiv(previous, left, window)
    return max(0, limit - current - faded), until_(0, current, previous, left, window)
  end

  local function refund(state, now, quota, cost, charged_at)
    local start, current, previous = state[1], state[2], state[3]
    if charged_at >= start then return { start, max(0, current - cost), previous } end
    if charged_at >= start - quota.window then return { start, current, max(0, previous - cost) } end
    return state
  end

  algorithms.sliding_window_counter =
    { load = load3, admit = admit, figures = figures, refund = refund, save = save3 }
end
