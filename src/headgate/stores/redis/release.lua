-- Releases or renews slots, or puts requests that wait for one into the queue. Appended to the prelude and concurrency.lua; see concurrency.py.
--
-- KEYS: for each slot, the key that holds it
-- ARGV
--   now      microseconds, or empty: the server's own time
--   verb     release, renew or queue
--   per key: the slot, as in concurrency.lua: <id>:<cost>:<ttl>, and if a request waits for it, :<time of arrival>
-- Reply: for each slot, 1 if it was held and had not expired, else 0; for a renewal also 1 if its ticket was live.
local change, reply = algorithms.concurrency[ARGV[2]], {}
for i = 1, #KEYS do reply[i] = change(KEYS[i], ARGV[2 + i]) and 1 or 0 end
return reply
