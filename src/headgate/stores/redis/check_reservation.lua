-- Fragment of check.lua: requests of reservations. Buckets track what such a request was charged; see held.lua.
--
-- ARGV: the reservation's number
do
  local decide_reserved = request
  arguments_each = arguments_each + 1
  request = function()
    reservation = ARGV[at + 1] + 0
    at = at + 1
    decide_reserved()
  end
end
