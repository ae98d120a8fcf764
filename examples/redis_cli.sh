#!/bin/sh
# At most 5 hits in any 60 seconds, with redis-cli: redis_cli.sh [KEY]
url=${REDIS_URL:-redis://127.0.0.1:6380}
key=${1:-example:shell}

hit() {
    # Without an answer in half a second, or with an error for one, go on uncounted: a limiter
    # that is away must not take the service with it. (To stay closed instead, refuse at *.)
    reply=$(timeout 0.5 redis-cli -u "$url" --raw RL.HIT "$key" 5 60 2>/dev/null | tr '\n' ' ')
    set -- $reply # limited limit remaining retry_after reset_after
    case "$*" in
    "0 "*) echo "admitted, $3 left" ;;
    "1 "*) echo "refused, again in $4 s" ;;
    *) echo "admitted, not counted" && echo "RL.HIT: ${reply:-no answer}" >&2 ;;
    esac
}

for _ in 1 2 3 4 5 6; do hit; done
