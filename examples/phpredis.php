<?php
// At most 5 hits in any 60 seconds, with phpredis: php phpredis.php [KEY]
$url = parse_url(getenv('REDIS_URL') ?: 'redis://127.0.0.1:6380');

function connect(array $url): Redis
{
    $client = new Redis();
    // In a web server use pconnect(): connect() opens a connection for each request.
    $client->connect($url['host'], $url['port'], 0.5, null, 0, 0.5); // timeouts in seconds
    if (isset($url['pass'])) {
        $client->auth([$url['user'] ?: 'default', $url['pass']]);
    }
    $client->setOption(Redis::OPT_MAX_RETRIES, 0); // a hit that was sent again would count again
    return $client;
}

// Error replies of a Redis that is away, or can't run hits now.
const UNABLE = 'UPSTREAMDOWN|LOADING|BUSY|OOM|READONLY|MASTERDOWN|CLUSTERDOWN|MISCONF|NOREPLICAS';

// Whether nothing decided: no connection, no reply in time, or no Redis that can. Any other error
// reply (they begin with a code in capitals) is a mistake in the configuration, which must not pass
// for an outage.
function away(RedisException $error): bool
{
    return !preg_match('/^(?!(' . UNABLE . ') )[A-Z]+ /', $error->getMessage());
}

function hit(array $url, string $key): bool
{
    static $client = null;
    try {
        $client ??= connect($url);
        $reply = $client->rawCommand('RL.HIT', $key, 5, 60);
        if (!is_array($reply)) {
            throw new RedisException($client->getLastError() ?: 'no answer');
        }
    } catch (RedisException $error) {
        if (!away($error)) {
            throw $error;
        }
        // Fail open: a limiter that is away must not take the service with it. For logins and the
        // like, where an uncounted try is worse than none: return false.
        $client = null;
        fwrite(STDERR, "RL.HIT: {$error->getMessage()}\n");
        echo "admitted, not counted\n";
        return true;
    }
    [$limited, , $remaining, $retryAfter] = $reply;
    echo $limited ? "refused, again in $retryAfter s\n" : "admitted, $remaining left\n";
    return !$limited;
}

try {
    for ($turn = 0; $turn < 6; $turn++) {
        hit($url, $argv[1] ?? 'limit:example:php');
    }
} catch (RedisException $error) {
    fwrite(STDERR, "RL.HIT: {$error->getMessage()}\n");
    exit(1);
}
