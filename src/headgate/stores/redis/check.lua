-- Decides groups of checks, each all or nothing. Assembled behind the algorithms; see script.py. What most calls ask
-- is decided by plain.lua instead.
--
-- KEYS, in the order of the groups:
--   per group: the idempotency key if it has one, those of its client if it has a penalty, then a key per check
-- ARGV, all whole numbers unless said otherwise:
--   now                      microseconds, or empty: the server's own time
--   quotas                   how many follow
--   per quota:               algorithm (text), limit, window in microseconds, burst
--   per group:               8 * checks + mode; mode 0 charges, 1 peeks, 2 charges once, 3 refunds; with a
--                            penalty (penalty.lua) 4 more; 7 without checks is a violation: see there; 7 with checks
--                            undoes what mode 2 or 6 charged under the same key, and keeps it from charging later; of a
--                            reservation 524288 more
--     of a reservation:      its mark
--     of mode 2 and 6:       fingerprint (text)
--     of mode 7:             fingerprint (text), and the place of the first wait in what is remembered
--     of mode 4, 5 and 6:    terms, and a rule per check: see penalty.lua
--     per check:             quota (its place in the list above; of a shadow negative), cost
--       of mode 3:           when it was charged, and the reset that was answered then
-- Reply, flat, all integers:
--   now
--   per group, of mode 2 and 6: the time at which it was decided; -2 minus that time when this is a repetition; -1 when
--                            the fingerprint differs from the one remembered: then nothing follows
--     per check:             wait, remaining, reset; nothing of mode 3 and 7; of mode 4, 5 and 6 see penalty.lua
--
-- Times are in microseconds. Every key that is written gets a time to live.

local IDEMPOTENCY = 300000000

local quotas = {}
local at, key_at = 2, 0 -- how far ARGV and KEYS have been read
for i = 1, ARGV[2] + 0 do
  quotas[i] = {
    twin = algorithms[ARGV[at + 1]],
    limit = ARGV[at + 2] + 0,
    window = ARGV[at + 3] + 0,
    burst = ARGV[at + 4] + 0,
  }
  at = at + 4
end

local reply, size = { now }, 1
local mark = 0 -- of the group's reservation
local decide_penalised, violate -- penalty.lua's; without it, no group has a penalty

-- Decides a group: asks each check whether it fits, keeps the states if all do, and answers.
local function decide(count, peek)
  local checks, refused = {}, false
  for i = 1, count do
    local place, cost, key = ARGV[at + 1] + 0, ARGV[at + 2] + 0, KEYS[key_at + 1]
    at, key_at = at + 2, key_at + 1
    local quota = quotas[place > 0 and place or -place]
    local expires, a, b, c, d = quota.twin.load(key)
    if held then touch_held(key, quota, quota.twin, a, b, c, d) end
    local wait, new_a, new_b, new_c, new_d = quota.twin.admit(now, quota, cost, a, b, c, d)
    if wait ~= 0 and place > 0 then refused = true end
    checks[i] = { key, quota, wait, expires, a, b, c, d, new_a, new_b, new_c, new_d }
  end
  for i = 1, count do
    local check = checks[i]
    local key, quota, wait, expires = check[1], check[2], check[3], check[4]
    local a, b, c, d = check[5], check[6], check[7], check[8]
    local remaining, reset
    if peek or (refused and wait == 0) then
      remaining, reset = quota.twin.figures(now, quota, a, b, c, d)
    else
      local new_a, new_b, new_c, new_d = check[9], check[10], check[11], check[12]
      remaining, reset = quota.twin.figures(now, quota, new_a, new_b, new_c, new_d)
      if new_a and (new_a ~= a or new_b ~= b or new_c ~= c or new_d ~= d) then
        local is_new
        expires, is_new = lasting(expires, reset)
        if mark > 0 and wait == 0 and not refused and quota.twin.level then
          if not held then begin_held() end
          open_held(key, quota, quota.twin, mark, new_a, new_b, new_c, new_d)
          is_new = true
        end
        quota.twin.save(key, expires, is_new, new_a, new_b, new_c, new_d)
      end
    end
    reply[size + 1], reply[size + 2], reply[size + 3] = wait, remaining, reset
    size = size + 3
  end
end

-- Decides a group of one check, which is most of them: the same, without a list.
local function decide_one()
  local place, cost, key = ARGV[at + 1] + 0, ARGV[at + 2] + 0, KEYS[key_at + 1]
  at, key_at = at + 2, key_at + 1
  local quota = quotas[place > 0 and place or -place]
  local twin = quota.twin
  local expires, a, b, c, d = twin.load(key)
  if held then touch_held(key, quota, twin, a, b, c, d) end
  local wait, new_a, new_b, new_c, new_d = twin.admit(now, quota, cost, a, b, c, d)
  local remaining, reset = twin.figures(now, quota, new_a, new_b, new_c, new_d)
  if new_a and (new_a ~= a or new_b ~= b or new_c ~= c or new_d ~= d) then
    local is_new
    expires, is_new = lasting(expires, reset)
    twin.save(key, expires, is_new, new_a, new_b, new_c, new_d)
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
    answers[1] = -2 - answers[1]
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
  call('SET', memory, fingerprint .. ' ' .. cmsgpack.pack(answers), 'PX', ttl(now + IDEMPOTENCY + slack))
end

local function refund(count)
  for _ = 1, count do
    local quota, key = quotas[math.abs(ARGV[at + 1])], KEYS[key_at + 1]
    undo(quota.twin, key, quota, ARGV[at + 2] + 0, ARGV[at + 3] + 0, ARGV[at + 4] + 0, mark)
    at, key_at = at + 4, key_at + 1
  end
end

-- Undoes what a group charged under its key, if it did, and leaves a mark with which the key is no longer charged.
local function undo_once(count)
  local fingerprint, first, memory = ARGV[at + 1], ARGV[at + 2] + 0, KEYS[key_at + 1]
  at, key_at = at + 2, key_at + 1
  local known, packed = string.match(call('GET', memory) or '', '^(%S+) (.*)$')
  local answers = known == fingerprint and cmsgpack.unpack(packed) or {}
  local charged = #answers >= first + 3 * count - 1
  for i = 0, count - 1 do
    if ARGV[at + 2 * i + 1] + 0 > 0 and answers[first + 3 * i] ~= 0 then charged = false end
  end
  for i = 0, count - 1 do
    if charged and answers[first + 3 * i] == 0 then
      local quota = quotas[math.abs(ARGV[at + 1])]
      undo(quota.twin, KEYS[key_at + 1], quota, ARGV[at + 2] + 0, answers[1], answers[first + 3 * i + 2], mark)
    end
    at, key_at = at + 2, key_at + 1
  end
  call('SET', memory, '- ' .. cmsgpack.pack({ now }), 'PX', ttl(now + IDEMPOTENCY + slack))
end
