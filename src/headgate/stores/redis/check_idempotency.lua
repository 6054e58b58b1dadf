-- Fragment of check.lua: requests with an idempotency key. The first answer is stored and replayed.
--
-- KEYS:  a string: the fingerprint, a blank, and the answer: all figures of the request, the time first
-- ARGV:  fingerprint (text): the hash of the request
-- Reply: the time of the decision; -2 minus that time for a repetition; -1 if the fingerprint differs from the stored
--        one: then the figures mean nothing
do
  local IDEMPOTENCY = 300000000
  local decide_new, keys_of_new, arguments_of_new, figures_of_new = request, keys_each, arguments_each, figures_each
  keys_each, arguments_each, figures_each = keys_each + 1, arguments_each + 1, figures_each + 1
  request = function()
    local fingerprint, receipt, first = ARGV[at + 1], KEYS[key_at + 1], size + 1
    at, key_at, size = at + 1, key_at + 1, first
    local known, packed = string.match(call('GET', receipt) or '', '^(%S+) (.*)$')
    local answer = known and cmsgpack.unpack(packed)
    if known and now - answer[1] < IDEMPOTENCY then
      reply[first] = known == fingerprint and -2 - answer[1] or -1
      for i = 1, figures_of_new do reply[first + i] = answer[1 + i] or '' end
      at, key_at, size = at + arguments_of_new, key_at + keys_of_new, size + figures_of_new
      return
    end
    reply[first] = now
    decide_new()
    answer = {}
    for i = first, size do answer[#answer + 1] = reply[i] end
    call('SET', receipt, fingerprint .. ' ' .. cmsgpack.pack(answer), 'PX', ttl(now + IDEMPOTENCY + slack))
  end
end
