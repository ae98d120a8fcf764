"""lookup: one lookup of a name at a time, whatever becomes of those that wait for it."""

from __future__ import annotations

import _thread
import asyncio
import socket
import subprocess
import sys
from concurrent.futures import Future
from typing import Any

import pytest
from rlproxy.upstream.connector import lacks
from rlproxy.upstream.lookup import addresses

from tests.harness import DEADLINE_S

FOUND = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (at, 0)) for at in ("10.0.0.1", "10.0.0.2")]


class Resolver:
    """Stands for the threads of the lookups: a test sets their results."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        self.answers: list[Future[list[str]]] = []
        monkeypatch.setattr(_thread, "start_new_thread", self._start)

    def _start(self, _resolve: object, args: tuple[str, Future[list[str]]]) -> None:
        host, found = args
        self.names.append(host)
        self.answers.append(found)


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
        answer.set_result(["10.0.0.1"])
    assert [await each for each in (second, third, other)] == [["10.0.0.1"]] * 3
    fourth = await start("a")
    assert resolver.names == ["a", "b", "a"]
    resolver.answers[-1].set_result([])  # no later test waits for it
    assert await fourth == []


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
        await asyncio.sleep(0)
    assert resolver.names == ["a", "a"]
    assert reports == []


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "fe80::1%lo"])
async def test_an_address_needs_no_lookup(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    resolver = Resolver(monkeypatch)
    assert await addresses(host) == [host]
    assert resolver.names == []


async def test_the_addresses_keep_the_order_of_the_resolver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **_options: FOUND)
    assert await addresses("a") == ["10.0.0.1", "10.0.0.2"]


async def test_a_lookup_without_a_thread_is_no_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    def start_new_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", start_new_thread)
    with pytest.raises(OSError, match="can't start new thread") as caught:
        await addresses("a")
    assert lacks(caught.value)


HANGS = """
import asyncio, socket, time
from rlproxy.upstream.lookup import addresses

async def main():
    lookup = asyncio.ensure_future(addresses("a"))
    while not begun:
        await asyncio.sleep(0.01)

def getaddrinfo(*_, **_options):
    begun.append(True)
    time.sleep(60)

begun = []
socket.getaddrinfo = getaddrinfo
asyncio.run(main())
"""


def test_a_resolver_that_hangs_does_not_delay_the_end() -> None:
    subprocess.run([sys.executable, "-c", HANGS], check=True, timeout=DEADLINE_S)
