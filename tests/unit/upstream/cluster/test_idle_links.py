"""idle_links: which links of a client close, and when; with fake clients and a clock handed in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from rlproxy.config.urls import Address
from rlproxy.upstream.cluster.exchange import Exchange
from rlproxy.upstream.cluster.idle_links import IDLE_S, LOOK_S, SHARE, IdleLinks
from rlproxy.upstream.cluster.link import Link, LinkOwner


class FakeLink:
    """A link: what the sweep sees of it."""

    def __init__(self) -> None:
        self.used = True
        self.used_at = 0.0
        self.busy = False

    def quiescent(self) -> bool:
        return not self.busy


class FakeClient:
    """A client with a link home and two others. looks: how often it was looked at."""

    def __init__(self) -> None:
        self.all = {name: FakeLink() for name in ("home", "one", "two")}
        self.held: FakeLink | None = None
        self.looks = 0

    @property
    def links(self) -> dict[str, FakeLink]:
        self.looks += 1
        return self.all

    def is_home(self, link: FakeLink) -> bool:
        return link is self.all["home"]

    def holds_state(self, link: FakeLink) -> bool:
        return link is self.held

    def forget(self, link: FakeLink) -> None:
        self.all = {name: each for name, each in self.all.items() if each is not link}


class Bench:
    """Clients, and a sweep once a second."""

    def __init__(self, number: int = 1) -> None:
        self.now = 1000.0
        self.clients = [FakeClient() for _ in range(number)]
        self.present = set(self.clients)
        self.idle = IdleLinks(cast("set[Exchange]", self.present))

    def sweep(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += 1.0
            self.idle.sweep(self.now)


def test_links_close_that_are_silent_except_home() -> None:
    bench = Bench()
    (client,) = bench.clients
    bench.sweep(IDLE_S)
    assert len(client.all) == 3
    bench.sweep(LOOK_S + 1)
    assert list(client.all) == ["home"]


def test_a_link_that_is_used_busy_or_holds_state_stays() -> None:
    bench = Bench()
    (client,) = bench.clients
    client.held = client.all["two"]
    client.all["one"].busy = True
    bench.sweep(3 * IDLE_S)
    assert len(client.all) == 3
    client.all["one"].busy = False
    client.held = None
    for _ in range(20):
        client.all["one"].used = True
        bench.sweep(LOOK_S)
    assert list(client.all) == ["home", "one"]


def test_each_client_is_looked_at_at_most_every_10_seconds() -> None:
    bench = Bench(1000)
    for client in bench.clients:
        for link in client.all.values():
            link.busy = True
    bench.sweep(1)
    assert 0 < sum(client.looks > 0 for client in bench.clients) <= 1000 // SHARE + 1
    bench.sweep(10 * LOOK_S - 1)
    looks = {client.looks // 2 for client in bench.clients}  # a look reads `links` twice
    assert max(looks) == 10 and min(looks) >= 9


def test_a_client_that_is_gone_is_not_looked_at() -> None:
    bench = Bench()
    (client,) = bench.clients
    bench.present.clear()
    bench.sweep(3 * IDLE_S)
    assert client.looks == 0


def test_a_link_is_quiescent_once_nothing_is_owed() -> None:
    link = Link(LinkOwner(), Address("h", 1))
    assert not link.quiescent()  # not open yet
    link._transport = cast("object", SimpleNamespace())  # type: ignore[assignment]
    assert link.quiescent()
    link.send_raw(b"*0\r\n")
    assert not link.quiescent() and not link.used
