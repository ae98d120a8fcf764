"""A server whose replies come late, by the clock of the loop, which is moved on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import pytest
from rlproxy.config.urls import Address


@contextlib.asynccontextmanager
async def slow_server(
    monkeypatch: pytest.MonkeyPatch, delay_s: float, exchanges: Sequence[tuple[bytes, bytes]]
) -> AsyncIterator[Address]:
    """Serve one client: after the last word of each request, `delay_s` pass before its reply."""
    loop = asyncio.get_running_loop()
    real, passed_s = loop.time, 0.0
    monkeypatch.setattr(loop, "time", lambda: real() + passed_s)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal passed_s
        for last_word, reply in exchanges:
            await reader.readuntil(last_word + b"\r\n")
            passed_s += delay_s
            await asyncio.sleep(0)  # timeouts come first
            writer.write(reply)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield Address("127.0.0.1", server.sockets[0].getsockname()[1])
