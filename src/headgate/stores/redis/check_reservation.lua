-- Fragment of check.lua: requests of reservations. Buckets track what such a request was charged; see held.lua.
--
-- ARGV: the reservation's mark
do
  local decide_marked = request
  arguments_each = arguments_each + 1
  request = function()
    mark = ARGV[at + 1] + 0
    at = at + 1
    decide_marked()
  end
end
