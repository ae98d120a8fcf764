# At most 5 hits in any 60 seconds, with redis-rb: ruby redis_rb.rb [KEY]
require "redis"

# Without retries: a hit that was sent again would count again.
CLIENT = Redis.new(
  url: ENV.fetch("REDIS_URL", "redis://127.0.0.1:6380"),
  timeout: 0.5,
  reconnect_attempts: 0
)

def hit(key)
  limited, _, remaining, retry_after, = CLIENT.call("RL.HIT", key, 5, 60)
  puts limited == 1 ? "refused, again in #{retry_after} s" : "admitted, #{remaining} left"
  limited.zero?
rescue Redis::BaseError => e
  # Fail open: a limiter that is away must not take the service with it. For logins and the like,
  # where an uncounted try is worse than none: false.
  warn "RL.HIT: #{e.message}"
  puts "admitted, not counted"
  true
end

6.times { hit(ARGV.fetch(0, "example:ruby")) }
