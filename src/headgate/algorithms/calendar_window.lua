-- Calendar window. Twin of calendar_window.py. State: start, count. In Redis: a string.
do
  local QUARTER = 900000000

  -- Unpacks the boundaries once per call: see core/calendar.py.
  local function unpacked(quota)
    local packed, window = quota.burst, quota.window - 256 * QUARTER
    local last = packed % 512
    packed = (packed - last) / 512
    local this = packed % 512
    packed = (packed - this) / 512
    local before = packed % 512
    quota.start = (packed - before) / 512 * QUARTER
    quota.before = quota.start - window - before * QUARTER
    quota.following = quota.start + window + this * QUARTER
    quota.last = quota.following + window + last * QUARTER
  end

  -- Returns the start and end of the period that contains now.
  local function period(now, quota)
    if not quota.start then unpacked(quota) end
    local before, start, following, last = quota.before, quota.start, quota.following, quota.last
    if start <= now and now < following then return start, following end
    if before <= now and now < start then return before, start end
    if following <= now and now < last then return following, last end
    local length, from = last - following, last
    if now < before then
      length, from = start - before, before
    end
    local begin = from + floor((now - from) / length) * length
    return begin, begin + length
  end

  local function admit(now, quota, cost, since, count)
    local limit = quota.limit
    local start, finish = period(now, quota)
    if since and since > now then since = start end -- from the future
    local counted = since and since >= start and count or 0
    if cost <= limit - counted then
      if cost == 0 then return 0, since, count end
      return 0, start, counted + cost
    end
    return cost > limit and NEVER or finish - now, since, count
  end

  local function figures(now, quota, since, count)
    local start, finish = period(now, quota)
    if not since or since < start or count == 0 then return quota.limit, 0 end
    return count < quota.limit and quota.limit - count or 0, finish - now
  end

  local refund = REFUNDS and function(now, quota, cost, charged_at, reset, since, count)
    if charged_at < since then return since, count end
    return since, max(0, count - cost)
  end

  algorithms.calendar_window =
    { load = load2, admit = admit, figures = figures, refund = refund, save = save2, period = period }
end
