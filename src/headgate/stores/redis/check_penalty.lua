-- Fragment of check.lua: requests with a penalty, whose client may be blocked. Twin of ../penalty.py.
--
-- KEYS:
--   block       a string: its end, its length, and the rule whose refusal started it
--   violations  a sorted set: numbers in order of recording, scored by time
-- ARGV:
--   terms       text: detection window in microseconds, threshold, multipliers, separated by blanks
--   window      of the limit that refused the request in another slot; empty: none did
--   rule        of that limit
--   per limit:  its rule (text)
-- Reply:
--   left        0: the client is not blocked. Above 0: the time until the end of the block that this refusal started.
--               Below 0: minus the remaining time of an earlier block; then the figures of the limits mean nothing
--   and after the figures of the limits: the rule of the block, or empty
do
  local MAX_VIOLATIONS = 1000
  local MAX_BLOCK = 3153600000000000

  local function save_block(key, ends, length, rule)
    call('SET', key, pack('<dd', ends, length) .. rule, 'PX', ttl(ends + slack))
  end

  -- Returns the time until the client's block ends, and its rule; 0 if there is none. A peek changes nothing.
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

  -- Records a violation. Returns how many there are now within the detection window.
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
    call('ZADD', key, now, string.format('%016d', number)) -- of equal length, so that equal times stay in order
    call('ZREMRANGEBYRANK', key, 0, -1 - MAX_VIOLATIONS)
    call('PEXPIRE', key, ttl(now + detection + slack))
    return call('ZCARD', key)
  end

  -- Returns how long this many violations block a client; 0 if they do not.
  local function block_length(violations, window, terms)
    local step = violations - terms[2]
    if step < 0 then return 0 end
    return min(window * terms[min(3 + step, #terms)], MAX_BLOCK)
  end

  -- Returns the binding limit of the request just decided: enforced, refused, with the longest wait; nil if none.
  local function binding(costs, figure)
    local found, longest, least, latest
    for i = 1, count do
      local wait, remaining, reset = reply[figure + 3 * i - 2], reply[figure + 3 * i - 1], reply[figure + 3 * i]
      if wait == NEVER then wait = math.huge end
      if wait ~= 0 and limits[i].enforced and ARGV[costs + i] ~= '0' then -- a cost of 0 only reads
        if not found or wait > longest
          or (wait == longest and (remaining < least or (remaining == least and reset > latest))) then
          found, longest, least, latest = i, wait, remaining, reset
        end
      end
    end
    return found
  end

  -- Records a violation of a rule with this window, and starts a block if one is due. Returns its length, or 0.
  local function begin(block, violations, text, window, rule)
    local terms = {}
    for term in string.gmatch(text, '%d+') do terms[#terms + 1] = tonumber(term) end
    local length = block_length(record(violations, terms[1]), window, terms)
    if length > 0 then save_block(block, now + length, length, rule) end
    return length
  end

  local decide_unblocked, keys_of_limits, arguments_of_limits = request, keys_each, arguments_each
  keys_each, arguments_each, figures_each = keys_each + 2, arguments_each + 3 + count, figures_each + 2
  request = function()
    local block, violations = KEYS[key_at + 1], KEYS[key_at + 2]
    local terms, window, rule, rules, first = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], at + 3, size + 1
    at, key_at, size = at + 3 + count, key_at + 2, first
    local left, known = look(block, peek)
    reply[first] = 0
    if left > 0 then
      reply[first] = -left
      for i = 1, 3 * count do reply[size + i] = 0 end
      at, key_at, size = at + arguments_of_limits, key_at + keys_of_limits, size + 3 * count + 1
      reply[size] = known
      return
    end
    local costs = at
    decide_unblocked()
    local bound = not peek and binding(costs, first)
    if bound then window, rule = limits[bound].window, ARGV[rules + bound] end
    size = size + 1
    reply[size] = ''
    if window ~= '' then
      reply[first] = begin(block, violations, terms, window + 0, rule)
      if reply[first] > 0 then reply[size] = rule end
    end
  end
end
