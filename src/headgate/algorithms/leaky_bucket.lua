-- Leaky bucket. Twin of leaky_bucket.py. State: level, part (in 1/window), last; of a debt also 1.
-- In Redis: a string of them.
do
  local function load(key)
    local value = try('GET', key)
    if type(value) ~= 'string' then return nil end
    if #value == 24 then
      local level, part, last = unpack('<ddd', value)
      return { level, part, last }
    end
    if #value == 32 then
      local level, part, last = unpack('<dddd', value)
      return { level, part, last, 1 }
    end
  end

  local function save(key, state, ttl)
    if not state[4] then return save3(key, state, ttl) end
    call('SET', key, pack('<dddd', state[1], state[2], state[3], 1), 'PX', ttl)
  end

  -- Level and part, now.
  local function drained(state, now, quota)
    if not state then return 0, 0 end
    local window, burst = quota.window, quota.burst
    local level, part = state[1], min(state[2], window - 1)
    if now > state[3] then
      local leaked, leaked_part = muldiv(now - state[3], quota.limit, window)
      level, part = level - leaked, part - leaked_part
      if part < 0 then level, part = level - 1, part + window end
      if level < 0 then return 0, 0 end
    end
    if level < burst or state[4] then return level, part end
    return burst, 0
  end

  -- The time until level and part have drained.
  local function until_(level, part, quota)
    local limit = quota.limit
    if level > quota.burst and level / limit * quota.window >= LONGEST then return LONGEST end
    local quotient, remainder = muldiv(level, quota.window, limit)
    local rest = part % limit
    quotient = quotient + (part - rest) / limit
    if rest > limit - remainder then return quotient + 2 end
    return (rest > 0 or remainder > 0) and quotient + 1 or quotient
  end

  local function admit(state, now, quota, cost)
    local level, part = drained(state, now, quota)
    local burst = quota.burst
    local full = part > 0 and level + 1 or level
    if cost <= burst - full then
      return 0, cost > 0 and { level + cost, part, now } or state
    end
    if state and (state[3] > now or state[1] >= burst) then
      state = { level, part, now, state[4] } -- from the future, or from a larger burst
    end
    return cost > burst and NEVER or until_(cost - (burst - level), part, quota), state
  end

  local function figures(state, now, quota)
    local level, part = drained(state, now, quota)
    return max(0, quota.burst - level - (part > 0 and 1 or 0)), until_(level, part, quota)
  end

  local function refund(state, now, quota, cost, charged_at, reset)
    local level, part = drained(state, now, quota)
    local window = quota.window
    local lost, lost_part = muldiv(idle(now, quota, cost, charged_at, reset), quota.limit, window)
    if cost > lost or (cost == lost and lost_part == 0) then
      level, part = level - (cost - lost), part + lost_part
      if part >= window then level, part = level + 1, part - window end
    end
    if level < 0 then return { 0, 0, now } end
    return { level, part, now, state[4] }
  end

  algorithms.leaky_bucket =
    { load = load, admit = admit, figures = figures, refund = refund, save = save }
end
