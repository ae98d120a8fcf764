"""lookup: one lookup of a name at a time, whatever becomes of those that wait for it."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from rlproxy.upstream.lookup import addresses

FOUND = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (at, 0)) for at in ("10.0.0.1", "10.0.0.2")]


class Resolver:
    """Stands for getaddrinfo() of the running loop: it answers once a test sets a result."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        self.answers: list[asyncio.Future[Any]] = []
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", self._getaddrinfo)

    async def _getaddrinfo(self, host: str, _port: None, **_options: Any) -> Any:
        self.names.append(host)
        self.answers.append(asyncio.get_running_loop().create_future())
        return await self.answers[-1]


async def start(host: str) -> asyncio.Task[list[str]]:
    """Begin to wait for the addresses of `host`."""
    task = asyncio.ensure_future(addresses(host))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return task


async def test_a_name_has_one_lookup_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    resolver = Resolver(monkeypatch)
    first, second, other = [await start(host) for host in ("a", "a", "b")]
    assert resolver.names == ["a", "b"]
    first.cancel()  # its connection has timed out
    third = await start("a")
    assert resolver.names == ["a", "b"]
    for answer in resolver.answers:
        answer.set_result(FOUND)
    assert [await each for each in (second, third, other)] == [["10.0.0.1", "10.0.0.2"]] * 3
    await start("a")
    assert resolver.names == ["a", "b", "a"]


async def test_an_error_reaches_those_that_wait_and_no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, report: reports.append(report))
    resolver = Resolver(monkeypatch)
    for waits in (True, False):
        lookup = await start("a")
        if not waits:
            lookup.cancel()
        resolver.answers[-1].set_exception(socket.gaierror(-2, "Name or service not known"))
        with pytest.raises(socket.gaierror if waits else asyncio.CancelledError):
            await lookup
        await asyncio.sleep(0)
    assert resolver.names == ["a", "a"]
    assert reports == []


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "fe80::1%lo"])
async def test_an_address_needs_no_lookup(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    resolver = Resolver(monkeypatch)
    assert await addresses(host) == [host]
    assert resolver.names == []
