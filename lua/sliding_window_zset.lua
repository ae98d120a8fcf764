-- algo     ZLOG
-- guarantee never more than max hits admitted in any window, exactly; ZRANGE shows when they were
-- state    sorted set, one member per hit of cost 1: score microseconds since 1970, member these 16
--          digits, - and 6 digits that number the hits of a microsecond; once a PENALTY began,
--          a member of - and the 16 digits of its end, with that score
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
-- cost     admitted: TIME ZRANGE ZRANGE ZCARD ZADD PEXPIRE, and ZREMRANGEBYRANK with a ZCOUNT where
--          hits have left the window; refused: TIME ZRANGE ZRANGE ZCARD, and no write
local call, pcall, number, ceil = redis.call, redis.pcall, tonumber, math.ceil
local key, max, window = KEYS[1], number(ARGV[1]), number(ARGV[2])
local unit, clock = number(ARGV[3] or 1000000), number(ARGV[7])
if not clock then
  local time = call('TIME')
  clock = time[1] * 1000000 + time[2]
end

-- The sorted set as exact_windows needs it.
local algo, form, width = 'ZLOG', '^(%d+)%-%d%d%d%d%d%d$', 23
local size = 'ZCARD'
local now, newest, latest = clock, nil, nil
local sequence  -- number of the newest stamp; nil: as in `latest`
local function element(rank)
  local found = pcall('ZRANGE', key, rank, rank)
  return found.err and found or found[1]
end
local function gone_until(start) return call('ZCOUNT', key, 0, start) end
local function change(what, count, ends)
  if what == 'drop oldest' then return call('ZREMRANGEBYRANK', key, 0, count - 1) end
  if what == 'drop newest' then return pcall('ZREMRANGEBYRANK', key, -count, -1) end
  if what == 'punish' then return pcall('ZADD', key, -count, ('-%.0f'):format(count)) end
  if what == 'renew' then
    local done = pcall('ZREMRANGEBYRANK', key, ends > 0 and 1 or 0, -1)
    if type(done) == 'table' then return done end
    sequence = -1
  end
  sequence = newest == now and (sequence or number(latest:sub(-6))) + 1 or 0
  if sequence + count > 1000000 then now, sequence = now + 1, 0 end
  for first = 1, count, 3000 do
    local pairs, stamp = {}, ('%.0f'):format(now)
    for _ = first, math.min(count, first + 2999) do
      pairs[#pairs + 1] = stamp
      pairs[#pairs + 1] = ('%s-%06d'):format(stamp, sequence)
      sequence = sequence + 1
    end
    local done = pcall('ZADD', key, unpack(pairs))
    if type(done) == 'table' then return done end
  end
  sequence = sequence - 1
end
-- include exact_windows
