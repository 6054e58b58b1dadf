-- Decides checks under one quota, each by itself: what check.lua does with groups of one check that charges and is
-- enforced. Assembled behind the one algorithm; see script.py.
--
-- KEYS: one per check
-- ARGV, all whole numbers:
--   now                      microseconds, or empty: the server's own time
--   limit, window in microseconds, burst
--   cost                     one per check; or a single one, of each
-- Reply, flat, all integers:
--   now
--   per check:               wait, remaining, reset
--
-- Times are in microseconds. Every key that is written gets a time to live.

local _, twin = next(algorithms)
local load, admit, figures, save = twin.load, twin.admit, twin.figures, twin.save
local quota = { limit = ARGV[2] + 0, window = ARGV[3] + 0, burst = ARGV[4] + 0 }
local cost, differ = ARGV[5] + 0, ARGV[6]
local reply, size = { now, 0, 0, 0 }, 1 -- with room for the first
for i = 1, #KEYS do
  local key = KEYS[i]
  if differ then cost = ARGV[4 + i] + 0 end
  local expires, a, b, c, d = load(key)
  if held then touch_held(key, quota, twin, a, b, c, d) end
  local wait, new_a, new_b, new_c, new_d = admit(now, quota, cost, a, b, c, d)
  local remaining, reset = figures(now, quota, new_a, new_b, new_c, new_d)
  if new_a and (new_a ~= a or new_b ~= b or new_c ~= c or new_d ~= d) then
    local is_new
    expires, is_new = lasting(expires, reset)
    save(key, expires, is_new, new_a, new_b, new_c, new_d)
  end
  reply[size + 1], reply[size + 2], reply[size + 3] = wait, remaining, reset
  size = size + 3
end

return reply
