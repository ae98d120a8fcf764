-- algo     COUNTER
-- guarantee an estimate: the hits of this window, and those of the one before weighted by its
--          overlap
-- state    C<start, microseconds since 1970>:<hits in this window>:<hits in the one before>; during
--          a penalty then ! and the microseconds at which it ends
-- KEYS[1]  the limiter
-- ARGV[1]  max, hits admitted per window
-- ARGV[2]  window, microseconds
-- ARGV[3]  unit of the times in the reply, microseconds: 1000000 (default), 1000 or 1
-- ARGV[4]  cost of this hit; default 1. Of a refund: how many hits
-- ARGV[5]  hit, peek, refund, or the microseconds of a PENALTY; default hit
-- ARGV[7]  clock, microseconds since 1970; default TIME (groups of hits and tests pass it)
-- returns  limited, limit, remaining, retry_after, reset_after
-- cost     admitted: TIME GET SET; refused: TIME GET, and no write
-- include read_state
local window = number(ARGV[2])

local current, previous, start, ends, now, write = 0, 0, clock, 0, clock, false
if value then
  local since, this, before, over = value:match('^C(%d+):(%d+):(%d+)(.*)$')
  ends = over == '' and 0 or over and number(over:match('^!(%d+)$'))
  if not ends or #since ~= 16 then
    return redis.error_reply('ERR the key holds no COUNTER limiter')
  end
  start, current, previous = number(since), number(this), number(before)
  if start - clock > window then  -- later than this rule can have set it
    start, write = clock, cost > 0 and mode ~= 'peek'
  end
  now = max(clock, start)
  if now >= start + 2 * window then
    current, previous = 0, 0
  elseif now >= start + window then
    start, current, previous = start + window, 0, current
  end
  if current + previous == 0 then start = now end
end
if mode == 'refund' then
  write = current > 0
  current, mode, cost = max(0, current - cost), 'peek', 1
end

-- The unit is hits times microseconds: all integers, and below 2^53 where it matters.
local overlap = window - (now - start)
local room = (limit - current) * window - previous * overlap
local limited, retry, running = 0, -1, ends > now
if running or cost > 0 and room < cost * window then
  limited = 1
  if cost <= limit then
    local wait, most = 0, limit - cost
    if cost > 0 and room < cost * window then
      if current <= most then
        wait = overlap - floor((most - current) * window / previous)
      else
        wait = overlap + window - floor(most * window / current)
      end
      wait = wait + now - clock
    end
    if penalty and not running then
      ends, running, write = max(now + penalty, clock + wait), true, true
    end
    if running then wait = max(wait, ends - clock) end
    retry = ceil(wait / unit)
  end
elseif cost > 0 and mode ~= 'peek' then
  current, room, write = current + cost, room - cost * window, true
end

local reset, remaining = 0, max(0, floor(room / window))
if current > 0 then
  reset = start + 2 * window - clock
elseif previous > 0 then
  reset = start + window - clock
end
if running then reset, remaining = max(reset, ends - clock), 0 end
local state = write and ('C%.0f:%.0f:%.0f'):format(start, current, previous)
-- include write_state
return {limited, limit, remaining, retry, ceil(reset / unit)}
