-- Fixed window. Twin of fixed_window.py. State: start, count. In Redis: a string.
do
  local function admit(now, quota, cost, since, count)
    local limit, window = quota.limit, quota.window
    local start = now - now % window
    if since and since > now then since = start end -- from the future
    local counted = since and since >= start and count or 0
    if cost <= limit - counted then
      if cost == 0 then return 0, since, count end
      return 0, start, counted + cost
    end
    return cost > limit and NEVER or start + window - now, since, count
  end

  local function figures(now, quota, since, count)
    local limit, window = quota.limit, quota.window
    local start = now - now % window
    if not since or since < start or count == 0 then return limit, 0 end
    return count < limit and limit - count or 0, start + window - now
  end

  local refund = REFUNDS and function(now, quota, cost, charged_at, reset, since, count)
    if charged_at < since then return since, count end
    return since, max(0, count - cost)
  end

  algorithms.fixed_window =
    { load = load2, admit = admit, figures = figures, refund = refund, save = save2 }
end
