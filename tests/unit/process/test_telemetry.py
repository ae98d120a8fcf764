"""telemetry: the figures of all workers, which each worker sends to its clients."""

from __future__ import annotations

import pickle
import time
from types import SimpleNamespace
from typing import cast

import pytest
from rlproxy.config.config import Config
from rlproxy.config.urls import Address
from rlproxy.downstream.connection import Clients
from rlproxy.net.listeners import Listeners
from rlproxy.observability import shared_memory
from rlproxy.observability.hot_keys import HotKey, HotKeys, Top, merge
from rlproxy.observability.shared_memory import SharedMemory
from rlproxy.observability.snapshots import Snapshot, UpstreamState
from rlproxy.process.resources import Resources
from rlproxy.process.telemetry import TOP_S, Telemetry
from rlproxy.process.upstreams import UpstreamWiring
from rlproxy.ratelimit.denial_cache import DenialCache
from rlproxy.ratelimit.grammar import Grammar
from rlproxy.ratelimit.outcomes import ADMITTED, REFUSED, ROWS
from rlproxy.ratelimit.scripts import load
from rlproxy.session.context import ServerFacts, WorkerContext

from tests.contexts import worker_context


class Nobody:
    """Clients, lanes, admission and control connection of a proxy that has none."""

    clients: tuple[()] = ()
    addresses: dict[str, int] = {}
    draining = False
    max_clients = 1
    denial_cache = DenialCache(0, lambda: 0.0)
    loop = SimpleNamespace(time=lambda: 0.0)

    def __init__(self, settings: WorkerContext) -> None:
        self.context = settings
        self.settings = self
        self.admission = self

    def lanes(self) -> list[object]:
        return []

    def state(self) -> UpstreamState:
        return UpstreamState("redis:1", "Redis 7", kind="login", problem="login", loaded=True)


def context() -> WorkerContext:
    return worker_context(grammar=Grammar(load()), server=ServerFacts("redis:1"))


def made(
    memory: SharedMemory, settings: WorkerContext | None = None, samples: bool = True
) -> Telemetry:
    nobody = Nobody(settings or context())
    resources = SimpleNamespace(listeners=Listeners([]), memory=memory, started=1.0)
    return Telemetry(
        Config(admin=Address("h", 1), metrics_prefixes=int(not samples)),
        0,
        cast("Resources", resources),
        cast("Clients", nobody),
        cast("UpstreamWiring", nobody),
    )


def test_what_others_publish_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = SharedMemory(3)
    telemetry = made(memory)
    read: list[bytes] = []

    def reads(data: bytes) -> object:
        read.append(data)
        return pickle.loads(data)

    monkeypatch.setattr(
        shared_memory, "pickle", SimpleNamespace(**{**vars(pickle), "loads": reads})
    )
    for clients in (2.0, 3.0):
        memory.publish(2, Snapshot(2, time.time(), samples={"rlproxy_clients": {(): clients}}))
        for _ in range(3):
            told = telemetry.all()
            assert [each.samples["rlproxy_clients"] for each in told] == [{(): 0.0}, {(): clients}]
    assert len(read) == 2


def test_hot_keys_of_all_workers_are_merged_once_in_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory, settings = SharedMemory(2), context()
    telemetry, now = made(memory, settings), [1000.0]
    monkeypatch.setattr("rlproxy.process.telemetry.time.monotonic", lambda: now[0])
    other = HotKeys(lambda: now[0])
    merges = []

    def merging(tops: list[Top], number: int, refused: bool) -> list[HotKey]:
        merges.append(refused)
        return merge(tops, number, refused)

    monkeypatch.setattr("rlproxy.process.telemetry.merge", merging)

    def top(number: int, *more: bytes) -> list[bytes]:
        request = telemetry.request(b"RL.TOP", [b"%d" % number, *more])
        return request.split(b"\r\n")[8::2]  # behind EVAL, the script, and 0

    other.add({b"$1\r\na\r\n": 2}, {})
    memory.publish(1, Snapshot(1, time.time(), top=other.state()))
    count = settings.stats.on_keys
    count({b"$1\r\na\r\n": 1, b"$1\r\nb\r\n": 1}, {b"$1\r\nb\r\n": 1}, 1, {})
    assert top(1) == [b"a", b"3", b"0"]
    count({b"$1\r\nb\r\n": 4}, {}, 1, {})
    for number in (1, 2):
        assert top(number) == [b"a", b"3", b"0", b"b", b"1", b"0"][: 3 * number]
    assert top(9, b"REFUSED") == [b"b", b"1", b"0", b""]
    assert merges == [False, True]
    now[0] += TOP_S
    assert top(1) == [b"b", b"5", b"0"]
    assert merges == [False, True] * 2


@pytest.mark.parametrize("samples", [True, False])
def test_where_hits_are_many_some_keys_are_looked_at(samples: bool) -> None:
    settings = context()
    telemetry = made(SharedMemory(1), settings, samples)
    stats, strides = settings.stats, []
    for hits_a_second in (0, 0, 4_000, 6_000, 79_000, 4_000_000, 5_000):
        stats.hits[ROWS[b"GCRA"] + ADMITTED] += hits_a_second // 5
        stats.hits[ROWS[b"LOG"] + REFUSED] += hits_a_second * 4 // 5
        telemetry.tick(0.0)
        strides.append(stats.stride)
    assert strides == ([1, 1, 1, 2, 16, 64, 1] if samples else [1] * 7)
