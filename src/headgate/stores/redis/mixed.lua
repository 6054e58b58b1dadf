-- Decides checks under one quota, each by itself, of several slots that one server of a cluster has: what plain.lua
-- does where slots do not matter. Assembled behind the one algorithm; see script.py.
--
-- A command may name keys of one slot only, and so it names the first; a script may reach whatever its server has. A
-- key that is elsewhere, or about to go, is left alone and told of. What cannot be decided must be known before anything
-- is written: so only algorithms take part whose state is written by one command.
--
-- KEYS: that of the first check
-- ARGV, all whole numbers unless said otherwise:
--   now                      microseconds, or empty: the server's own time
--   limit, window in microseconds, burst
--   cost                     of each check; 0: they differ
--   keys (text)              one per check
--   costs                    one per check, if they differ
-- Reply, flat, all integers:
--   now
--   per check:               wait, remaining, reset; a wait of -2: it was not decided
--
-- Times are in microseconds. Every key that is written gets a time to live.

local ELSEWHERE = -2
local _, twin = next(algorithms)
local load, admit, figures, save = twin.load, twin.admit, twin.figures, twin.save
local quota = { limit = ARGV[2] + 0, window = ARGV[3] + 0, burst = ARGV[4] + 0 }
local cost, count = ARGV[5] + 0, #ARGV - 5
local differ = cost == 0
if differ then count = count / 2 end
local reply, size = { now, 0, 0, 0 }, 1
for i = 6, 5 + count do
  local key = ARGV[i]
  if differ then cost = ARGV[i + count] + 0 end
  local wait, remaining, reset = ELSEWHERE, 0, 0
  local expires, a, b, c, d, found = load(key)
  if expires or type(found) ~= 'table' then -- else it is an error, most likely of the key's being elsewhere
    local new_a, new_b, new_c, new_d
    wait, new_a, new_b, new_c, new_d = admit(now, quota, cost, a, b, c, d)
    remaining, reset = figures(now, quota, new_a, new_b, new_c, new_d)
    if new_a and (new_a ~= a or new_b ~= b or new_c ~= c or new_d ~= d) then
      local is_new
      expires, is_new = lasting(expires, reset)
      save(key, expires, is_new, new_a, new_b, new_c, new_d)
    end
  end
  reply[size + 1], reply[size + 2], reply[size + 3] = wait, remaining, reset
  size = size + 3
end

return reply
