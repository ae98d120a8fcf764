"""An ASGI middleware (Starlette, FastAPI, any other) that limits requests with rlproxy.

app.add_middleware(RateLimit, redis=client, max=100, window=60)
app.add_middleware(RateLimit, redis=client, policy="login")
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from ipaddress import IPv6Address
from typing import Any

import redis.exceptions as errors

log = logging.getLogger("rate_limit")
PROBLEM = "https://iana.org/assignments/http-problem-types#quota-exceeded"

# A connection that is lost, and a Redis that is away or can't run hits now. BusyLoadingError
# (LOADING) is a ConnectionError, and MasterDownError a ClusterDownError.
UNABLE = (
    *(OSError, errors.ConnectionError, errors.TimeoutError, errors.ReadOnlyError),
    *(errors.OutOfMemoryError, errors.ClusterDownError),
)
UNABLE_TEXTS = ("UPSTREAMDOWN ", "BUSY ", "MISCONF ", "NOREPLICAS ")


def by_address(scope: Any) -> str | None:
    """A key for each client address, of IPv6 for its first 64 bits: one client has all the rest.
    Behind a load balancer the address is the balancer's, unless the server is told to trust its
    header (uvicorn: --proxy-headers, --forwarded-allow-ips).
    """
    if not scope.get("client"):
        return None
    address = scope["client"][0]
    if ":" in address:
        ip = IPv6Address(address.partition("%")[0])
        address = ip.ipv4_mapped or ip.exploded[:19]
    return f"limit:{address}"


def away(error: Exception) -> bool:
    """Whether nothing decided: no connection, no reply in time, or no Redis that can run hits now.
    Any other error reply is a mistake in the configuration, which must not pass for an outage.
    """
    if isinstance(error, errors.AuthenticationError):
        return False  # an error reply, although redis-py counts it among ConnectionError
    return isinstance(error, UNABLE) or str(error).startswith(UNABLE_TEXTS)


class RateLimit:
    """Admits `max` requests in any `window` seconds (whole ones) for each key; 429 for the rest.

    policy: in place of max and window, a policy of the proxy's settings; its times are in seconds.
        The reply has the quota, but no window, so RateLimit-Policy has no `w`.
    key: scope -> the key, or None for what is not to be limited.
    fail_open: while Redis is away, or can't run hits, requests pass, uncounted; False: they get
        503. After another error reply (a wrong password, a missing right, a wrong rule) they get
        500 in either case.
    """

    def __init__(
        self,
        app: Any,
        redis: Any,  # a redis.asyncio.Redis
        max: int = 0,
        window: int = 0,
        key: Callable[[Any], str | None] = by_address,
        name: str = "",
        fail_open: bool = True,
        policy: str = "",
    ) -> None:
        self.app = app
        self.redis = redis
        self.rule = ("POLICY", policy) if policy else (max, window)
        self.window = 0 if policy else window
        self.key = key
        self.name = name or policy or "default"
        self.fail_open = fail_open
        self._failing = ""  # how requests are treated without an answer; empty: they are counted

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        key = self.key(scope) if scope["type"] == "http" else None
        if key is None:
            await self.app(scope, receive, send)
            return
        try:
            reply = await self.redis.execute_command("RL.HIT", key, *self.rule)
        except (errors.RedisError, OSError) as error:
            if not away(error):
                self._log("answered 500, the rate limit is misconfigured", error)
                await answer(send, 500, {}, {"title": "Internal Server Error", "status": 500})
            elif self.fail_open:
                self._log("not counted", error)
                await self.app(scope, receive, send)
            else:
                self._log("answered 503", error)
                await answer(send, 503, {}, {"title": "Service Unavailable", "status": 503})
            return
        if self._failing:
            log.warning("requests are counted again")
            self._failing = ""
        fields = self.fields(reply)
        if reply[0]:
            problem = {"type": PROBLEM, "title": "Quota Exceeded", "status": 429}
            await answer(send, 429, fields, {**problem, "violated-policies": [self.name]})
            return

        async def send_with_fields(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", []), *encoded(fields)]}
            await send(message)

        await self.app(scope, receive, send_with_fields)

    def _log(self, failing: str, error: Exception) -> None:
        """One line when it begins, and when it changes."""
        if failing != self._failing:
            log.error("requests are %s: %s", failing, error)
        self._failing = failing

    def fields(self, reply: list[int]) -> dict[str, str]:
        """The header fields that tell of the reply's five integers."""
        limited, quota, remaining, retry_after, reset_after = reply
        window = f";w={self.window}" if self.window else ""
        fields = {
            "RateLimit-Policy": f'"{self.name}";q={quota}{window}',
            "RateLimit": f'"{self.name}";r={remaining};t={retry_after if limited else reset_after}',
        }
        return {"Retry-After": str(retry_after), **fields} if limited else fields


def encoded(fields: dict[str, str]) -> list[tuple[bytes, bytes]]:
    """Header fields as ASGI has them."""
    return [(name.lower().encode(), value.encode()) for name, value in fields.items()]


async def answer(send: Any, status: int, fields: dict[str, str], problem: dict[str, Any]) -> None:
    """A response without the application."""
    body = json.dumps(problem).encode()
    about = {"Content-Type": "application/problem+json", "Content-Length": str(len(body))}
    headers = encoded({**fields, **about})
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
