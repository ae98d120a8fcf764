"""An ASGI middleware (Starlette, FastAPI, any other) that limits requests with rlproxy.

app.add_middleware(RateLimit, redis=client, max=100, window=60)
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

from redis import RedisError

log = logging.getLogger("rate_limit")
PROBLEM = "https://iana.org/assignments/http-problem-types#quota-exceeded"


def by_address(scope: Any) -> str | None:
    """A key for each client address. Behind a load balancer that is the balancer's, unless the
    server is told to trust its header (uvicorn: --proxy-headers, --forwarded-allow-ips).
    """
    return f"rate:{scope['client'][0]}" if scope.get("client") else None


class RateLimit:
    """Admits `max` requests in any `window` seconds (whole ones) for each key; 429 for the rest.

    key: scope -> the key, or None for what is not to be limited.
    fail_open: without an answer requests pass, uncounted; False: they get 503.
    """

    def __init__(
        self,
        app: Any,
        redis: Any,  # a redis.asyncio.Redis
        max: int,
        window: int,
        key: Callable[[Any], str | None] = by_address,
        name: str = "default",
        fail_open: bool = True,
    ) -> None:
        self.app = app
        self.redis = redis
        self.rule = (max, window)
        self.key = key
        self.name = name
        self.fail_open = fail_open
        self._failing = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        key = self.key(scope) if scope["type"] == "http" else None
        if key is None:
            await self.app(scope, receive, send)
            return
        try:
            reply = await self.redis.execute_command("RL.HIT", key, *self.rule)
        except (RedisError, OSError) as error:
            if not self._failing:  # one line when it begins, one when it is over
                log.warning(
                    "requests are %s: %s", "not counted" if self.fail_open else "503", error
                )
            self._failing = True
            if self.fail_open:
                await self.app(scope, receive, send)
            else:
                await answer(send, 503, {}, {"title": "Service Unavailable", "status": 503})
            return
        if self._failing:
            log.warning("requests are counted again")
            self._failing = False
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

    def fields(self, reply: list[int]) -> dict[str, str]:
        """The header fields that tell of the reply's five integers."""
        limited, _, remaining, retry_after, reset_after = reply
        quota, window = self.rule
        fields = {
            "RateLimit-Policy": f'"{self.name}";q={quota};w={window}',
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
