# At most 5 hits in any 60 seconds, with redis-rb: ruby redis_rb.rb [KEY]
require "redis"

# Without retries: a hit that was sent again would count again.
CLIENT = Redis.new(
  url: ENV.fetch("REDIS_URL", "redis://127.0.0.1:6380"),
  timeout: 0.5,
  reconnect_attempts: 0
)

# Error replies of a Redis that is away, or can't run hits now.
UNABLE = %w[UPSTREAMDOWN LOADING BUSY OOM READONLY MASTERDOWN CLUSTERDOWN MISCONF NOREPLICAS].freeze

# Whether nothing decided: no connection, no reply in time, or no Redis that can. Any other error
# reply is a mistake in the configuration, which must not pass for an outage.
def away?(error)
  error.is_a?(Redis::BaseConnectionError) || UNABLE.include?(error.message.split.first)
end

def hit(key)
  limited, _, remaining, retry_after, = CLIENT.call("RL.HIT", key, 5, 60)
  puts limited == 1 ? "refused, again in #{retry_after} s" : "admitted, #{remaining} left"
  limited.zero?
rescue Redis::BaseError => e
  raise unless away?(e)

  # Fail open: a limiter that is away must not take the service with it. For logins and the like,
  # where an uncounted try is worse than none: false.
  warn "RL.HIT: #{e.message}"
  puts "admitted, not counted"
  true
end

begin
  6.times { hit(ARGV.fetch(0, "limit:example:ruby")) }
rescue Redis::CommandError => e
  abort "RL.HIT: #{e.message}"
end
