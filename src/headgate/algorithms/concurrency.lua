-- Concurrency. Twin of concurrency.py. State: total, latest (when the last slot expires), slots.
-- In Redis: a sorted set. A slot is a member `<id>:<cost>:<ttl>`, scored by its expiry. Two more members have negative
-- scores, so they come first: `expires`, the expiry of the key, and `total`, the cost of all slots together. When no
-- slot is left, they go.
-- A ticket of the queue is two members: `<id>:<cost>`, scored by the time of arrival divided by SCALE, and `<id>`, scored
-- by minus its expiry divided by SCALE. SCALE is a power of two, so the scores are exact. They are between 1 and -1, so
-- tickets come after the total and before slots. The id of a request that was given up is a member `<id>:gone`, scored
-- as `<id>` is.
-- Slots is a table: first (when the first slot expires; nil without slots), and the changes for save to make, if any:
--   key    the key, if it exists
--   queue  whether there may be tickets
--   gone   slots have expired: remove them
--   moved  scores and members of slots that were from the future
--   fresh  nothing in the set counts any more: delete it
--   taken  add a slot: at, cost and life are its expiry, cost and time to live
do
  local TICKET, MAX_TICKETS, SCALE = 1000000, 1000, EXACT
  local PAGE = 16 -- tickets to read at a time

  local function cost_of(member)
    return string.match(member, ':(%d+):') + 0
  end

  local function ttl_of(member)
    return string.match(member, '(%d+)$') + 0
  end

  -- Returns a time as the score of a ticket.
  local function scaled(time)
    return format('%.17g', time / SCALE)
  end

  -- Returns whether the ticket of a request is live, or the request was given up just now.
  local function is_live(key, member)
    local score = call('ZSCORE', key, member)
    local expires = score and -score * SCALE
    return expires and now < expires and expires <= now + TICKET
  end

  -- Returns how many tickets are ahead of a request, dead ones included. Without since, the time at which the request
  -- came, those are all tickets.
  local function count_ahead(key, since, cost)
    if not since then return call('ZCOUNT', key, '(0', '(1') end
    local before = call('ZCOUNT', key, '(0', scaled(since))
    local rank = call('ZRANK', key, format('%s:%.0f', slot, cost))
    return rank and min(before, rank - call('ZCOUNT', key, '-inf', '(0')) or before
  end

  -- Returns the cost of the live tickets ahead of a request; if it exceeds room, only that much is certain.
  local function cost_ahead(slots, room, since, cost)
    local key = slots.key
    local count = count_ahead(key, since, cost)
    if count == 0 then return 0 end
    if slots.all_live == nil then
      local live = call('ZCOUNT', key, scaled(-now - TICKET), '(' .. scaled(-now))
      slots.all_live = live == call('ZCOUNT', key, '(-1', '(0')
    end
    if slots.all_live and count > room then return count end -- each costs at least 1
    local sum, from = 0, 0
    while from < count do
      local found = call('ZRANGEBYSCORE', key, '(0', '(1', 'LIMIT', from, min(PAGE, count - from))
      for i = 1, #found do
        local id, other = string.match(found[i], '^(.-):(%d+)$')
        if slots.all_live or is_live(key, id) then
          sum = sum + other
          if sum > room then return sum end
        end
      end
      from = from + PAGE
    end
    return sum
  end

  -- Drops dead tickets, and ids that may be used again.
  local function drop_dead(key)
    local late = call('ZRANGEBYSCORE', key, scaled(-now), '(0')
    local early = call('ZRANGEBYSCORE', key, '(-1', '(' .. scaled(-now - TICKET))
    if #late + #early == 0 then return end
    local dead = {}
    for i = 1, #late do dead[late[i]] = true end
    for i = 1, #early do dead[early[i]] = true end
    local tickets = call('ZRANGEBYSCORE', key, '(0', '(1')
    for i = 1, #tickets do
      if dead[string.match(tickets[i], '^(.-):')] then call('ZREM', key, tickets[i]) end
    end
    for member in pairs(dead) do call('ZREM', key, member) end
  end

  local function load(key)
    local found = try('ZRANGE', key, '0', '2', 'WITHSCORES')
    local name = found[1]
    if not name then return nil end -- of another type, or new
    if name ~= 'expires' and name ~= 'total' then return nil, 0, 0, { key = key, queue = true } end
    if #found ~= 6 then return nil end
    local expires, total, first, queue = -found[2], -found[4], found[6] + 0, nil
    if name == 'total' then expires, total = total, expires end -- the total is larger than the expiry
    if first < 1 then
      queue = true
      first = call('ZRANGEBYSCORE', key, '1', '+inf', 'WITHSCORES', 'LIMIT', '0', '1')[2] + 0
    end
    local last = call('ZRANGE', key, '-1', '-1', 'WITHSCORES')
    return expires, total, last[2] + 0, { key = key, first = first, last = last[1], queue = queue }
  end

  -- Drops expired slots and moves those from the future to now. Returns nil when neither slot nor ticket is left.
  local function current(now, total, latest, slots)
    if not slots.first then return total, latest, slots end
    if slots.first > now and latest - ttl_of(slots.last) <= now then return total, latest, slots end
    local moved, first, last = {}, nil, nil
    local left = call('ZRANGEBYSCORE', slots.key, format('(%.0f', now), '+inf', 'WITHSCORES')
    total, latest = 0, 0
    for i = 1, #left, 2 do
      local member, expires = left[i], left[i + 1] + 0
      local life = ttl_of(member)
      if expires - life > now then
        expires = now + life
        moved[#moved + 1], moved[#moved + 2] = expires, member
      end
      total = total + cost_of(member)
      if not first or expires < first then first = expires end
      if expires >= latest then latest, last = expires, member end
    end
    local queue = slots.queue
    if not first then
      if not queue then return nil end
      return 0, 0, { key = slots.key, queue = queue, gone = true }
    end
    local gone = slots.first <= now
    return total, latest, { key = slots.key, first = first, last = last, gone = gone, moved = moved, queue = queue }
  end

  -- Returns the time at which needed is free at the latest.
  local function free_at(now, needed, slots)
    local times, costs = {}, {}
    local held = call('ZRANGEBYSCORE', slots.key, format('(%.0f', now), '+inf', 'WITHSCORES')
    for i = 1, #held, 2 do
      local expires = held[i + 1] + 0
      if slots.moved then -- moving may have changed the order
        expires = min(expires, now + ttl_of(held[i]))
        times[#times + 1] = expires
        costs[expires] = (costs[expires] or 0) + cost_of(held[i])
      else
        needed = needed - cost_of(held[i])
        if needed <= 0 then return expires end
      end
    end
    table.sort(times)
    for i = 1, #times do
      if i == 1 or times[i] ~= times[i - 1] then needed = needed - costs[times[i]] end
      if needed <= 0 then return times[i] end
    end
  end

  local function admit(now, quota, cost, total, latest, slots)
    local limit, window = quota.limit, quota.window
    if total then total, latest, slots = current(now, total, latest, slots) end
    if not total then -- no slot is left; the old set may stay until it expires unless a slot is taken
      if cost > limit then return NEVER end
      if cost == 0 then return 0 end
      return 0, cost, now + window, { fresh = true, taken = true, cost = cost, at = now + window, life = window }
    end
    if cost == 0 then return 0, total, latest, slots end
    if cost > limit then return NEVER, total, latest, slots end
    local wait = 0
    if total + cost > limit then wait = free_at(now, total + cost - limit, slots) - now end
    if slots.queue then
      local room = limit - total - cost
      local ahead = cost_ahead(slots, room, arrived > 0 and arrived or nil, cost)
      if (ahead > 0 and ahead > room) or is_live(slots.key, slot .. ':gone') then wait = max(wait, TICKET) end
    end
    if wait ~= 0 then return wait, total, latest, slots end
    return 0, total + cost, max(latest, now + window), {
      gone = slots.gone, moved = slots.moved, taken = true, cost = cost, at = now + window, life = window,
      key = slots.key, queue = slots.queue,
    }
  end

  local function figures(now, quota, total, latest, slots)
    if total and not slots.taken then total, latest, slots = current(now, total, latest, slots) end
    if not total then return quota.limit, 0 end
    local remaining, reset = total < quota.limit and quota.limit - total or 0, latest > now and latest - now or 0
    if slots.queue then
      local queued = cost_ahead(slots, remaining)
      if queued > 0 then return max(0, remaining - queued), max(reset, TICKET) end
    end
    return remaining, reset
  end

  local function save(key, expires, is_new, total, latest, slots)
    if slots.fresh then
      call('DEL', key)
      is_new = true -- DEL also removed the expiry
    end
    if slots.gone then call('ZREMRANGEBYSCORE', key, '1', format('%.0f', now)) end
    local moved = slots.moved or {}
    for i = 1, #moved, 2 do call('ZADD', key, format('%.0f', moved[i]), moved[i + 1]) end
    if total == 0 then
      call('ZREM', key, 'expires', 'total') -- only tickets are left
      return
    end
    local cost = format('%.0f', -total)
    if slots.taken then
      if slots.queue then drop_dead(key) end
      local at, member = format('%.0f', slots.at), format('%s:%.0f:%.0f', slot, slots.cost, slots.life)
      if is_new then
        call('ZADD', key, format('%.0f', -expires), 'expires', cost, 'total', at, member)
      else
        call('ZADD', key, cost, 'total', at, member)
      end
    elseif is_new then
      call('ZADD', key, format('%.0f', -expires), 'expires', cost, 'total')
    else
      call('ZADD', key, cost, 'total')
    end
    if is_new then call('PEXPIRE', key, ttl(expires)) end
  end

  -- Lets a key with a ticket live as long as the ticket.
  local function prolong(key)
    local expires = call('ZSCORE', key, 'expires')
    local lasts, is_new = lasting(expires and -expires, TICKET)
    if not expires then
      call('PEXPIRE', key, ttl(lasts))
    elseif is_new and lasts > -expires then
      call('ZADD', key, format('%.0f', -lasts), 'expires')
      call('PEXPIRE', key, ttl(lasts))
    end
  end

  -- Puts a ticket into the queue, or renews it. Does nothing if the queue is full, or the request was given up.
  local function line_up(key, id, cost, since)
    if is_live(key, id .. ':gone') then return end
    local ticket = format('%s:%.0f', id, cost)
    if not call('ZSCORE', key, ticket) then
      drop_dead(key)
      if call('ZCOUNT', key, '(0', '(1') >= MAX_TICKETS then return end
    end
    call('ZADD', key, scaled(since), ticket, scaled(-now - TICKET), id)
    prolong(key)
  end

  -- Takes a ticket out of the queue. Returns whether there was one.
  local function leave(key, id, cost)
    return call('ZREM', key, id, format('%s:%.0f', id, cost)) > 0
  end

  -- Reads a slot with the time of arrival of its request: id, cost, member and time. Nil if it does not wait.
  local function read_waiting(text)
    local member, id, cost, since = string.match(text, '^((.-):(%d+):%d+):(%d+)$')
    if not member then return nil end
    return id, cost + 0, member, since + 0
  end

  local function score_of(key, member)
    local score = try('ZSCORE', key, member)
    return type(score) == 'string' and score + 0
  end

  -- Releases a slot. Returns whether it was held; an expired slot is not held. For a request that waits, this also
  -- takes its ticket out of the queue. If it has neither, its check may be on its way, and will be refused.
  local function release(key, member)
    local expires = score_of(key, member)
    if not expires then
      local id, cost, held = read_waiting(member)
      local kind = id and call('TYPE', key).ok
      if kind ~= 'zset' and kind ~= 'none' then return false end
      local is_queued = leave(key, id, cost)
      member, expires = held, score_of(key, held)
      if not expires then
        if not is_queued then
          drop_dead(key)
          if call('ZCOUNT', key, '(-1', '(0') - call('ZCOUNT', key, '(0', '(1') < MAX_TICKETS then
            call('ZADD', key, scaled(-now - TICKET), id .. ':gone')
            prolong(key)
          end
        end
        return false
      end
    end
    call('ZREM', key, member)
    if call('ZINCRBY', key, format('%.0f', cost_of(member)), 'total') + 0 >= 0 then
      call('ZREM', key, 'expires', 'total') -- without tickets, the key is gone then
    end
    return expires > now
  end

  -- Extends a slot to its time to live from now. Returns whether it was held. For a request that waits and holds no slot
  -- yet, this renews its ticket. Returns whether it was live.
  local function renew(key, member)
    local expires = score_of(key, member)
    if not expires then
      local id, cost, held = read_waiting(member)
      if not id or call('TYPE', key).ok ~= 'zset' then return false end
      member, expires = held, score_of(key, held)
      if not expires then
        if not is_live(key, id) or is_live(key, id .. ':gone') then return false end
        call('ZADD', key, scaled(-now - TICKET), id)
        prolong(key)
        return true
      end
    end
    if expires <= now then return false end
    local life = ttl_of(member)
    local known = -call('ZSCORE', key, 'expires')
    call('ZADD', key, format('%.0f', now + life), member)
    local lasts, is_new = lasting(known, life)
    if is_new and lasts > known then
      call('ZADD', key, format('%.0f', -lasts), 'expires')
      call('PEXPIRE', key, ttl(lasts))
    end
    return true
  end

  -- Puts a ticket into the queue, for a request that was refused in another cluster slot.
  local function queue(key, text)
    local id, cost, _, since = read_waiting(text)
    line_up(key, id, cost, since)
    return true
  end

  algorithms.concurrency = {
    load = load, admit = admit, figures = figures, save = save, release = release, renew = renew, queue = queue,
    line_up = line_up, leave = leave,
  }
end
