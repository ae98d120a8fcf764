"""links: which links of a client close, and when; with fake links and a clock handed in."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from rlproxy.config.urls import Address
from rlproxy.upstream.cluster.cluster import Cluster
from rlproxy.upstream.cluster.exchange import Exchange
from rlproxy.upstream.cluster.face import Face
from rlproxy.upstream.cluster.link import Link, LinkOwner, _is_reply
from rlproxy.upstream.cluster.links import IDLE_S, Links
from rlproxy.upstream.cluster.request import Request
from rlproxy.upstream.cluster.slot_map import Shard, slot_map
from rlproxy.upstream.cluster.target import SWEEPS, ClusterTarget

HOME, ONE, TWO = (Address("h", port) for port in (1, 2, 3))


class FakeLink:
    """A link: what the sweep sees of it."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.idle_since = 0.0
        self.finished = False
        self.aside = False
        self.owed: list[Request] = []

    def close(self) -> None:
        pass


class FakeCluster:
    """A cluster of three masters."""

    def __init__(self) -> None:
        self.map = slot_map({Shard(str(at), at): [] for at in (HOME, ONE, TWO)})
        self.unlisted: dict[Address, str] = {}
        self.upstream = "redis+cluster://h"


class Client:
    """The links of a client: home and two others."""

    def __init__(self) -> None:
        loop = cast("asyncio.AbstractEventLoop", None)
        self.links = Links(cast("Cluster", FakeCluster()), loop, LinkOwner())
        self.links._home = HOME
        self.fakes = {address: FakeLink(address) for address in (HOME, ONE, TWO)}
        self.links.by_address = cast("dict[Address, Link]", dict(self.fakes))
        self.now = 1000.0

    def sweep(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += 1.0
            self.links.sweep(self.now)

    def left(self) -> list[Address]:
        return list(self.links.by_address)


def test_a_link_that_is_used_busy_or_holds_state_stays() -> None:
    client = Client()
    held = client.fakes[TWO]
    client.links.holds_state = lambda link: cast("object", link) is held
    client.fakes[ONE].owed = [Request(b"")]
    client.sweep(3 * IDLE_S)
    assert client.left() == [HOME, ONE, TWO]
    client.fakes[ONE].owed = []
    client.links.holds_state = lambda _link: False
    for _ in range(20):
        client.fakes[ONE].idle_since = 0.0
        client.sweep(10)
    assert client.left() == [HOME, ONE]


def test_a_command_makes_an_idle_link_one_in_use() -> None:
    client = Client()
    link = client.links.by_address[ONE] = Link(LinkOwner(), ONE)
    for _ in range(20):
        link.send(Request(b"GET"))
        link.owed.clear()
        client.sweep(10)
    assert client.left() == [HOME, ONE]


async def test_each_client_is_looked_at_once_in_ten_sweeps() -> None:
    target = ClusterTarget(cast("Cluster", FakeCluster()), lambda _: Face("h", 1), True)
    looks = dict.fromkeys(range(1000), 0)

    class FakeExchange:
        def __init__(self, at: int) -> None:
            self.at = at
            self.links = self

        def sweep(self, _now: float) -> None:
            looks[self.at] += 1

    for at in looks:
        target._exchanges[cast("Exchange", FakeExchange(at))] = None
    target.sweep(0.0)
    assert sum(looks.values()) == 1000 // SWEEPS + 1
    for _ in range(10 * SWEEPS - 1):
        target.sweep(0.0)
    assert set(looks.values()) == {10, 11}
    target._exchanges.clear()
    target.sweep(0.0)
    assert set(looks.values()) == {10, 11}


def test_a_message_on_a_channel_with_the_name_of_a_command_is_no_reply() -> None:
    request = Request(b"")
    request.subscribes = b"ssubscribe"
    assert _is_reply(b">3\r\n$10\r\nssubscribe\r\n$1\r\nc\r\n:1\r\n", request)
    assert not _is_reply(b">3\r\n$7\r\nmessage\r\n$10\r\nssubscribe\r\n$1\r\nx\r\n", request)
    assert not _is_reply(b">3\r\n$10\r\nssubscribe\r\n$1\r\nc\r\n:1\r\n", Request(b""))


def test_home_changes_once_it_is_no_master_and_unused() -> None:
    client = Client()
    cluster = client.links.cluster
    cluster.map = slot_map({Shard(str(at), at): [] for at in (ONE, TWO)})
    cluster.home = lambda failed=None: ONE if failed == HOME else None  # type: ignore[method-assign]
    home = client.fakes[HOME]
    home.owed = [Request(b"")]
    assert client.links.home().address == HOME
    home.owed = []
    client.links.holds_state = lambda link: cast("object", link) is home
    assert client.links.home().address == HOME
    client.links.holds_state = lambda _link: False
    assert client.links.home().address == ONE


class Wire(asyncio.Transport):
    """What a link writes."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def taken(self) -> bytes:
        """What was written since."""
        out = b"".join(self.written)
        self.written.clear()
        return out


@pytest.mark.parametrize("opened", [False, True], ids=["opening link", "open link"])
def test_several_logins_are_written_one_by_one(opened: bool) -> None:
    """Commands between two logins run as the user of the first, or never."""
    link, wire = Link(LinkOwner(), ONE), Wire()
    if opened:
        link.connection_made(wire)
    for words in (b"AUTH 1", b"AUTH 2", b"SETNAME", b"AUTH 3", b"GET"):
        (link.log_in if words.startswith(b"AUTH") else link.send)(Request(words))
    if not opened:
        link.connection_made(wire)
    parts = [b"AUTH 1", b"AUTH 2", b"SETNAMEAUTH 3", b"GET"]
    for part in parts:
        link.flush()
        assert wire.taken() == part
        link.flush()
        assert wire.taken() == b""
        if part != parts[-1]:
            link.logged_in()
