-- Fragment of check.lua: requests that hold a slot; see concurrency.lua.
--
-- ARGV: the slot's id (text)
do
  local decide_slot = request
  arguments_each = arguments_each + 1
  request = function()
    slot = ARGV[at + 1]
    at = at + 1
    decide_slot()
  end
end
