-- algo     every one: ARGV[1] names that of the limiter
-- guarantee every hit of the algorithm on the key is refused until the block is over
-- state    that of the algorithm, with the end of the block as the end of its penalty. A key without
--          state gets an empty one: its times are 0, long ago under every rule
-- KEYS[1]  the limiter
-- ARGV[1]  LOG, ZLOG, FIXED, COUNTER, TOKEN, LEAKY or GCRA
-- ARGV[2]  length of the block, microseconds; 0 lifts it
-- ARGV[3]  unit of the times in the reply, microseconds: 1000000, 1000 or 1
-- ARGV[4]  clock, microseconds since 1970; default TIME (only tests pass it)
-- returns  limited, limit, remaining, retry_after, reset_after of the block alone: limit and
--          remaining are 0
-- cost     LOG: TIME LINDEX RPUSH PEXPIRE, and LINDEX LINDEX PTTL LTRIM on a key with state, with
--          LPUSH in place of RPUSH on one with stamps; ZLOG: TIME ZRANGE ZADD PEXPIRE, and ZRANGE
--          ZRANGE PTTL ZREMRANGEBYRANK; others: TIME GET SET, and PTTL
local call, pcall, number, ceil = redis.call, redis.pcall, tonumber, math.ceil
local key, algo, span, unit = KEYS[1], ARGV[1], number(ARGV[2]), number(ARGV[3])
local clock = number(ARGV[4])
if not clock then
  local time = call('TIME')
  clock = time[1] * 1000000 + time[2]
end

-- state: the value of a string without its penalty; filled: the key holds more than a penalty;
-- old: the end of the penalty that it holds, which may be over; newest: the latest time in it
local state, filled, old, newest = nil, false, nil, 0
local foreign = redis.error_reply('ERR the key holds no ' .. algo .. ' limiter')
local log = algo == 'LOG'
if log or algo == 'ZLOG' then
  local function element(index)
    if log then return pcall('LINDEX', key, index) end
    local found = pcall('ZRANGE', key, index, index)
    return found.err and found or found[1]
  end
  local first = element(0)
  if type(first) == 'table' then return first end
  if first and #first == 17 and first:find('^%-%d+$') then
    old, first = -number(first), element(1)
  end
  if first then
    local stamp = log and '^(%d+)$' or '^(%d+)%-%d%d%d%d%d%d$'
    local oldest, latest = first:match(stamp), element(-1):match(stamp)
    if not oldest or not latest or #oldest ~= 16 or #latest ~= 16 then return foreign end
    filled, newest = true, number(latest)
  end
else
  local zeros = ('0'):rep(16)
  local forms = {  -- the state, its time and the penalty; an empty state
    FIXED = {'^(F%d+:(%d+))(.*)$', 'F0:' .. zeros},
    COUNTER = {'^(C(%d+):%d+:%d+)(.*)$', 'C' .. zeros .. ':0:0'},
    TOKEN = {'^(T%d+:(%d+))(.*)$', 'T0:000' .. zeros},
    LEAKY = {'^(L%d+:(%d+))(.*)$', 'L0:000' .. zeros},
    GCRA = {'^((%d+))(.*)$', '000' .. zeros},
  }
  local form, empty = unpack(forms[algo])
  local value = pcall('GET', key)
  if type(value) == 'table' then return value end
  local _, none = empty:match(form)
  local held, time, over = (value or empty):match(form)
  if not held or #time ~= #none then return foreign end
  if over ~= '' then
    old = number(over:match('^!(%d+)$'))
    if not old then return foreign end
  end
  state, filled = held, held ~= empty
  -- GCRA's time is a debt: a hit is judged at the clock, not at the time in the state
  if algo ~= 'GCRA' then
    newest = number(time:sub(1, 16)) + ceil((number(time:sub(17)) or 0) / 1000)
  end
end

-- A hit is judged at the later of the clock and the newest time, unless no rule can have set that
-- one: it is more than ten years ahead.
if newest < clock or newest - clock > 315360000000000 then newest = clock end
local ends, writes = newest + span, {}
local left = span > 0 and ends - clock or 0
-- need: the time to live until the block is over, milliseconds; nil if the key lives longer
local need = ceil(left / 1000) + 1
if filled and span > 0 then
  local ttl = pcall('PTTL', key)
  if type(ttl) == 'table' then return ttl end
  if ttl < 0 or ttl >= need then need = nil end  -- -1: for ever
end
if state then
  if span > 0 then
    writes[1] = {'SET', key, ('%s!%.0f'):format(state, ends), need and 'PX' or 'KEEPTTL', need}
  elseif old then
    writes[1] = filled and {'SET', key, state, 'KEEPTTL'} or {'DEL', key}
  end
else
  -- A key without stamps gets the new penalty before the old one goes. Else it would vanish in
  -- between, and a script can't make it again while its slot moves to another node.
  if span > 0 and ends ~= old then
    writes[1] = log and {filled and 'LPUSH' or 'RPUSH', key, -ends}
      or {'ZADD', key, -ends, ('-%.0f'):format(ends)}
  end
  if old and (span == 0 or ends ~= old) then
    local rank = span > 0 and not filled and ends > old and 1 or 0
    table.insert(writes, filled and 1 or #writes + 1, log and {'LTRIM', key, 1, -1}
      or {'ZREMRANGEBYRANK', key, rank, rank})
  end
  if span > 0 and need then writes[#writes + 1] = {'PEXPIRE', key, need} end
end
for index = 1, #writes do
  local done = pcall(unpack(writes[index]))
  if type(done) == 'table' and done.err then
    done.err = done.err:gsub('^@user_script: ?%d+: %-', '')  -- Redis 6.2 names the script
    return done
  end
end

local wait = ceil(left / unit)
return {span > 0 and 1 or 0, 0, 0, span > 0 and wait or -1, wait}
