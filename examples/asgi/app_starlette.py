"""Starlette with 5 requests in any 60 seconds for each client: uvicorn app_starlette:app"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rate_limit import RateLimit
from redis.asyncio import Redis
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

# Without retries: a hit that was sent again would count again.
client = Redis.from_url(
    os.environ.get("REDIS_URL", "redis://127.0.0.1:6380"),
    socket_connect_timeout=0.5,
    socket_timeout=0.5,
    retry=None,
)


async def home(_: Request) -> JSONResponse:
    """Something to ask for."""
    return JSONResponse({"hello": "world"})


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    """Close the connections with the application."""
    yield
    await client.aclose()


app = Starlette(
    routes=[Route("/", home)],
    middleware=[Middleware(RateLimit, redis=client, max=5, window=60)],
    lifespan=lifespan,
)
