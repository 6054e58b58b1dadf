-- Fragment of check.lua: requests that wait for a slot. A request that lacks only slots keeps a place in the queue of
-- each of its concurrency limits; any other request has none. See concurrency.lua.
--
-- ARGV: when the request began to wait, in microseconds; 0: now
do
  arguments_each = arguments_each + 1
  request = function()
    arrived = ARGV[at + 1] + 0
    at = at + 1
    local costs, keys, figure = at, key_at, size
    local queues = decide()
    for i = 1, count do
      local wait = reply[figure + 3 * i - 2]
      if wait ~= 0 and limits[i].enforced and (wait == NEVER or not limits[i].twin.line_up) then queues = false end
    end
    for i = 1, count do
      local limit, key, cost = limits[i], KEYS[keys + i], ARGV[costs + i] + 0
      local twin = limit.twin
      if twin.line_up and limit.enforced and cost > 0 then
        if queues then
          twin.line_up(key, slot, cost, arrived > 0 and arrived or now)
        elseif arrived > 0 then
          twin.leave(key, slot, cost)
        end
        local place, _, a, b, c, d = figure + 3 * i, twin.load(key)
        reply[place - 1], reply[place] = twin.figures(now, limit, a, b, c, d)
      end
    end
  end
end
