-- Decides groups of checks, each all or nothing. Assembled behind the algorithms; see script.py.
--
-- KEYS, in the order of the groups:
--   per group: the idempotency key if it has one, then a key per check
-- ARGV, all whole numbers unless said otherwise:
--   now                      microseconds, or empty: the server's own time
--   quotas                   how many follow
--   per quota:               algorithm (text), limit, window in microseconds, burst
--   per group:               4 * checks + mode; mode 0 charges, 1 peeks, 2 charges once, 3 refunds
--     of mode 2:             fingerprint (text)
--     per check:             quota (its place in the list above; of a shadow negative), cost
--       of mode 3:           when it was charged, microseconds
-- Reply, flat, all integers:
--   per group:               now; -1 when the fingerprint differs from the one remembered: then nothing follows
--     per check:             wait, remaining, reset; nothing of mode 3
--
-- Times are in microseconds. Every key that is written gets a time to live.

local IDEMPOTENCY = 300000000
local SLACK = 1000 -- milliseconds that a key outlives its meaning
local argument, key_index = 0, 0

local function next_argument()
  argument = argument + 1
  return ARGV[argument]
end

local function next_key()
  key_index = key_index + 1
  return KEYS[key_index]
end

local now = tonumber(next_argument())
if now then
  SLACK = 3600000 -- a clock of the caller's own may run slower than ours, by which keys expire
else
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

local quotas = {}
for i = 1, tonumber(next_argument()) do
  quotas[i] = {
    algorithm = algorithms[next_argument()],
    limit = tonumber(next_argument()),
    window = tonumber(next_argument()),
    burst = tonumber(next_argument()),
  }
end

local reply, replies = {}, 0
local function answer(value)
  replies = replies + 1
  reply[replies] = value
end

-- Reads the checks of a group and asks each whether it fits. Returns them, and whether one refuses them all.
local function ask(count)
  local checks, refused = {}, false
  for i = 1, count do
    local place = tonumber(next_argument())
    local check = { key = next_key(), quota = quotas[abs(place)], cost = tonumber(next_argument()) }
    local algorithm = check.quota.algorithm
    check.before = algorithm.load(check.key)
    check.wait, check.state = algorithm.admit(check.before, now, check.quota, check.cost)
    if check.wait ~= 0 and place > 0 then refused = true end
    checks[i] = check
  end
  return checks, refused
end

-- Keeps the states that fitted, unless nobody is to be charged, and answers.
local function conclude(checks, refused, peek)
  for i = 1, #checks do
    local check = checks[i]
    local algorithm, state = check.quota.algorithm, check.state
    if peek or (refused and check.wait == 0) then state = check.before end
    local remaining, reset = algorithm.figures(state, now, check.quota)
    if state and state ~= check.before then
      algorithm.save(check.key, state, ceil(reset / 1000) + SLACK)
    end
    answer(check.wait)
    answer(remaining)
    answer(reset)
  end
end

local function replay(remembered, fingerprint)
  local known, figures = match(remembered, '^(%S+) (.*)$')
  if known ~= fingerprint then
    answer(-1)
    return
  end
  for figure in string.gmatch(figures, '%-?%d+') do
    answer(tonumber(figure))
  end
end

local function decide_once(count)
  local fingerprint, memory = next_argument(), next_key()
  local remembered = call('GET', memory)
  if remembered and now - tonumber(match(remembered, '^%S+ (%d+)')) < IDEMPOTENCY then
    argument, key_index = argument + 2 * count, key_index + count
    return replay(remembered, fingerprint)
  end
  local from = replies + 1
  answer(now)
  conclude(ask(count))
  local figures = { fingerprint }
  for i = from, replies do
    figures[#figures + 1] = format('%.0f', reply[i])
  end
  call('SET', memory, table.concat(figures, ' '), 'PX', IDEMPOTENCY / 1000 + SLACK)
end

local function refund(count)
  for _ = 1, count do
    local quota, key = quotas[abs(tonumber(next_argument()))], next_key()
    local cost, charged_at = tonumber(next_argument()), tonumber(next_argument())
    local algorithm = quota.algorithm
    local before = algorithm.load(key)
    if before then
      local state = algorithm.refund(before, now, quota, cost, charged_at)
      if state ~= before then algorithm.save(key, state, max(1, call('PTTL', key))) end
    end
  end
end

while argument < #ARGV do
  local header = tonumber(next_argument())
  local mode = header % 4
  local count = (header - mode) / 4
  if mode == 2 then
    decide_once(count)
  else
    answer(now)
    if mode == 3 then
      refund(count)
    else
      local checks, refused = ask(count)
      conclude(checks, refused, mode == 1)
    end
  end
end

return reply
