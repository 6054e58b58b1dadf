-- Groups with a penalty: whose client may be blocked. Part of the script of calls that have such; see script.py.
-- Twin of ../penalty.py, and of what memory.py does with it.
--
-- KEYS, before those of the group's checks:
--   block       a string: when it ends, its length, and the rule whose refusal began it
--   violations  a sorted set: numbers in the order of recording, by the time of each
-- ARGV, before those of the group's checks:
--   terms       text: detection window in microseconds, threshold, multipliers, with blanks between
--   per check   its rule (text)
-- Reply, after now:
--   left        0: the client is not blocked, and the checks' figures follow as ever.
--               Above 0: the time until the block ends that this refusal began; the figures follow, then the rule.
--               Below 0: minus that time, of a block that stood already; the rule follows, and no figures.
--
-- A violation (7) by a refusal that was decided elsewhere: KEYS are the same two, ARGV the terms, then window and rule of
-- the check that refused. Reply: left, 0 or the time until the block ends that it began or that stood already; then, the
-- rule.
do
  local MAX_VIOLATIONS = 1000
  local MAX_BLOCK = 3153600000000000

  local function save_block(key, ends, length, rule)
    call('SET', key, pack('<dd', ends, length) .. rule, 'PX', ttl(ends + slack))
  end

  -- The time until the client's block ends, and its rule; 0 when there is none. A peek changes nothing.
  local function look(key, peek)
    local value = call('GET', key)
    if not value then return 0 end
    local ends, length = unpack('<dd', value)
    local rule = string.sub(value, 17)
    local left = ends - now
    if left > length then -- the clock went back
      left = length
      if not peek then save_block(key, now + left, length, rule) end
    end
    return left, rule
  end

  -- Records a violation. How many there are now within the detection window.
  local function record(key, detection)
    local newest = call('ZRANGE', key, -1, -1, 'WITHSCORES')
    local number = 0
    if newest[1] then
      number = tonumber(newest[1]) + 1
      if tonumber(newest[2]) > now then -- the clock went back
        local future = call('ZRANGE', key, '(' .. string.format('%d', now), '+inf', 'BYSCORE')
        for i = 1, #future do call('ZADD', key, now, future[i]) end
      end
      call('ZREMRANGEBYSCORE', key, '-inf', now - detection)
    end
    call('ZADD', key, now, string.format('%016d', number)) -- of one length, so that equal times stay in order
    call('ZREMRANGEBYRANK', key, 0, -1 - MAX_VIOLATIONS)
    call('PEXPIRE', key, ttl(now + detection + slack))
    return call('ZCARD', key)
  end

  -- How long a client is blocked at this many violations; 0 when it is not.
  local function block_length(violations, window, terms)
    local step = violations - terms[2]
    if step < 0 then return 0 end
    return min(window * terms[min(3 + step, #terms)], MAX_BLOCK)
  end

  -- Which of the checks just decided binds: enforced, refused, with the longest wait; nil when there is none.
  local function binding(count, argument, figure)
    local found, longest, least, latest
    for i = 1, count do
      local place, cost = tonumber(ARGV[argument + 2 * i - 1]), tonumber(ARGV[argument + 2 * i])
      local wait, remaining, reset = reply[figure + 3 * i - 2], reply[figure + 3 * i - 1], reply[figure + 3 * i]
      if wait == NEVER then wait = math.huge end
      if wait ~= 0 and place > 0 and cost > 0 then -- a cost of 0 only looks
        if not found or wait > longest
          or (wait == longest and (remaining < least or (remaining == least and reset > latest))) then
          found, longest, least, latest = i, wait, remaining, reset
        end
      end
    end
    return found
  end

  -- Records a violation by a check of this rule and window, and begins the block if there is to be one: its length, or 0.
  local function begin(block, violations, text, window, rule)
    local terms = {}
    for term in string.gmatch(text, '%d+') do terms[#terms + 1] = tonumber(term) end
    local length = block_length(record(violations, terms[1]), window, terms)
    if length > 0 then save_block(block, now + length, length, rule) end
    return length
  end

  decide_penalised = function(count, peek)
    local block, violations = KEYS[key_at + 1], KEYS[key_at + 2]
    local first = at + 1 -- where the terms are, and the rules behind them
    at, key_at = first + count, key_at + 2
    local left, rule = look(block, peek)
    if left > 0 then
      at, key_at = at + 2 * count, key_at + count
      reply[size + 1], reply[size + 2] = -left, rule
      size = size + 2
      return
    end
    size = size + 1
    reply[size] = 0
    local argument, figure = at, size
    decide(count, peek)
    local bound = not peek and binding(count, argument, figure)
    if not bound then return end
    local quota = quotas[tonumber(ARGV[argument + 2 * bound - 1])]
    rule = ARGV[first + bound]
    local length = begin(block, violations, ARGV[first], quota.window, rule)
    if length > 0 then
      size = size + 1
      reply[figure], reply[size] = length, rule
    end
  end

  violate = function()
    local block, violations = KEYS[key_at + 1], KEYS[key_at + 2]
    local terms, window, rule = ARGV[at + 1], tonumber(ARGV[at + 2]), ARGV[at + 3]
    at, key_at = at + 3, key_at + 2
    local left, known = look(block)
    if left > 0 then
      rule = known -- a check while blocked is no violation
    else
      left = begin(block, violations, terms, window, rule)
    end
    size = size + 1
    reply[size] = left
    if left > 0 then
      size = size + 1
      reply[size] = rule
    end
  end
end
