"""At most 5 hits in any 60 seconds, or by a policy, with redis-py: redis_py.py [KEY [POLICY]]"""

import os
import sys

import redis
import redis.exceptions as errors

KEY = sys.argv[1] if len(sys.argv) > 1 else "limit:example:redis-py"
RULE = ("POLICY", sys.argv[2]) if len(sys.argv) > 2 else (5, 60)
# Without retries: a hit that was sent again would count again.
client = redis.Redis.from_url(
    os.environ.get("REDIS_URL", "redis://127.0.0.1:6380"),
    socket_connect_timeout=0.5,
    socket_timeout=0.5,
    retry=None,
)

# A connection that is lost, and a Redis that is away or can't run hits now. BusyLoadingError
# (LOADING) is a ConnectionError, and MasterDownError a ClusterDownError.
UNABLE = (
    *(errors.ConnectionError, errors.TimeoutError, errors.ReadOnlyError),
    *(errors.OutOfMemoryError, errors.ClusterDownError),
)
UNABLE_TEXTS = ("UPSTREAMDOWN ", "BUSY ", "MISCONF ", "NOREPLICAS ")


def away(error: redis.RedisError) -> bool:
    """Whether nothing decided: no connection, no reply in time, or no Redis that can run hits now.
    Any other error reply is a mistake in the configuration, which must not pass for an outage.
    """
    if isinstance(error, redis.AuthenticationError):
        return False  # an error reply, although redis-py counts it among ConnectionError
    return isinstance(error, UNABLE) or str(error).startswith(UNABLE_TEXTS)


def hit(key: str) -> bool:
    """Whether one more is admitted."""
    try:
        limited, _, remaining, retry_after, _ = client.execute_command("RL.HIT", key, *RULE)
    except redis.RedisError as error:
        if not away(error):
            raise
        # Fail open: a limiter that is away must not take the service with it. For logins and the
        # like, where an uncounted try is worse than none: return False.
        print("RL.HIT:", error, file=sys.stderr)
        print("admitted, not counted")
        return True
    print(f"refused, again in {retry_after} s" if limited else f"admitted, {remaining} left")
    return not limited


try:
    for _ in range(6):
        hit(KEY)
except redis.RedisError as error:
    sys.exit(f"RL.HIT: {error}")
