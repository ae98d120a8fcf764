"""Shared memory: a reader gets the last published value, whole."""

from __future__ import annotations

import pickle
import threading

from rlproxy.config.config import MAX_PREFIXES
from rlproxy.observability.counters import Counters
from rlproxy.observability.hot_keys import HotKeys
from rlproxy.observability.key_prefixes import Prefixes
from rlproxy.observability.metrics import PREFIX_HITS
from rlproxy.observability.policy_counters import NO_POLICIES, PolicyCounters, hits_of
from rlproxy.observability.shared_memory import HALF, SharedMemory
from rlproxy.observability.snapshots import Snapshot
from rlproxy.process.telemetry import MAX_USER
from rlproxy.ratelimit.grammar import MAX_TOP, Policy
from rlproxy.ratelimit.policies import MAX_POLICIES
from rlproxy.upstream.lane_pool import MAX_LANES


def test_reader_gets_the_latest_value() -> None:
    memory = SharedMemory(2)
    assert memory.latest(0) is None
    assert memory.publish(0, b"one")
    assert memory.latest(0) == b"one"
    assert memory.publish(1, {"other": 1})
    assert memory.publish(0, b"two, and longer")
    assert memory.publish(0, b"3")
    assert (memory.latest(0), memory.latest(1)) == (b"3", {"other": 1})


def test_too_large_value_keeps_the_previous_one() -> None:
    memory = SharedMemory(1)
    largest = b"x" * (HALF - len(pickle.dumps(b"x" * HALF)) + HALF)
    assert memory.publish(0, largest)
    assert not memory.publish(0, largest + b"y")
    assert memory.latest(0) == largest


def test_values_are_never_mixed() -> None:
    memory = SharedMemory(1)
    letters = [bytes([letter]) * (1 << 16) for letter in b"abcdefgh"]
    memory.publish(0, letters[0])
    done = threading.Event()

    def write() -> None:
        for number in range(3000):
            memory.publish(0, letters[number % len(letters)])
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    read = 0
    while not done.is_set() or not read:
        assert memory.latest(0) in letters
        read += 1
    writer.join()


def test_largest_value_fits() -> None:
    """The maximum of --metrics-prefixes, of keys and of policies."""
    prefixes = Prefixes(MAX_PREFIXES, {})
    hits = {b"$70\r\n%05d%b:x\r\n" % (number, b"\xff" * 59): 1 for number in range(MAX_PREFIXES)}
    prefixes.add(hits, hits)
    top = HotKeys(lambda: 0.0)
    hits = {b"$128\r\n%b%05d\r\n" % (b"x" * 123, number): 1 for number in range(MAX_TOP)}
    top.add(hits, hits)
    counters = Counters()
    policies = PolicyCounters(counters, NO_POLICIES)
    for first in (2 * MAX_POLICIES, MAX_POLICIES, 0):
        names = [f"{first + n:064}".encode() for n in range(MAX_POLICIES)]
        policies.use([Policy(name, b"5 60", True) for name in names])
    lanes = {("\ufffd" * MAX_USER, db, "hits"): [1, 1, 1] for db in range(MAX_LANES)}
    counters.hits[:] = [10**12] * len(counters.hits)
    memory = SharedMemory(1)
    snapshot = Snapshot(
        *(0, 1.5, 0.0, {PREFIX_HITS: prefixes.samples}, top.state(), policies.state()), lanes=lanes
    )
    assert memory.publish(0, snapshot)
    found = memory.latest(0)
    assert found == snapshot
    silent = found.valid_at(9.0)
    assert len(silent.samples[PREFIX_HITS]) == 20_000
    assert len(hits_of(silent.policies)) == MAX_POLICIES
