-- algo     LOG
-- promise  never more than max hits admitted in any window, exactly
-- state    list of 16-digit stamps, microseconds since 1970, oldest first; one per hit of cost 1
-- KEYS[1]  the limiter
-- ARGV[1]  max, hits admitted per window
-- ARGV[2]  window, microseconds
-- ARGV[3]  unit of the times in the reply, microseconds: 1000000 or 1000
-- ARGV[4]  cost of this hit; default 1
-- ARGV[5]  hit or peek; default hit
-- ARGV[6]  clock, microseconds since 1970; default TIME (only tests hand it in)
-- returns  limited, limit, remaining, retry_after, reset_after
-- cost     admitted: TIME LINDEX LINDEX LLEN RPUSH PEXPIRE, and LTRIM with a few LINDEX where hits
--          have left the window; refused: TIME LINDEX LINDEX LLEN, and no write
local call, pcall, number, ceil = redis.call, redis.pcall, tonumber, math.ceil
local key, max, window, unit = KEYS[1], number(ARGV[1]), number(ARGV[2]), number(ARGV[3])
local cost, peek, clock = number(ARGV[4] or 1), ARGV[5] == 'peek', number(ARGV[6])
if not clock then
  local time = call('TIME')
  clock = time[1] * 1000000 + time[2]
end

local now, dead, length, newest = clock, 0, 0, nil
local oldest = pcall('LINDEX', key, 0)
if oldest then
  if type(oldest) == 'table' then return oldest end
  newest = call('LINDEX', key, -1)
  if #oldest ~= 16 or #newest ~= 16 or not (oldest .. newest):find('^%d+$') then
    return redis.error_reply('ERR the key holds no LOG limiter')
  end
  oldest, newest, length = number(oldest), number(newest), call('LLEN', key)
  if newest > clock then
    now = newest
    -- further ahead than this rule can have put it: its hits count as of just now
    if newest - clock > window then
      now, oldest, newest, length = clock, clock, clock, math.min(length, max)
      if not peek then
        call('LTRIM', key, -length, -1)
        for index = 0, length - 1 do call('LSET', key, index, clock) end
        call('PEXPIRE', key, ceil(window / 1000) + 1)
      end
    end
  end
  if newest <= now - window then
    dead = length
  elseif oldest <= now - window then
    -- the first stamp alive is in (dead, alive]: gallop from the oldest, then halve
    local function gone(index) return number(call('LINDEX', key, index)) <= now - window end
    local alive, step = length - 1, 1
    while step < alive and gone(step) do dead, step = step, step * 2 end
    if step < alive then alive = step end
    while alive - dead > 1 do
      local middle = math.floor((dead + alive) / 2)
      if gone(middle) then dead = middle else alive = middle end
    end
    dead = alive
  end
end

local count = length - dead
local room = max - count - cost
local reset = count > 0 and newest + window - clock or 0
if cost > 0 and room < 0 then
  local retry = -1
  if cost <= max then
    local blocker = oldest
    if room ~= -1 or dead ~= 0 then blocker = number(call('LINDEX', key, dead - room - 1)) end
    retry = ceil((blocker + window - clock) / unit)
  end
  return {1, max, math.max(0, max - count), retry, ceil(reset / unit)}
end
if cost == 0 or peek then
  return {0, max, math.max(0, max - count), -1, ceil(reset / unit)}
end

local pushed
if cost == 1 then
  pushed = pcall('RPUSH', key, now)
else
  local stamps = {}
  for index = 1, math.min(cost, 4000) do stamps[index] = now end
  for first = 1, cost, 4000 do
    pushed = pcall('RPUSH', key, unpack(stamps, 1, math.min(4000, cost - first + 1)))
    if type(pushed) == 'table' then break end
  end
end
if type(pushed) == 'table' then
  -- Redis 6.2 puts the script's name before the error
  pushed.err = pushed.err:gsub('^@user_script: ?%d+: %-', '')
  return pushed
end
if dead > 0 then call('LTRIM', key, dead, -1) end
reset = now + window - clock
call('PEXPIRE', key, ceil(reset / 1000) + 1)
return {0, max, room, -1, ceil(reset / unit)}
