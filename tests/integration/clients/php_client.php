<?php
// A load client for phpredis: php_client.php PORT SECONDS CONNECTIONS
[, $port, $seconds, $connections] = array_map('intval', $argv);
$end = microtime(true) + $seconds;
$seen = [];
$errors = [];

function hit(): array
{
    $number = random_int(0, 19);
    return ['RL.HIT', "exact:$number", 2 + 3 * $number, 40 + 25 * $number, 'MS'];
}

function note(array $words, mixed $reply): void
{
    global $seen, $errors;
    if ($words[0] === 'PING') {
        if ($reply !== true && $reply !== 'PONG') {
            $errors[] = 'PING got ' . json_encode($reply);
        }
        return;
    }
    if (!is_array($reply) || count($reply) !== 5 || ($reply[0] === 0) !== ($reply[3] === -1)
        || $reply[3] === 0) {
        $errors[] = implode(' ', $words) . ' got ' . json_encode($reply);
        return;
    }
    $kind = "$words[1] $reply[0] $reply[1] $reply[2]";
    $seen[$kind] = ($seen[$kind] ?? 0) + 1;
}

try {
    $all = [];
    for ($index = 0; $index < $connections; $index++) {
        $redis = new Redis();
        $redis->connect('127.0.0.1', $port, 20);
        $all[] = $redis;
    }
    $turn = random_int(0, 2);
    while (microtime(true) < $end) {
        $turn++;
        foreach ($all as $redis) {
            if ($turn % 3 === 0) {
                for ($index = 0; $index < 4; $index++) {
                    $words = hit();
                    note($words, $redis->rawCommand(...$words));
                }
                continue;
            }
            $many = [];
            for ($index = 0; $index < ($turn % 3 === 1 ? 12 : 4); $index++) {
                $many[] = hit();
                if ($turn % 3 === 1 && $index % 3 === 2) {
                    $many[] = ['PING'];
                }
            }
            $redis->multi($turn % 3 === 1 ? Redis::PIPELINE : Redis::MULTI);
            foreach ($many as $words) {
                $redis->rawCommand(...$words);
            }
            foreach ($redis->exec() as $index => $reply) {
                note($many[$index], $reply);
            }
        }
    }
} catch (Throwable $error) {
    $errors[] = $error->getMessage();
}
foreach ($seen as $kind => $count) {
    echo "$kind $count\n";
}
foreach (array_slice($errors, 0, 20) as $text) {
    echo "ERROR $text\n";
}
