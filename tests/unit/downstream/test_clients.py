"""clients: which are admitted, which a sweep checks, and which have left."""

from __future__ import annotations

import dataclasses
from typing import cast

from rlproxy.config.urls import UNIX_CLIENT, Address
from rlproxy.downstream.connection import ROUND, SWEPT, ClientConnection

from tests.unit.downstream.bench import Bench

HERE, THERE = Address("127.0.0.1", 1), Address("127.0.0.2", 2)


class Member:
    """A client that records what is done to it."""

    def __init__(self) -> None:
        self.swept: list[float] = []
        self.restricted = 0

    def sweep(self, now: float) -> None:
        self.swept.append(now)

    def restrict(self) -> None:
        self.restricted += 1


class Worker(Bench):
    """The clients of a worker."""

    def enter(self, peer: Address, count: int = 1) -> list[Member]:
        """Let `count` clients enter; all are admitted."""
        members = [Member() for _ in range(count)]
        for member in members:
            assert self.clients.enter(cast("ClientConnection", member), peer) is None
        return members

    def leave(self, member: Member) -> None:
        self.clients.leave(cast("ClientConnection", member))


def test_clients_are_counted_by_address() -> None:
    worker = Worker()
    (first, second), (third,) = worker.enter(HERE, 2), worker.enter(THERE)
    (unix,) = worker.enter(UNIX_CLIENT)
    assert worker.clients.addresses == {HERE.host: 2, THERE.host: 1}
    assert len(worker.clients.clients) == 4
    for member in (first, third, unix):
        worker.leave(member)
    assert worker.clients.addresses == {HERE.host: 1}
    worker.leave(second)
    assert worker.clients.addresses == {}
    assert worker.clients.clients == {}


def test_a_client_that_leaves_is_forgotten_everywhere() -> None:
    worker = Worker()
    left: list[int] = []
    worker.clients.on_leave = lambda: left.append(len(worker.clients.clients))
    (member,) = worker.enter(HERE)
    client = cast("ClientConnection", member)
    worker.clients.turned_away.add(client)
    worker.leave(member)
    assert not worker.clients.turned_away
    assert left == [0]
    worker.leave(member)
    assert left == [0, 0]  # a refused client leaves, too


def test_many_clients_are_all_checked_within_eight_sweeps() -> None:
    worker = Worker(max_clients=10_000)
    members = worker.enter(UNIX_CLIENT, ROUND * SWEPT + 800)
    for _ in range(ROUND):
        worker.clients.sweep()
    assert [len(member.swept) for member in members] == [1] * len(members)
    worker.clients.sweep()
    assert sum(len(member.swept) for member in members) == len(members) + len(members) // ROUND


def test_options_apply_to_the_clients_that_are_connected() -> None:
    worker = Worker(max_clients=1)
    (member,) = worker.enter(HERE)
    worker.clients.reconfigure(dataclasses.replace(worker.config, max_clients=2))
    assert member.restricted == 1
    worker.enter(HERE)
