-- What LOG and ZLOG have in common: all limits, GAP, STRICT and PENALTY.
-- The file that includes this one has key, max, window, unit and clock, and what it keeps stamps in:
--   algo          for errors
--   form, width   pattern and length of an element; the pattern captures the stamp
--   size          the command that returns the number of elements
--   now, newest   the effective time and the newest stamp, microseconds
--   latest        the element of the newest stamp, before any write
--   element(rank) returns the element of this rank, if there is one
--   gone_until(start, skip, length)
--                 returns how many stamps are `start` or earlier: the oldest is, the newest is not
--   change(what, count, ends)
--                 'add': so many stamps of `now`; 'renew': the same in place of all elements, behind
--                 the penalty until `ends` if that is not 0; 'drop oldest', 'drop newest': so many
--                 elements; 'punish': until `count`
-- Where these return a table, it is an error of Redis.
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
local skip, length, ends, oldest, even, write, done = 0, 0, 0, nil, false, false, nil
local first = element(0)
if first then
  if type(first) == 'table' then return first end
  oldest = first
  if #first == 17 and first:find('^%-%d+$') then
    skip, ends, oldest = 1, -number(first), element(1)
  end
  if oldest then
    latest = element(-1)
    local since, upto = oldest:match(form), latest:match(form)
    if not since or not upto or #oldest ~= width or #latest ~= width then
      return redis.error_reply('ERR the key holds no ' .. algo .. ' limiter')
    end
    oldest, newest, length = number(since), number(upto), call(size, key) - skip
    if newest > clock then now = newest end
  end
end
local hit, refund = cost > 0 and mode ~= 'peek' and mode ~= 'refund', mode == 'refund'
if length > 0 and newest - clock > longest then
  -- later than this rule can have set them: the hits count as hits of this moment
  now, oldest, newest, even, length = clock, clock, clock, true, math.min(length, keep)
  if hit or refund then
    local running = ends > now
    done, write = change('renew', length, running and ends or 0), true
    skip = running and 1 or 0
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
        gone = gone_until(now - window, skip, length)
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
        blocker = number(element(skip + gone + lack - 1):sub(1, 16))
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
      done = change('drop newest', count)
      length, write = length - count, true
      if length == 0 then
        newest = nil
      elseif not even then
        newest = number(element(-1):sub(1, 16))
      end
    end
    now, mode, cost, refund = most(clock, newest or 0), 'peek', 1, false
  elseif not hit or running or never then
    break
  elseif wait == 0 or strict then
    done = change('add', cost)
    newest, length, write = now, length + cost, true
    local drop = dead
    if length - keep > drop then drop = length - keep end
    if drop + skip > 0 and type(done) ~= 'table' then
      change('drop oldest', drop + skip)
      length, skip = length - drop, 0
    end
    if wait == 0 and type(done) ~= 'table' then
      remaining, held = remaining - cost, true
      break
    end
    strict = false
    if type(done) ~= 'table' then oldest = number(element(0):sub(1, 16)) end
  elseif penalty then
    ends, write = most(now + penalty, clock + wait), true
    if skip == 1 then change('drop oldest', 1) end
    done = change('punish', ends)
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
