-- Force: charge a cost even if it does not fit. Twin of force.py. Appended to the algorithms in the script that settles
-- reservations; see stores/redis/adjust.lua.
--
-- forces[algorithm](now, quota, cost, ...) -> ...      where ... is a state, as in prelude.lua
local forces = {}
do
  local MAX_COUNT = 4503599627370496
  local MAX_REFILL = 3153600000000000

  -- The largest debt of a bucket, in units. Numbers above 2^53 are inexact, but then the smaller one is used anyway.
  local function most_debt(quota)
    local largest = min(MAX_COUNT, EXACT - 1 - quota.burst)
    if MAX_REFILL / quota.window * quota.limit >= 2 * MAX_COUNT then return largest end
    return min(largest, (muldiv(MAX_REFILL, quota.limit, quota.window)))
  end

  function forces.fixed_window(now, quota, cost, since, count)
    local start = now - now % quota.window
    return start, min(MAX_COUNT, (since and since >= start and count or 0) + cost)
  end

  function forces.calendar_window(now, quota, cost, since, count)
    local start = algorithms.calendar_window.period(now, quota)
    return start, min(MAX_COUNT, (since and since >= start and count or 0) + cost)
  end

  function forces.sliding_window_counter(now, quota, cost, since, counted, before)
    local window = quota.window
    local start = now - now % window
    local current, previous = 0, 0
    if since then
      if since > now then -- from the future
        current = min(quota.limit, counted + before)
      elseif since >= start then
        current, previous = counted, before
      elseif since >= start - window then
        previous = counted
      end
    end
    return start, min(MAX_COUNT, current + cost), previous
  end

  function forces.sliding_window_log(now, quota, cost, newest, newest_cost, total, log)
    local twin = algorithms.sliding_window_log
    local stamp = twin.stamp(now, quota)
    if newest then
      local _
      _, newest, newest_cost, total, log = twin.admit(now, quota, 0, newest, newest_cost, total, log) -- as of now
    end
    if not newest then
      cost = min(MAX_COUNT, cost)
      return stamp, cost, cost, { oldest = stamp, fresh = true }
    end
    cost = max(0, min(MAX_COUNT - total, cost))
    if cost == 0 then return newest, newest_cost, total, log end
    return stamp, newest == stamp and newest_cost + cost or cost, total + cost, log
  end

  function forces.token_bucket(now, quota, cost, tokens, part, last)
    if tokens then
      tokens, part = algorithms.token_bucket.refund(now, quota, 0, now, 0, tokens, part, last) -- as of now
    else
      tokens, part = quota.burst, 0
    end
    return max(-most_debt(quota), tokens - cost), part, now
  end

  function forces.leaky_bucket(now, quota, cost, level, part, last, owes)
    if level then
      level, part = algorithms.leaky_bucket.refund(now, quota, 0, now, 0, level, part, last, owes) -- as of now
    else
      level, part = 0, 0
    end
    level = min(quota.burst + most_debt(quota), level + cost)
    return level, part, now, level >= quota.burst and 1 or nil
  end

  function forces.gcra(now, quota, cost, tat, part, since)
    local limit, window = quota.limit, quota.window
    local _
    _, tat, part = algorithms.gcra.admit(now, quota, 0, tat, part, since) -- reduced to the capacity
    local ahead = 0
    if tat and tat >= now then
      ahead, part = tat - now, min(part, limit - 1)
    else
      part = 0
    end
    local largest = quota.refill + MAX_REFILL
    if cost / limit * window > 2 * MAX_REFILL then return now + largest, 0, now end
    local step, step_part = muldiv(cost, window, limit)
    ahead = ahead + step
    if part >= limit - step_part then
      ahead, part = ahead + 1, part - (limit - step_part)
    else
      part = part + step_part
    end
    if ahead >= largest then ahead, part = largest, 0 end
    return now + ahead, part, ahead >= quota.refill and now or nil
  end
end
