-- Releases or renews slots. Appended to the prelude and concurrency.lua; see concurrency.py.
--
-- KEYS: for each slot, the key that holds it
-- ARGV
--   now      microseconds, or empty: the server's own time
--   verb     release or renew
--   per key: the slot, as in concurrency.lua: <id>:<cost>:<ttl>
-- Reply: for each slot, 1 if it was held and had not expired, else 0.
local change, reply = algorithms.concurrency[ARGV[2]], {}
for i = 1, #KEYS do reply[i] = change(KEYS[i], ARGV[2 + i]) and 1 or 0 end
return reply
