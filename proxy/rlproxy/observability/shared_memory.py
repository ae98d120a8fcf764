"""The memory that all processes of a proxy share: each worker's latest samples, and the outcome of
the latest reload. It outlives a worker, so that its successor continues the counters.

    process ──publish()──> its place: [turn | length, text | length, text] ──latest()──> any process

A place has two halves, and the lowest bit of `turn` selects the one to read. The writer fills the
other half, then increments `turn`. A reader that finds `turn` changed after reading starts again,
because its text may be partly overwritten.
"""

from __future__ import annotations

import json
import mmap
import os
import tempfile
from dataclasses import dataclass, field
from typing import Any, Final

from rlproxy.observability import key_prefixes
from rlproxy.observability.metrics import Samples, from_plain, kept, to_plain
from rlproxy.observability.policy_counters import HitsByPolicy, hits_of

# Longest text, bytes. Untouched pages take no memory. 10,000 prefixes take 7 MB if every byte of
# them must be escaped, 10,000 policies 6 MB with the rows that reloads have freed.
HALF: Final = 16 << 20
PREFIX_HITS: Final = "rlproxy_prefix_hits_total"
_PLACE: Final = 8 + 2 * (8 + HALF)  # size of a worker's place, bytes
_TRIES: Final = 100  # reads of latest() before it gives up


class SharedMemory:
    """One place for a text of each worker, and one for their parent, in a file without a name.

    workers: number of workers.
    parent: number of the parent's place.
    descriptor: inherited file descriptor of an existing memory, for a process that was not forked;
        default: a new file.
    """

    def __init__(self, workers: int, descriptor: int = -1) -> None:
        self.workers = workers
        self.parent = workers
        size = (workers + 1) * _PLACE
        self.descriptor = descriptor if descriptor >= 0 else _file(size)
        self._map = mmap.mmap(self.descriptor, size)
        self._turns = [
            memoryview(self._map)[start : start + 8].cast("q") for start in range(0, size, _PLACE)
        ]

    def publish(self, place: int, text: bytes) -> bool:
        """Replace the text in a place, the number of a worker or `parent`.

        Only the process of that worker, or the parent, may do so.

        Returns False if `text` is longer than HALF.
        """
        if len(text) > HALF:
            return False
        turn = self._turns[place][0] + 1
        start = self._half(place, turn)
        self._map[start + 8 : start + 8 + len(text)] = text
        self._map[start : start + 8] = len(text).to_bytes(8, "little")
        self._turns[place][0] = turn
        return True

    def latest(self, place: int) -> bytes:
        """Return the latest text in a place.

        Empty if there is none, or if the writer overtook _TRIES reads.
        """
        for _ in range(_TRIES):
            turn = self._turns[place][0]
            if turn == 0:
                return b""
            start = self._half(place, turn)
            length = int.from_bytes(self._map[start : start + 8], "little")
            text = self._map[start + 8 : start + 8 + length]
            if self._turns[place][0] == turn:
                return text
        return b""

    def _half(self, place: int, turn: int) -> int:
        return place * _PLACE + 8 + (turn & 1) * (8 + HALF)


@dataclass(frozen=True)
class Published:
    """The published state of one worker.

    at: time of publication, seconds since 1970.
    samples: metrics.
    top: hot keys; see HotKeys.published().
    facts: further data for the live page and the probes; see `telemetry`.
    policies: hits of policies.
    """

    at: float
    samples: Samples
    top: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    policies: HitsByPolicy = field(default_factory=dict)

    def silent(self) -> Published:
        """Return the part that stays valid when the worker no longer publishes."""
        return Published(self.at, kept(self.samples), {}, self.facts, self.policies)

    def to_text(self, prefix_hits: bytes = b"", policies: bytes = b"") -> bytes:
        """Encode the state as text, but for `policies`; see from_text().

        prefix_hits: result of Prefixes.text().
        policies: result of PolicyCounters.text().
        """
        plain = {"at": self.at, "samples": to_plain(self.samples)}
        plain |= {"top": self.top, "facts": self.facts}
        head = json.dumps(plain, separators=(",", ":")).encode()
        return b"\n".join((head, prefix_hits, policies))

    @classmethod
    def from_text(cls, text: bytes) -> Published:
        """Decode the result of to_text()."""
        head, prefix_hits, policies = apart(text)
        found = json.loads(head)
        samples = from_plain(found["samples"])
        if prefix_hits:
            samples[PREFIX_HITS] = dict(key_prefixes.samples(prefix_hits))
        return cls(found["at"], samples, found["top"], found["facts"], hits_of(policies))


@dataclass(frozen=True)
class Reloaded:
    """The outcome of the latest reload, published by the process that reads the settings file.

    began: time.monotonic() when it began, before the file was read.
    mistakes: reasons why the settings were rejected; empty if they are in force.
    later: options that have changed and take a restart.
    """

    began: float
    mistakes: list[str]
    later: list[str]

    def to_json(self) -> bytes:
        """Encode the outcome as text; see from_json()."""
        return json.dumps([self.began, self.mistakes, self.later]).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Reloaded:
        """Decode the result of to_json(); of an empty text, an outcome long before any."""
        return cls(*json.loads(text)) if text else cls(float("-inf"), [], [])


def apart(text: bytes) -> tuple[bytes, bytes, bytes]:
    """Split the result of to_text() into the state alone, `prefix_hits` and `policies`.

    from_text() accepts the first part alone.
    """
    head, _, more = text.partition(b"\n")
    prefix_hits, _, policies = more.partition(b"\n")
    return head, prefix_hits, policies


def _file(size: int) -> int:
    """Return the descriptor of a new file without a name, of `size` bytes."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("rlproxy")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor
