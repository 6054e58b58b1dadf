-- The groups of a call, one after the other. The last part of the script; check.lua lists the arguments.
local arguments = #ARGV
while at < arguments do
  local header = ARGV[at + 1] + 0
  at = at + 1
  mark = 0
  if header >= 524288 then
    header, mark, at = header - 524288, ARGV[at + 1] + 0, at + 1
  end
  local mode = header % 8
  local count = (header - mode) / 8
  local decided = decide
  if mode >= 4 then
    mode, decided = mode - 4, decide_penalised
  end
  if header == 8 and mark == 0 then -- one check, nothing special
    decide_one()
  elseif mode == 2 then
    decide_once(count, decided)
  elseif mode == 3 then
    if header == 7 then
      violate()
    elseif decided == decide then
      refund(count)
    else
      undo_once(count)
    end
  else
    decided(count, mode == 1)
  end
end

return reply
