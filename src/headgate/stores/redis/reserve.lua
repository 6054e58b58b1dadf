-- Decides a request, or its first part, and stores the record of the reservation, in one atomic step. Appended to two
-- functions of KEYS and ARGV: `check`, the script that decides requests, and `keep`, which is reservations.lua; see
-- reservations.py.
--
-- KEYS: those of the check, then those of reservations.lua
-- ARGV:
--   keys, arguments   how many of each belong to the check
--   first             the index of the first limit's wait in the check's reply
--   penalty           1 if the figure before that is the block of the client, else 0
--   complete          1: the check decides the whole request, so its answer is stored with the record; else 0
--   enforced          a character per limit: 1 if it is enforced, else 0
--   then the check's arguments, and those of reservations.lua with the verb hold
-- Reply: the check's. If every enforced limit has room, the record is stored; if it is complete, followed by the time
-- and all figures.

local function part(list, first, last)
  local some = {}
  for i = first, last do some[#some + 1] = list[i] end
  return some
end

local keys, last = ARGV[1] + 0, 6 + ARGV[2]
local first, enforced = ARGV[3] + 0, ARGV[6]
local reply = check(part(KEYS, 1, keys), part(ARGV, 7, last))

local charged = ARGV[4] == '0' or reply[first - 1] == 0 -- else the client is blocked
local figures = { string.format('%.0f', reply[1]) }
if charged then
  for i = 1, #enforced do
    local place = first + 3 * (i - 1)
    if string.sub(enforced, i, i) == '1' and reply[place] ~= 0 then charged = false end
    for j = place, place + 2 do figures[#figures + 1] = string.format('%.0f', reply[j]) end
  end
end
if charged then
  local arguments = part(ARGV, last + 1, #ARGV)
  if ARGV[5] == '1' then arguments[4] = arguments[4] .. '\n' .. table.concat(figures, ' ') end
  keep(part(KEYS, keys + 1, #KEYS), arguments)
end
return reply
