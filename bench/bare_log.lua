-- The least work of a log of hits in a list: no options, no guards, no reply in another unit.
-- `cost` measures it beside LOG. KEYS[1] the list, ARGV max and window in microseconds.
local time = redis.call('TIME')
local clock, max, window = time[1] * 1000000 + time[2], tonumber(ARGV[1]), tonumber(ARGV[2])
local length, reset = redis.call('LLEN', KEYS[1]), math.ceil(window / 1000000)
local oldest = length > 0 and tonumber(redis.call('LINDEX', KEYS[1], 0))
while oldest and oldest <= clock - window do
  redis.call('LPOP', KEYS[1])
  length = length - 1
  oldest = length > 0 and tonumber(redis.call('LINDEX', KEYS[1], 0))
end
if length >= max then
  return {1, max, 0, math.ceil((oldest + window - clock) / 1000000), reset}
end
redis.call('RPUSH', KEYS[1], clock)
redis.call('PEXPIRE', KEYS[1], window / 1000)
return {0, max, max - length - 1, -1, reset}
