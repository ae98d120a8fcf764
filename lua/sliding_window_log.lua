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

local most, cost, gap, strict, keep, longest = math.max, 1, 0, false, max, window
local mode, penalty, others
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

-- skip: elements before the stamps; length: number of stamps; ends: end of the penalty; even: all
-- stamps equal the clock; write: a TTL must be set
local now, skip, length, ends, oldest, newest, even, write = clock, 0, 0, 0, nil, nil, false, false
local first = pcall('LINDEX', key, 0)
if first then
  if type(first) == 'table' then return first end
  oldest = first
  if #first == 17 and first:find('^%-%d+$') then
    skip, ends, oldest = 1, -number(first), call('LINDEX', key, 1)
  end
  if oldest then
    newest = call('LINDEX', key, -1)
    if #oldest ~= 16 or #newest ~= 16 or not (oldest .. newest):find('^%d+$') then
      return redis.error_reply('ERR the key holds no LOG limiter')
    end
    oldest, newest, length = number(oldest), number(newest), call('LLEN', key) - skip
    if newest > clock then now = newest end
  end
end
local hit, refund, done = cost > 0 and mode ~= 'peek' and mode ~= 'refund', mode == 'refund', nil
local far = length > 0 and newest - clock > longest
local add
if far or cost > 1 then
  add = function(count)
    local stamps, stamp = {}, ('%.0f'):format(now)  -- so that Redis does not format 100,000 numbers
    for index = 1, math.min(count, 4000) do stamps[index] = stamp end
    for first = 1, count, 4000 do
      local pushed = pcall('RPUSH', key, unpack(stamps, 1, math.min(4000, count - first + 1)))
      if type(pushed) == 'table' then return pushed end
    end
  end
end
if far then
  -- later than this rule can have set them: the hits count as hits of this moment
  now, oldest, newest, even, length = clock, clock, clock, true, math.min(length, keep)
  if hit or refund then
    write = true
    done = add(length)
    if type(done) ~= 'table' then
      call('LTRIM', key, -length, -1)
      skip = 0
      if ends > now then
        call('LPUSH', key, -ends)
        skip = 1
      end
    end
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
        -- the first stamp alive is in (gone, alive]: gallop from the oldest, then halve
        local function left(index)
          return number(call('LINDEX', key, skip + index)) <= now - window
        end
        local alive, step = length - 1, 1
        while step < alive and left(step) do gone, step = step, step * 2 end
        if step < alive then alive = step end
        while alive - gone > 1 do
          local middle = math.floor((gone + alive) / 2)
          if left(middle) then gone = middle else alive = middle end
        end
        gone = alive
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
        blocker = number(call('LINDEX', key, skip + gone + lack - 1))
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
      done = pcall('LTRIM', key, 0, -count - 1)
      length, write = length - count, true
      if length == 0 then
        newest = nil
      elseif not even then
        newest = number(call('LINDEX', key, -1))
      end
    end
    now, mode, cost, refund = most(clock, newest or 0), 'peek', 1, false
  elseif not hit or running or never then
    break
  elseif wait == 0 or strict then
    if cost == 1 then done = pcall('RPUSH', key, now) else done = add(cost) end
    newest, length, write = now, length + cost, true
    local drop = dead
    if length - keep > drop then drop = length - keep end
    if drop + skip > 0 and type(done) ~= 'table' then
      call('LTRIM', key, drop + skip, -1)
      length, skip = length - drop, 0
    end
    if wait == 0 and type(done) ~= 'table' then
      remaining, held = remaining - cost, true
      break
    end
    strict = false
    if type(done) ~= 'table' then
      oldest = number(call('LINDEX', key, 0))
    end
  elseif penalty then
    ends, write = most(now + penalty, clock + wait), true
    if skip == 1 then call('LTRIM', key, 1, -1) end
    done = pcall('LPUSH', key, -ends)
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
