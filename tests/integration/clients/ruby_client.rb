# A load client for redis-rb: ruby_client.rb PORT SECONDS CONNECTIONS
require "redis"
port, seconds, connections = ARGV.map(&:to_i)
finish = Process.clock_gettime(Process::CLOCK_MONOTONIC) + seconds
SEEN = Hash.new(0)
ERRORS = []
LOCK = Mutex.new

def hit
  number = rand(20)
  ["RL.HIT", "exact:#{number}", 2 + 3 * number, 40 + 25 * number, "MS"]
end

def note(words, reply)
  LOCK.synchronize do
    if words[0] == "PING"
      ERRORS << "PING got #{reply.inspect}" if reply != "PONG"
    elsif !reply.is_a?(Array) || reply.size != 5 || (reply[0] == 0) != (reply[3] == -1) ||
          reply[3] == 0
      ERRORS << "#{words} got #{reply.inspect}"
    else
      SEEN[[words[1], *reply[0, 3]]] += 1
    end
  end
end

threads = connections.times.map do
  Thread.new do
    redis = Redis.new(host: "127.0.0.1", port: port, reconnect_attempts: 0, timeout: 20)
    turn = rand(3)
    while Process.clock_gettime(Process::CLOCK_MONOTONIC) < finish
      turn += 1
      case turn % 3
      when 0
        4.times { words = hit; note(words, redis.call(*words)) }
      when 1
        many = 12.times.flat_map { |i| i % 3 == 2 ? [hit, ["PING"]] : [hit] }
        got = redis.pipelined { |pipe| many.each { |words| pipe.call(*words) } }
        many.zip(got) { |words, reply| note(words, reply) }
      else
        many = 4.times.map { hit }
        got = redis.multi { |pipe| many.each { |words| pipe.call(*words) } }
        many.zip(got) { |words, reply| note(words, reply) }
      end
    end
  rescue StandardError => e
    LOCK.synchronize { ERRORS << e.inspect }
  end
end
threads.each(&:join)
SEEN.each { |kind, count| puts [*kind, count].join(" ") }
ERRORS.first(20).each { |text| puts "ERROR #{text}" }
