"""FastAPI with 5 requests in any 60 seconds for each client: uvicorn app_fastapi:app"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from rate_limit import RateLimit
from redis.asyncio import Redis

# Without retries: a hit that was sent again would count again.
client = Redis.from_url(
    os.environ.get("REDIS_URL", "redis://127.0.0.1:6380"),
    socket_connect_timeout=0.5,
    socket_timeout=0.5,
    retry=None,
)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Close the connections with the application."""
    yield
    await client.aclose()


app = FastAPI(lifespan=lifespan)
app.add_middleware(RateLimit, redis=client, max=5, window=60)


@app.get("/")
async def home() -> dict[str, str]:
    """Something to ask for."""
    return {"hello": "world"}
