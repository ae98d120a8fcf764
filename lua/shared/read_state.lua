-- The beginning of the scripts whose state is a string: arguments, clock and state.
local call, number, floor, ceil, max = redis.call, tonumber, math.floor, math.ceil, math.max
local key, limit, unit = KEYS[1], number(ARGV[1]), number(ARGV[3] or 1000000)
local cost, mode, penalty, clock = number(ARGV[4]) or 1, ARGV[5], number(ARGV[5]), number(ARGV[7])
if not clock then
  local time = call('TIME')
  clock = time[1] * 1000000 + time[2]
end
local value = redis.pcall('GET', key)
if type(value) == 'table' then return value end
