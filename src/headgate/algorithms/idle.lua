-- Twin of idle.py. Assembled behind the prelude where there may be refunds, which nothing else needs.
REFUNDS = true

-- How long a bucket would have stood idle since charged_at, had cost not been charged: an upper bound.
idle = function(now, quota, cost, charged_at, reset)
  local share, rest = muldiv(cost, quota.window, quota.limit)
  local busy = max(0, reset - 1 - share - (rest > 0 and 1 or 0))
  return max(0, now - charged_at - busy)
end
