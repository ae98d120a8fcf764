-- Writes `state`, if there is one, with the penalty that runs until `ends`. It lives for `reset` us.
if state then
  local done = redis.pcall('SET', key, state .. (running and ('!%.0f'):format(ends) or ''),
    'PX', ceil(reset / 1000) + 1)
  if done.err then
    done.err = done.err:gsub('^@user_script: ?%d+: %-', '')  -- Redis 6.2 names the script
    return done
  end
end
