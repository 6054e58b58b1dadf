-- Decides requests with the same limits: each request separately, all of its limits or none. Only this code admits
-- requests. Appended to the algorithms, with fragments for the extras of requests; see script.py.
--
-- KEYS, per request: those of its fragments, then one per limit
-- ARGV:
--   now         microseconds, or empty: the server's own time
--   peek        1: nothing is charged; 0
--   limits      how many a request has
--   per limit:  algorithm (text), limit, window in microseconds, burst, and whether it is enforced (1, 0)
--   per request: arguments of its fragments, then a cost per limit; or, once for all requests, a cost per limit
-- Reply, flat:
--   now
--   per request: figures of its fragments around wait, remaining and reset of each limit
--
-- A fragment wraps `request`, which decides the next one, and adds to the keys, arguments and figures of a request.
-- Those of the outermost fragment come first:
--   check_slot.lua          names the slot for concurrency limits
--   check_reservation.lua   tracks what buckets are charged for a reservation
--   check_idempotency.lua   replays the first answer to an idempotency key
--   check_undo_once.lua     undoes what was charged under an idempotency key
--   check_penalty.lua       refuses blocked clients, and blocks clients that are refused too often
--   check_undo.lua          undoes charges
--   check_wait.lua          queues requests that wait for a slot
--
-- If the next request has the same key for a limit, as with a rule for all requests, its state is carried there instead
-- of saving and loading it. Only states that are plain numbers are carried, and only in calls without fragments.
--
-- Times are in microseconds. Every key that is written gets a time to live.

local peek, count = ARGV[2] == '1', ARGV[3] + 0
local at, key_at, size = 3, 0, 1 -- how far ARGV and KEYS have been read, and the reply is written
local limits = {}
for i = 1, count do
  local twin = algorithms[ARGV[at + 1]]
  limits[i] = {
    twin = twin,
    load = twin.load,
    admit = twin.admit,
    figures = twin.figures,
    save = twin.save,
    limit = ARGV[at + 2] + 0,
    window = ARGV[at + 3] + 0,
    burst = ARGV[at + 4] + 0,
    enforced = ARGV[at + 5] == '1',
  }
  at = at + 5
end
local is_shared = #ARGV == at + count -- one cost per limit, for all requests
if is_shared then
  for i = 1, count do limits[i].price = ARGV[at + i] + 0 end
end
local costs_each = is_shared and 0 or count
local keys_each, arguments_each, figures_each = count, costs_each, 3 * count -- per request
local reservation = 0 -- the number of the request's
local reply = { now }

-- Decides the next request: limit i and the following ones. Returns whether an enforced one refuses.
local function decide(i, refused)
  i = i or 1
  local limit, key, place = limits[i], KEYS[key_at + i], size + 3 * i
  local admit, figures = limit.admit, limit.figures
  local cost = is_shared and limit.price or ARGV[at + i] + 0
  local is_carried, expires, a, b, c, d = limit.is_carried, nil, nil, nil, nil, nil
  if is_carried then
    expires, a, b, c, d = limit.expires, limit.a, limit.b, limit.c, limit.d
  else
    expires, a, b, c, d = limit.load(key)
  end
  if held then touch_held(key, limit, limit.twin, a, b, c, d) end
  local wait, new_a, new_b, new_c, new_d = admit(now, limit, cost, a, b, c, d)
  if wait ~= 0 and limit.enforced then refused = true end
  if i < count then
    reply[place - 2], reply[place - 1], reply[place] = 0, 0, 0 -- so that the list grows in order
    refused = decide(i + 1, refused)
  end
  if peek or (refused and wait == 0) then new_a, new_b, new_c, new_d = a, b, c, d end
  local remaining, reset = figures(now, limit, new_a, new_b, new_c, new_d)
  local is_changed = new_a and (new_a ~= a or new_b ~= b or new_c ~= c or new_d ~= d)
  if is_carried then
    is_changed = is_changed or limit.is_changed
    limit.is_carried = false
  end
  if limit.carries and KEYS[key_at + count + i] == key then
    limit.is_carried, limit.is_changed, limit.expires = true, is_changed, expires
    limit.a, limit.b, limit.c, limit.d = new_a, new_b, new_c, new_d
  elseif is_changed then
    local is_new
    expires, is_new = lasting(expires, reset)
    if reservation > 0 and wait == 0 and limit.twin.level then
      if not held then begin_held() end
      open_held(key, limit, limit.twin, reservation, reset, new_a, new_b, new_c, new_d)
      is_new = true
    end
    limit.save(key, expires, is_new, new_a, new_b, new_c, new_d)
  end
  reply[place - 2], reply[place - 1], reply[place] = wait, remaining, reset
  if i == 1 then
    at, key_at, size = at + costs_each, key_at + count, size + 3 * count
  end
  return refused
end

local request = decide
if count == 0 then request = function() end end

-- FRAGMENTS

if request == decide then
  for i = 1, count do limits[i].carries = limits[i].save == save2 or limits[i].save == save3 end
end
local keys = #KEYS
while key_at < keys do request() end

return reply
