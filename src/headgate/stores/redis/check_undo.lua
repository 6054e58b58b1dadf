-- Fragment of check.lua: undoes charges, and then returns the new figures. For peeks.
--
-- ARGV, per limit: when it was charged (-1: it was not), and the reset that was returned
do
  local look = request
  arguments_each = arguments_each + 2 * count
  request = function()
    local costs = at + 2 * count
    for i = 1, count do
      local charged_at = ARGV[at + 2 * i - 1] + 0
      if charged_at >= 0 then
        local limit = limits[i]
        undo(limit.twin, KEYS[key_at + i], limit, ARGV[costs + i] + 0, charged_at, ARGV[at + 2 * i] + 0, reservation)
      end
    end
    at = costs
    look()
  end
end
