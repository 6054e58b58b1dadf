-- Fragment of check.lua: undoes what was charged under an idempotency key, if anything, and then returns the new
-- figures. After that, the key is never charged again. For peeks.
--
-- KEYS: the receipt, as in check_idempotency.lua
-- ARGV: fingerprint (text), and the index of the first wait in the answer
do
  local IDEMPOTENCY = 300000000
  local look = request
  keys_each, arguments_each = keys_each + 1, arguments_each + 2
  request = function()
    local fingerprint, first, receipt = ARGV[at + 1], ARGV[at + 2] + 0, KEYS[key_at + 1]
    at, key_at = at + 2, key_at + 1
    local known, packed = string.match(call('GET', receipt) or '', '^(%S+) (.*)$')
    local answer = known == fingerprint and cmsgpack.unpack(packed) or {}
    local is_charged = #answer >= first + 3 * count - 1
    for i = 1, count do
      if limits[i].enforced and answer[first + 3 * i - 3] ~= 0 then is_charged = false end
    end
    for i = 1, count do
      if is_charged and answer[first + 3 * i - 3] == 0 then
        local limit = limits[i]
        undo(limit.twin, KEYS[key_at + i], limit, ARGV[at + i] + 0, answer[1], answer[first + 3 * i - 1], reservation)
      end
    end
    call('SET', receipt, '- ' .. cmsgpack.pack({ now }), 'PX', ttl(now + IDEMPOTENCY + slack))
    look()
  end
end
