-- algo     FIXED
-- guarantee at most max hits from the first one until window later, then a new window:
--          up to twice max across an edge
-- state    F<count>:<start, microseconds since 1970>; during a penalty then ! and the microseconds
--          at which it ends
-- KEYS[1]  the limiter
-- ARGV[1]  max, hits admitted per window
-- ARGV[2]  window, microseconds
-- ARGV[3]  unit of the times in the reply, microseconds: 1000000 (default), 1000 or 1
-- ARGV[4]  cost of this hit; default 1. Of a refund: how many hits
-- ARGV[5]  hit, peek, refund, or the microseconds of a PENALTY; default hit
-- ARGV[6]  0 1: STRICT, refused hits count too
-- ARGV[7]  clock, microseconds since 1970; default TIME (groups of hits and tests pass it)
-- returns  limited, limit, remaining, retry_after, reset_after
-- cost     admitted: TIME GET SET; refused: TIME GET, and no write
-- include read_state
local window, strict = number(ARGV[2]), ARGV[6] == '0 1'

local count, start, ends, now, write = 0, clock, 0, clock, false
if value then
  local held, since, over = value:match('^F(%d+):(%d+)(.*)$')
  ends = over == '' and 0 or over and number(over:match('^!(%d+)$'))
  if not ends or #since ~= 16 then
    return redis.error_reply('ERR the key holds no FIXED limiter')
  end
  count, start = number(held), number(since)
  if start - clock > window then  -- later than this rule can have set it
    start, write = clock, cost > 0 and mode ~= 'peek'
  end
  now = max(clock, start)
end
local open = value and now < start + window
if not open then count, start = 0, now end
if mode == 'refund' then
  write = count > 0
  count, mode, cost = max(0, count - cost), 'peek', 1
end

local limited, retry, running = 0, -1, ends > now
if running or cost > 0 and count + cost > limit then
  limited = 1
  if cost <= limit then
    local wait = 0
    if cost > 0 and count + cost > limit then wait = start + window - clock end
    if not running and strict and mode ~= 'peek' then
      count, write = math.min(count + cost, 1000000000000000), true
    end
    if not running and penalty then
      ends, running, write = max(now + penalty, clock + wait), true, true
    end
    if running then wait = max(wait, ends - clock) end
    retry = ceil(wait / unit)
  end
elseif cost > 0 and mode ~= 'peek' then
  count, open, write = count + cost, true, true
end

local reset, remaining = 0, max(0, limit - count)
if open then reset = start + window - clock end
if running then reset, remaining = max(reset, ends - clock), 0 end
local state = write and ('F%.0f:%.0f'):format(count, start)
-- include write_state
return {limited, limit, remaining, retry, ceil(reset / unit)}
