-- algo     TOKEN
-- guarantee a bucket of BURST tokens, refilled continuously at max per window; stores the tokens
-- state    T<tokens>:<19 digits, nanoseconds since 1970>: whole tokens at that time; during a
--          penalty, then ! and the microseconds at which it ends
-- KEYS[1]  the limiter
-- ARGV[1]  limit, the hits of a full bucket
-- ARGV[2]  emission interval, nanoseconds
-- ARGV[3]  unit of the times in the reply, microseconds: 1000000 (default), 1000 or 1
-- ARGV[4]  cost of this hit; default 1. Of a refund: how many hits
-- ARGV[5]  hit, peek, refund, or the microseconds of a PENALTY; default hit
-- ARGV[7]  clock, microseconds since 1970; default TIME (groups of hits and tests pass it)
-- returns  limited, limit, remaining, retry_after, reset_after
-- cost     admitted: TIME GET SET; refused: TIME GET, and no write
-- include read_state
-- The emission interval is whole microseconds, and 0 to 999 ns beyond.
local emission, nanos = number(ARGV[2]:sub(1, -4)) or 0, number(ARGV[2]:sub(-3))

-- Nanoseconds since 1970 don't fit a double: a time is microseconds, and 0 to 999 ns beyond.
local tokens, time, time_ns, ends, write = limit, clock, 0, 0, false
if value then
  local held, micros, beyond, over = value:match('^T(%d+):(%d+)(%d%d%d)(.*)$')
  ends = over == '' and 0 or over and number(over:match('^!(%d+)$'))
  if not ends or #micros ~= 16 then
    return redis.error_reply('ERR the key holds no TOKEN limiter')
  end
  tokens, time, time_ns = number(held), number(micros), number(beyond)
  -- later than this rule can have set it
  if time - clock - limit * emission + ceil((time_ns - limit * nanos) / 1000) > 0 then
    time, time_ns, write = clock, 0, cost > 0 and mode ~= 'peek'
  end
  local elapsed = clock - time - time_ns / 1000
  if elapsed > 0 then
    -- tokens added since: the quotient is exact or 1 too large
    local come = floor(elapsed / (emission + nanos / 1000) + 0.001)
    if tokens + come > limit then come = max(0, limit - tokens) end
    if time + come * emission + ceil((time_ns + come * nanos) / 1000) > clock then
      come = come - 1
    end
    tokens, time, time_ns = tokens + come, time + come * emission, time_ns + come * nanos
    time, time_ns = time + floor(time_ns / 1000), time_ns % 1000
    if tokens >= limit then time, time_ns = clock, 0 end
  end
  if tokens > limit then tokens = limit end
end
if mode == 'refund' then
  write = tokens < limit
  tokens, mode, cost = math.min(limit, tokens + cost), 'peek', 1
end

local limited, retry, running = 0, -1, ends > max(clock, time)
if running or cost > tokens then
  limited = 1
  if cost <= limit then
    local lack = cost - tokens
    local wait = time + lack * emission + ceil((time_ns + lack * nanos) / 1000) - clock
    if penalty and not running then
      ends = max(max(clock, time + ceil(time_ns / 1000)) + penalty, clock + wait)
      running, write = true, true
    end
    if running then wait = max(wait, ends - clock) end
    retry = ceil(wait / unit)
  end
elseif cost > 0 and mode ~= 'peek' then
  tokens, write = tokens - cost, true
end

local reset, lack = 0, limit - tokens
if lack > 0 then reset = time + lack * emission + ceil((time_ns + lack * nanos) / 1000) - clock end
if running then reset = max(reset, ends - clock) end
local state = write and ('T%.0f:%.0f%03d'):format(tokens, time, time_ns)
-- include write_state
return {limited, limit, running and 0 or tokens, retry, ceil(reset / unit)}
