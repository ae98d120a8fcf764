"""A client's socket: what is decided there without one."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from proxy import scripts
from proxy.calls import Settings
from proxy.config import Address
from proxy.downstream import MAX_TURN, Downstream, Shared
from proxy.grammar import Grammar
from proxy.upstream import Target


class FakeLoop:
    """Calls what is to be called soon when told to."""

    def __init__(self) -> None:
        self.soon: list[Any] = []

    def time(self) -> float:
        return 0.0

    def call_soon(self, function: Any) -> None:
        self.soon.append(function)


class FakeTransport:
    """Remembers whether it reads."""

    def __init__(self) -> None:
        self.reading = True

    def get_extra_info(self, _: str) -> None:
        return None

    def is_closing(self) -> bool:
        return False

    def write(self, _: bytes) -> None:
        pass

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


def test_a_full_read_is_a_turn() -> None:
    """uvloop would read the same client 32 times in a row before anybody else."""
    loop, transport = FakeLoop(), FakeTransport()
    settings = Settings(Grammar(scripts.load()), lambda _: None, "nowhere")
    target = Target(Address("127.0.0.1", 1), 1.0)
    client = Downstream(Shared(cast("asyncio.AbstractEventLoop", loop), settings, target))
    client.connection_made(cast("asyncio.BaseTransport", transport))
    client.data_received(b"\r\n" * (MAX_TURN // 2 - 1))
    assert transport.reading
    for _ in range(3):
        client.data_received(b"\r\n" * (MAX_TURN // 2))
        assert not transport.reading
        (rested,) = loop.soon
        loop.soon.clear()
        rested()
        assert transport.reading
