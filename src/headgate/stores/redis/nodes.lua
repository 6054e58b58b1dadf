-- The live nodes of a limiter. Called by nodes.py.
--
-- KEYS
--   nodes    a sorted set: their ids, scored by the time at which they count as dead
-- ARGV
--   now      microseconds, or empty: the server's own time
--   id       of the calling node
--   ttl      microseconds until the node counts as dead without another heartbeat; 0: it leaves
-- Replies the number of live nodes, and how many of them have a smaller id.
local nodes, id, ttl = KEYS[1], ARGV[2], tonumber(ARGV[3])

call('ZREMRANGEBYSCORE', nodes, '-inf', whole(now))
if ttl == 0 then
  call('ZREM', nodes, id)
else
  call('ZADD', nodes, whole(now + ttl), id)
  call('PEXPIRE', nodes, whole(math.ceil(ttl / 1000) + slack))
end
local place, known = 0, call('ZRANGE', nodes, 0, -1)
for i = 1, #known do
  if known[i] < id then place = place + 1 end
end
return {#known, place}
