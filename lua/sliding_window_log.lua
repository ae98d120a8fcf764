-- algo     LOG
-- guarantee never more than max hits admitted in any window, exactly
-- state    list of 16-digit stamps, microseconds since 1970, oldest first, one per hit of cost 1;
--          once a PENALTY began, before them: - and the 16 digits of its end
-- KEYS[1]  the limiter
-- ARGV[1]  max, hits admitted per window
-- ARGV[2]  window, microseconds
-- ARGV[3]  unit of the times in the reply, microseconds: 1000000 (default), 1000 or 1
-- ARGV[4]  cost of this hit; default 1. Of a refund: how many hits
-- ARGV[5]  hit, peek, refund, or the microseconds of a PENALTY; default hit
-- ARGV[6]  numbers, a blank between: GAP in microseconds, STRICT (0 or 1), then max and window in
--          microseconds of every AND
-- ARGV[7]  clock, microseconds since 1970; default TIME (groups of hits and tests pass it)
-- returns  limited, limit, remaining, retry_after, reset_after
-- cost     admitted: TIME LINDEX LINDEX LLEN RPUSH PEXPIRE, and LTRIM with a few LINDEX where hits
--          have left the window; refused: TIME LINDEX LINDEX LLEN, and no write
local call, pcall, number, ceil = redis.call, redis.pcall, tonumber, math.ceil
local key, max, window, unit = KEYS[1], ARGV[1] + 0, ARGV[2] + 0, (ARGV[3] or 1000000) + 0
local clock = ARGV[7] and number(ARGV[7])
if not clock then
  local time = call('TIME')
  clock = time[1] * 1000000 + time[2]
end

-- The usual hit: without options, no stamp is ahead of the clock, at most three have left the
-- window. The rest of the script would give it the same reply and leave the same list; it answers
-- all other hits, and errors. Read with base 11, a number in another form than digits is nil.
if not ARGV[4] then
  local first = pcall('LINDEX', key, '0')
  if not first then
    if pcall('RPUSH', key, clock) == 1 then
      call('PEXPIRE', key, ceil(window / 1000) + 1)
      return {0, max, max - 1, -1, ceil(window / unit)}
    end
  elseif #first == 16 and number(first, 11) then
    local last, start = call('LINDEX', key, '-1'), clock - window
    local oldest, newest = number(first), number(last, 11) and number(last)
    if #last == 16 and oldest and newest and start < newest and newest <= clock then
      local length, gone = call('LLEN', key), 0
      while oldest <= start and gone < 3 do
        gone = gone + 1
        oldest = number(call('LINDEX', key, gone))
      end
      local count = length - gone
      if oldest > start and count >= max then
        if count > max then oldest = number(call('LINDEX', key, length - max)) end
        local retry, reset = oldest + window - clock, newest + window - clock
        return {1, max, 0, ceil(retry / unit), ceil(reset / unit)}
      elseif oldest > start and pcall('RPUSH', key, clock) == length + 1 then
        if gone > 0 then call('LTRIM', key, gone, -1) end
        call('PEXPIRE', key, ceil(window / 1000) + 1)
        return {0, max, max - count - 1, -1, ceil(window / unit)}
      end
    end
  end
end

-- The list as exact_windows needs it.
local algo, form, width = 'LOG', '^(%d+)$', 16
local size = 'LLEN'
local now, newest, latest = clock, nil, nil
local function element(rank) return pcall('LINDEX', key, rank) end
local function gone_until(start, skip, length)
  -- the first stamp alive is in (gone, alive]: gallop from the oldest, then halve
  local gone, alive, step = 0, length - 1, 1
  local function left(index) return number(call('LINDEX', key, skip + index)) <= start end
  while step < alive and left(step) do gone, step = step, step * 2 end
  if step < alive then alive = step end
  while alive - gone > 1 do
    local middle = math.floor((gone + alive) / 2)
    if left(middle) then gone = middle else alive = middle end
  end
  return alive
end
local function change(what, count, ends)
  if what == 'drop oldest' then return call('LTRIM', key, count, -1) end
  if what == 'drop newest' then return pcall('LTRIM', key, 0, -count - 1) end
  if what == 'punish' then return pcall('LPUSH', key, -count) end
  if what == 'add' and count == 1 then return pcall('RPUSH', key, now) end
  local stamps, stamp = {}, ('%.0f'):format(now)  -- so that Redis does not format 100,000 numbers
  for index = 1, math.min(count, 4000) do stamps[index] = stamp end
  for first = 1, count, 4000 do
    local pushed = pcall('RPUSH', key, unpack(stamps, 1, math.min(4000, count - first + 1)))
    if type(pushed) == 'table' then return pushed end
  end
  if what == 'renew' then
    call('LTRIM', key, -count, -1)
    if ends > 0 then return pcall('LPUSH', key, -ends) end
  end
end
-- include exact_windows
