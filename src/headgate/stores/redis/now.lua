-- The time, for scripts that are one file. Comes before them; see script.py. ARGV[1] is the time in microseconds, or
-- empty: the server's own time.
local call, format = redis.call, string.format
local slack = 1000 -- milliseconds for which a key outlives its meaning
local now = tonumber(ARGV[1])
if now then
  slack = 3600000 -- the caller's clock may run slower than Redis's, by which keys expire
else
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

-- Returns a whole number as text.
local function whole(number) return format('%.0f', number) end

