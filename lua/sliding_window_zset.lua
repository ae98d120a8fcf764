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
local call, pcall, number, ceil, most = redis.call, redis.pcall, tonumber, math.ceil, math.max
local key, max, window = KEYS[1], number(ARGV[1]), number(ARGV[2])
local unit = number(ARGV[3] or 1000000)
local cost, gap, strict, keep, longest = 1, 0, false, max, window
local clock, mode, penalty, others = number(ARGV[7]), nil, nil, nil
if ARGV[4] then
  cost, mode, penalty = number(ARGV[4]) or 1, ARGV[5], number(ARGV[5])
  if ARGV[6] and ARGV[6] ~= '' then
    others = {}
    for digits in ARGV[6]:gmatch('%d+') do others[#others + 1] = number(digits) end
    gap, strict = others[1], others[2] == 1
    for index = 3, #others, 2 do
      keep, longest = most(keep, others[index]), most(longest, others[index + 1])
    end
  end
end
if not clock then
  local time = call('TIME')
  clock = time[1] * 1000000 + time[2]
end

-- skip: elements before the stamps; length: number of stamps; ends: end of the penalty; even: all
-- stamps equal the clock; write: a TTL must be set
local now, skip, length, ends, oldest, newest, even, write = clock, 0, 0, 0, nil, nil, false, false
local sequence = -1  -- sequence number of the newest stamp
local first = pcall('ZRANGE', key, 0, 0)
if first.err then return first end
first = first[1]
if first then
  oldest = first
  if #first == 17 and first:find('^%-%d+$') then
    skip, ends, oldest = 1, -number(first), call('ZRANGE', key, 1, 1)[1]
  end
  if oldest then
    newest = call('ZRANGE', key, -1, -1)[1]
    local since, upto, last = (oldest .. newest):match('^(%d+)%-%d%d%d%d%d%d(%d+)%-(%d%d%d%d%d%d)$')
    if #oldest ~= 23 or #newest ~= 23 or not since or #since ~= 16 then
      return redis.error_reply('ERR the key holds no ZLOG limiter')
    end
    oldest, newest, sequence = number(since), number(upto), number(last)
    length = call('ZCARD', key) - skip
    if newest > clock then now = newest end
  end
end
local function add(count)
  sequence = newest == now and sequence + 1 or 0
  if sequence + count > 1000000 then now, sequence = now + 1, 0 end
  newest = now
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
local hit, refund, done = cost > 0 and mode ~= 'peek' and mode ~= 'refund', mode == 'refund', nil
if length > 0 and newest - clock > longest then
  -- later than this rule can have set them: the hits count as hits of this moment
  now, oldest, newest, even, length = clock, clock, clock, true, math.min(length, keep)
  if hit or refund then
    write = true
    if ends <= now then skip = 0 end
    done = pcall('ZREMRANGEBYRANK', key, skip, -1)
    newest = nil
    if type(done) ~= 'table' then done = add(length) end
  end
end

local limited, limit, remaining, told, held, never, wait, dead
for _ = 1, 4 do
  if type(done) == 'table' and done.err then
    done.err = done.err:gsub('^@user_script: ?%d+: %-', '')  -- Redis 6.2 names the script
    return done
  end

  -- judge every limit; the reply reports the first one, unless another leaves less
  local max, window, index, running = max, window, 1, ends > now
  limited, remaining, never, wait, dead = 0, nil, false, 0, length
  repeat
    local gone = 0  -- stamps that have left this window
    if length > 0 and not even then
      if newest <= now - window then
        gone = length
      elseif oldest <= now - window then
        gone = call('ZCOUNT', key, 0, now - window)
      end
    end
    if gone < dead then dead = gone end
    local count = length - gone
    local lack = count + cost - max
    if cost > max then
      never = true
    elseif cost > 0 and lack > 0 then
      local blocker = oldest
      if gone + lack > 1 and not even then
        local rank = skip + gone + lack - 1
        blocker = number(call('ZRANGE', key, rank, rank)[1]:sub(1, 16))
      end
      wait = most(wait, blocker + window - clock)
    end
    local spare = max - count
    if spare < 0 then spare = 0 end
    if not remaining or spare < remaining and not running then
      limit, remaining, told, held = max, spare, window, count > 0
    end
    index = index + 2
    max, window = others and others[index], others and others[index + 1]
  until not max
  if cost > 0 and newest and now - newest < gap then wait = most(wait, newest + gap - clock) end
  if running then
    remaining, wait = 0, most(wait, ends - clock)
  end
  if running or never or wait > 0 then limited = 1 end

  -- write, and judge again after a change
  if refund then
    local count = math.min(cost, length - dead)
    if count > 0 then
      done = pcall('ZREMRANGEBYRANK', key, -count, -1)
      length, write = length - count, true
      if length == 0 then
        newest = nil
      elseif not even then
        newest = number(call('ZRANGE', key, -1, -1)[1]:sub(1, 16))
      end
    end
    now, mode, cost, refund = most(clock, newest or 0), 'peek', 1, false
  elseif not hit or running or never then
    break
  elseif wait == 0 or strict then
    done = add(cost)
    length, write = length + cost, true
    local drop = dead
    if length - keep > drop then drop = length - keep end
    if drop + skip > 0 and type(done) ~= 'table' then
      call('ZREMRANGEBYRANK', key, 0, drop + skip - 1)
      length, skip = length - drop, 0
    end
    if wait == 0 and type(done) ~= 'table' then
      remaining, held = remaining - cost, true
      break
    end
    strict = false
    if type(done) ~= 'table' then
      oldest = number(call('ZRANGE', key, 0, 0)[1]:sub(1, 16))
    end
  elseif penalty then
    ends, write = most(now + penalty, clock + wait), true
    if skip == 1 then call('ZREMRANGEBYRANK', key, 0, 0) end
    done = pcall('ZADD', key, -ends, ('-%.0f'):format(ends))
    skip = 1
  else
    break
  end
end

local reset, last = 0, 0
if held then reset = newest + told - clock end
if length > 0 then last = newest + longest - clock end
if ends > now then reset, last = most(reset, ends - clock), most(last, ends - clock) end
if last < 0 then last = 0 end
if write and length + skip > 0 then call('PEXPIRE', key, ceil(last / 1000) + 1) end
local retry = -1
if limited == 1 and not never then retry = ceil(wait / unit) end
return {limited, limit, remaining, retry, ceil(reset / unit)}
