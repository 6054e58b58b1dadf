-- Sliding window counter. Twin of sliding_window_counter.py. State: start, current, previous. In Redis: a string.
do
  -- Returns the time until floor(count * left / window) <= room, as left runs down.
  local function fade(room, count, left, window)
    if count <= room then return 0 end
    local quotient, remainder = muldiv(room + 1, window, count)
    local time = left + 1 - quotient - (remainder > 0 and 1 or 0)
    return time > 0 and time or 0
  end

  -- Returns the time until at most room is counted if no request comes. left: the time to this bucket's end.
  local function until_(room, current, previous, left, window)
    if current > room then return left + fade(room, current, window, window) end
    return fade(room - current, previous, left, window)
  end

  local function admit(now, quota, cost, since, counted, before)
    local limit, window = quota.limit, quota.window
    local start = now - now % window
    local current, previous = 0, 0
    if since then
      if since > now then
        -- From the future. The previous count would fade too early here, so it counts in full.
        since, counted, before = start, min(limit, counted + before), 0
      end
      if since >= start then
        current, previous = counted, before
      elseif since >= start - window then
        previous = counted
      end
    end
    local left = start + window - now
    local faded = previous > 0 and muldiv(previous, left, window) or 0
    if cost <= limit - current - faded then
      if cost == 0 then return 0, since, counted, before end
      return 0, start, current + cost, previous
    end
    local wait = cost > limit and NEVER or until_(limit - cost, current, previous, left, window)
    return wait, since, counted, before
  end

  local function figures(now, quota, since, counted, before)
    local limit, window = quota.limit, quota.window
    local start = now - now % window
    local current, previous = 0, 0
    if since then
      if since > now then
        current = min(limit, counted + before)
      elseif since >= start then
        current, previous = counted, before
      elseif since >= start - window then
        previous = counted
      end
    end
    local left = start + window - now
    local faded = previous > 0 and muldiv(previous, left, window) or 0
    local remaining = limit - current - faded
    return remaining > 0 and remaining or 0, until_(0, current, previous, left, window)
  end

  local refund = REFUNDS and function(now, quota, cost, charged_at, reset, start, current, previous)
    if charged_at >= start then return start, max(0, current - cost), previous end
    if charged_at >= start - quota.window then return start, current, max(0, previous - cost) end
    return start, current, previous
  end

  algorithms.sliding_window_counter =
    { load = load3, admit = admit, figures = figures, refund = refund, save = save3 }
end
