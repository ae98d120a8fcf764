-- algo     LEAKY
-- guarantee a bucket that drains at max per window and overflows above BURST; stores the level. With
--          WAIT it shapes: hits leave evenly, each held until those before it have drained
-- state    L<level>:<19 digits, nanoseconds since 1970>: the level in whole hits at that time;
--          during a penalty then ! and the microseconds at which it ends
-- KEYS[1]  the limiter
-- ARGV[1]  limit, the hits of a full bucket
-- ARGV[2]  emission interval, nanoseconds
-- ARGV[3]  unit of the times in the reply, microseconds: 1000000 (default), 1000 or 1
-- ARGV[4]  cost of this hit; default 1. Of a refund: how many hits
-- ARGV[5]  hit, peek, refund, or the microseconds of a PENALTY; default hit
-- ARGV[6]  with WAIT: the microseconds that the hit may be held
-- ARGV[7]  clock, microseconds since 1970; default TIME (groups of hits and tests pass it)
-- returns  limited, limit, remaining, retry_after, reset_after; with WAIT a sixth: the
--          microseconds to hold the hit, or until a penalty ends that alone refuses it
-- cost     admitted: TIME GET SET; refused: TIME GET, and no write
-- include read_state
-- The emission interval is whole microseconds, and 0 to 999 ns beyond.
local emission, nanos = number(ARGV[2]:sub(1, -4)) or 0, number(ARGV[2]:sub(-3))
local hold = number(ARGV[6])

-- Nanoseconds since 1970 don't fit a double: a time is microseconds, and 0 to 999 ns beyond.
local level, time, time_ns, ends, write = 0, clock, 0, 0, false
if value then
  local held, micros, beyond, over = value:match('^L(%d+):(%d+)(%d%d%d)(.*)$')
  ends = over == '' and 0 or over and number(over:match('^!(%d+)$'))
  if not ends or #micros ~= 16 then
    return redis.error_reply('ERR the key holds no LEAKY limiter')
  end
  level, time, time_ns = number(held), number(micros), number(beyond)
  -- later than this rule can have set it
  if time - clock - limit * emission + ceil((time_ns - limit * nanos) / 1000) > 0 then
    time, time_ns, write = clock, 0, cost > 0 and mode ~= 'peek'
  end
  -- after a change of the rule: a level that drains for more than 20 years is cut to that
  local emission_us = emission + nanos / 1000
  if level * emission_us > 630720000000000 then level = floor(630720000000000 / emission_us) end
  local elapsed = clock - time - time_ns / 1000
  if elapsed > 0 then
    -- hits drained since: the quotient is exact or 1 too large
    local gone = math.min(level, floor(elapsed / emission_us + 0.001))
    if time + gone * emission + ceil((time_ns + gone * nanos) / 1000) > clock then
      gone = gone - 1
    end
    level, time, time_ns = level - gone, time + gone * emission, time_ns + gone * nanos
    time, time_ns = time + floor(time_ns / 1000), time_ns % 1000
    if level == 0 then time, time_ns = clock, 0 end
  end
end
if mode == 'refund' then
  write = level > 0
  level, mode, cost = max(0, level - cost), 'peek', 1
end

-- drained: microseconds until `hits` of the level are left; early: those that a hit is too early
local function drained(hits)
  local some = level - hits
  return time + some * emission + ceil((time_ns + some * nanos) / 1000) - clock
end
local limited, retry, running, early, held = 0, -1, ends > max(clock, time), 0, 0
if cost > 0 then
  if hold then
    held = drained(0)
    early = held - hold
  elseif level + cost > limit then
    early = drained(limit - cost)
  end
end
if running or early > 0 or cost > limit then
  limited, held = 1, 0
  if cost <= limit then
    if running and early <= 0 then held = ends - clock end
    if penalty and not running then
      ends = max(max(clock, time + ceil(time_ns / 1000)) + penalty, clock + early)
      running, write = true, true
    end
    if running then early = max(early, ends - clock) end
    retry = ceil(early / unit)
  end
elseif cost > 0 and mode ~= 'peek' then
  level, write = level + cost, true
end

local reset = level > 0 and drained(0) or 0
if running then reset = max(reset, ends - clock) end
local state = write and ('L%.0f:%.0f%03d'):format(level, time, time_ns)
-- include write_state
local remaining = running and 0 or max(0, limit - level)
local kept = limited == 0 and reset - held or reset
return {limited, limit, remaining, retry, ceil(kept / unit), hold and held}
