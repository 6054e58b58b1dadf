-- Decides groups of checks, each all or nothing. Assembled behind the algorithms; see script.py.
--
-- KEYS, in the order of the groups:
--   per group: the idempotency key if it has one, those of its client if it has a penalty, then a key per check
-- ARGV, all whole numbers unless said otherwise:
--   now                      microseconds, or empty: the server's own time
--   quotas                   how many follow
--   per quota:               algorithm (text), limit, window in microseconds, burst
--   per group:               8 * checks + mode; mode 0 charges, 1 peeks, 2 charges once, 3 refunds; with a
--                            penalty (penalty.lua) 4 more
--     of mode 2 and 6:       fingerprint (text)
--     of mode 4, 5 and 6:    terms, and a rule per check: see penalty.lua
--     per check:             quota (its place in the list above; of a shadow negative), cost
--       of mode 3:           when it was charged, and the reset that was answered then
-- Reply, flat, all integers:
--   per group:               now; -1 when the fingerprint differs from the one remembered: then nothing follows
--     per check:             wait, remaining, reset; nothing of mode 3; of mode 4, 5 and 6 see penalty.lua
--
-- Times are in microseconds. Every key that is written gets a time to live.

local IDEMPOTENCY = 300000000
local slack = 1000 -- milliseconds that a key outlives its meaning
local now = tonumber(ARGV[1])
if now then
  slack = 3600000 -- a clock of the caller's own may run slower than ours, by which keys expire
else
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

local quotas = {}
local at, key_at = 2, 0 -- how far ARGV and KEYS have been read
for i = 1, tonumber(ARGV[2]) do
  quotas[i] = {
    twin = algorithms[ARGV[at + 1]],
    limit = tonumber(ARGV[at + 2]),
    window = tonumber(ARGV[at + 3]),
    burst = tonumber(ARGV[at + 4]),
  }
  at = at + 4
end

local reply, size = {}, 0
local decide_penalised -- penalty.lua's; without it, no group has a penalty

-- Decides a group: asks each check whether it fits, keeps the states if all do, and answers.
local function decide(count, peek)
  local checks, refused = {}, false
  for i = 1, count do
    local place, cost = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
    local key = KEYS[key_at + 1]
    at, key_at = at + 2, key_at + 1
    local quota = quotas[abs(place)]
    local before = quota.twin.load(key)
    local wait, state = quota.twin.admit(before, now, quota, cost)
    if wait ~= 0 and place > 0 then refused = true end
    checks[i] = { key, quota, before, wait, state }
  end
  for i = 1, count do
    local check = checks[i]
    local key, quota, before, wait, state = check[1], check[2], check[3], check[4], check[5]
    if peek or (refused and wait == 0) then state = before end
    local remaining, reset = quota.twin.figures(state, now, quota)
    if state and state ~= before then
      quota.twin.save(key, state, format('%d', ceil(reset / 1000) + slack))
    end
    reply[size + 1], reply[size + 2], reply[size + 3] = wait, remaining, reset
    size = size + 3
  end
end

-- Decides a group of one check, which is most of them: the same, without a list.
local function decide_one()
  local quota, cost, key = quotas[abs(tonumber(ARGV[at + 1]))], tonumber(ARGV[at + 2]), KEYS[key_at + 1]
  at, key_at = at + 2, key_at + 1
  local twin = quota.twin
  local before = twin.load(key)
  local wait, state = twin.admit(before, now, quota, cost)
  local remaining, reset = twin.figures(state, now, quota)
  if state and state ~= before then
    twin.save(key, state, format('%d', ceil(reset / 1000) + slack))
  end
  reply[size + 1], reply[size + 2], reply[size + 3] = wait, remaining, reset
  size = size + 3
end

-- Decides a group unless its idempotency key is remembered: then gives the first answer again.
local function decide_once(count, decided)
  local fingerprint, memory = ARGV[at + 1], KEYS[key_at + 1]
  at, key_at = at + 1, key_at + 1
  local known, answers = string.match(call('GET', memory) or '', '^(%S+) (.*)$')
  answers = known and cmsgpack.unpack(answers)
  if known and now - answers[1] < IDEMPOTENCY then
    at, key_at = at + 2 * count, key_at + count
    if decided == decide_penalised then at, key_at = at + 1 + count, key_at + 2 end
    for _, answer in ipairs(known == fingerprint and answers or { -1 }) do
      size = size + 1
      reply[size] = answer
    end
    return
  end
  local first = size + 1
  size = first
  reply[first] = now
  decided(count)
  answers = {}
  for i = first, size do answers[#answers + 1] = reply[i] end
  call('SET', memory, fingerprint .. ' ' .. cmsgpack.pack(answers), 'PX', IDEMPOTENCY / 1000 + slack)
end

local function refund(count)
  for _ = 1, count do
    local quota, key = quotas[abs(tonumber(ARGV[at + 1]))], KEYS[key_at + 1]
    local before = quota.twin.load(key)
    if before then
      local cost, charged_at, reset = tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4])
      local state = quota.twin.refund(before, now, quota, cost, charged_at, reset)
      if state ~= before then quota.twin.save(key, state, max(1, call('PTTL', key))) end
    end
    at, key_at = at + 4, key_at + 1
  end
end
