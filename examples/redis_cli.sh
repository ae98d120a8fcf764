#!/bin/sh
# At most 5 hits in any 60 seconds, with redis-cli: redis_cli.sh [KEY]
url=${REDIS_URL:-redis://127.0.0.1:6380}
key=${1:-limit:example:shell}

# Error replies of a Redis that is away, or can't run hits now.
unable="UPSTREAMDOWN LOADING BUSY OOM READONLY MASTERDOWN CLUSTERDOWN MISCONF NOREPLICAS"

hit() {
    reply=$(timeout 0.5 redis-cli --no-auth-warning -u "$url" --raw RL.HIT "$key" 5 60 2>&1 |
        tr '\n' ' ')
    for code in $unable; do
        case "$reply" in *"$code "*) reply="Error: $reply" ;; esac
    done
    case "$reply" in
    [01]" "*)
        set -- $reply # limited limit remaining retry_after reset_after
        [ "$1" = 0 ] && echo "admitted, $3 left" || echo "refused, again in $4 s" ;;
    "" | "Could not connect"* | "Error: "*)
        # No answer in half a second, no connection, or no Redis that can decide. Go on uncounted:
        # a limiter that is away must not take the service with it. (To stay closed, refuse here.)
        echo "admitted, not counted" && echo "RL.HIT: ${reply:-no answer}" >&2 ;;
    *)  # any other error is a mistake in the configuration, which must not pass for an outage
        echo "RL.HIT: $reply" >&2
        exit 1 ;;
    esac
}

for _ in 1 2 3 4 5 6; do hit; done
