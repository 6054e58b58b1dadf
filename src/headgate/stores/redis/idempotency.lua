-- The first answers to idempotency keys that are in another slot than their limits; see idempotency.py.
--
-- KEYS
--   memory   a string: fingerprint, time, claim (its token; - for an answer), and the answer, separated by blanks
-- ARGV
--   now      microseconds, or empty: the server's own time
--   verb     claim: fingerprint, token, microseconds for which the claim is valid
--              replies {0}: claimed; {1, answer}; {2}: another claim is valid; {-1}: the fingerprint differs
--            keep: fingerprint, token, time of the decision, answer   replies nothing; only if its claim is still valid
--            drop: fingerprint, token                                 replies nothing; only if its claim is still valid
--
-- Times are in microseconds. The key gets a time to live.
local IDEMPOTENCY = 300000000
local memory, verb, fingerprint, token = KEYS[1], ARGV[2], ARGV[3], ARGV[4]

local function save(time, claim, answer, life)
  local value = format('%s %.0f %s %s', fingerprint, time, claim, answer)
  call('SET', memory, value, 'PX', whole(math.ceil(life / 1000) + slack))
end

local known, time, claim, answer = string.match(call('GET', memory) or '', '^(%S+) (%S+) (%S+) (.*)$')
if verb == 'claim' then
  local life = tonumber(ARGV[5])
  if known and now - tonumber(time) < (claim == '-' and IDEMPOTENCY or life) then
    if known ~= fingerprint then return { -1 } end
    if claim == '-' then return { 1, answer } end
    return { 2 }
  end
  save(now, token, '', life)
  return { 0 }
end

if claim == token then
  if verb == 'keep' then
    save(tonumber(ARGV[5]), '-', ARGV[6], IDEMPOTENCY)
  else
    call('DEL', memory)
  end
end
return {}
