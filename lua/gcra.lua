-- algo     GCRA
-- guarantee max hits per window, evenly refilled, in bursts of up to BURST; stores its debt as time
-- state    19-digit integer, the theoretical arrival time in nanoseconds since 1970 (redis-cell's
--          own format); during a penalty then ! and the microseconds at which it ends
-- KEYS[1]  the limiter
-- ARGV[1]  limit, the hits of a full burst
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

-- Nanoseconds since 1970 don't fit a double: a span is microseconds, and 0 to 999 ns beyond.
local full, full_ns = limit * emission, limit * nanos
full, full_ns = full + floor(full_ns / 1000), full_ns % 1000
local debt, debt_ns, ends, write = 0, 0, 0, false
if value then
  local arrival, over = value, ''
  if #value > 19 then arrival, over = value:match('^(%d+)!(%d+)$') end
  if not arrival or #arrival ~= 19 or not arrival:find('^%d+$') then
    return redis.error_reply('ERR the key holds no GCRA limiter')
  end
  ends = number(over) or 0
  debt, debt_ns = number(arrival:sub(1, 16)) - clock, number(arrival:sub(17))
  if debt < 0 then debt, debt_ns = 0, 0 end
  -- later than this rule can have set it
  if debt > full or debt == full and debt_ns > full_ns then
    debt, debt_ns, write = full, full_ns, cost > 0 and mode ~= 'peek'
  end
end
if mode == 'refund' then
  write = debt + debt_ns > 0
  debt_ns = debt_ns - cost * nanos
  debt, debt_ns = debt - cost * emission + floor(debt_ns / 1000), debt_ns % 1000
  if debt < 0 then debt, debt_ns = 0, 0 end
  mode, cost = 'peek', 1
end

local after, after_ns = debt + cost * emission, debt_ns + cost * nanos
after, after_ns = after + floor(after_ns / 1000), after_ns % 1000
local missing = after - full + ceil((after_ns - full_ns) / 1000)
local limited, retry, running = 0, -1, ends > clock
if running or cost > 0 and missing > 0 then
  limited = 1
  if cost <= limit then
    if penalty and not running then
      ends, running, write = clock + max(penalty, missing), true, true
    end
    if running then missing = max(missing, ends - clock) end
    retry = ceil(missing / unit)
  end
elseif cost > 0 and mode ~= 'peek' then
  debt, debt_ns, write = after, after_ns, true
end

local reset = debt
if debt_ns > 0 then reset = debt + 1 end
local remaining = 0
if running then
  reset = max(reset, ends - clock)
else
  -- the quotient is exact or 1 too large: then these hits would not fit
  remaining = floor((full - debt + (full_ns - debt_ns) / 1000) / (emission + nanos / 1000) + 0.001)
  local over = ceil((debt_ns + remaining * nanos - full_ns) / 1000)
  if debt + remaining * emission - full + over > 0 then remaining = remaining - 1 end
end
local state = write and ('%.0f%03d'):format(clock + debt, debt_ns)
-- include write_state
return {limited, limit, remaining, retry, ceil(reset / unit)}
