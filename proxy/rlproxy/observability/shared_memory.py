"""The memory that all processes of a proxy share: each worker's latest samples. It outlives a
worker, so that its successor continues the counters.

    worker ──publish()──> its place: [turn | length, text | length, text] ──latest()──> anybody

A place has two halves. The writer fills the one that is not read and then turns to it. A reader
that finds it turned meanwhile reads again: what it has may be half of another text by now.
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

# Bytes; untouched ones take no memory. (10,000 prefixes take 7 MB if all of it must be escaped.)
HALF: Final = 8 << 20
PREFIX_HITS: Final = "rlproxy_prefix_hits_total"
_PLACE: Final = 8 + 2 * (8 + HALF)
_TRIES: Final = 100


class SharedMemory:
    """Places for `workers` texts, in the file `descriptor` if one is given: inherited, or passed
    on to a process that was not forked.
    """

    def __init__(self, workers: int, descriptor: int = -1) -> None:
        self.workers = workers
        self.descriptor = descriptor if descriptor >= 0 else _file(workers * _PLACE)
        self._map = mmap.mmap(self.descriptor, workers * _PLACE)
        self._turns = [
            memoryview(self._map)[start : start + 8].cast("q")
            for start in range(0, workers * _PLACE, _PLACE)
        ]

    def publish(self, worker: int, text: bytes) -> bool:
        """Only its own process does so for each worker; False if `text` is too long."""
        if len(text) > HALF:
            return False
        turn = self._turns[worker][0] + 1
        start = self._half(worker, turn)
        self._map[start + 8 : start + 8 + len(text)] = text
        self._map[start : start + 8] = len(text).to_bytes(8, "little")
        self._turns[worker][0] = turn
        return True

    def latest(self, worker: int) -> bytes:
        """What was published last; empty if nothing was."""
        for _ in range(_TRIES):
            turn = self._turns[worker][0]
            if turn == 0:
                return b""
            start = self._half(worker, turn)
            length = int.from_bytes(self._map[start : start + 8], "little")
            text = self._map[start + 8 : start + 8 + length]
            if self._turns[worker][0] == turn:
                return text
        return b""

    def _half(self, worker: int, turn: int) -> int:
        return worker * _PLACE + 8 + (turn & 1) * (8 + HALF)


@dataclass(frozen=True)
class Published:
    """What one worker has told: at a time (of time.time()), its samples, its keys (see `hot_keys`),
    and what people want to know besides (see `telemetry`).
    """

    at: float
    samples: Samples
    top: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def silent(self) -> Published:
        """What remains of it when its worker is not heard of any more."""
        return Published(self.at, kept(self.samples), {}, self.facts)

    def to_json(self, prefix_hits: bytes = b"") -> bytes:
        """See from_json(). `prefix_hits`: see Prefixes.text()."""
        plain = {"at": self.at, "samples": to_plain(self.samples)}
        plain |= {"top": self.top, "facts": self.facts}
        return json.dumps(plain, separators=(",", ":")).encode() + b"\n" + prefix_hits

    @classmethod
    def from_json(cls, text: bytes) -> Published:
        """What to_json() has written."""
        head, prefix_hits = apart(text)
        found = json.loads(head)
        samples = from_plain(found["samples"])
        if prefix_hits:
            samples[PREFIX_HITS] = dict(key_prefixes.samples(prefix_hits))
        return cls(found["at"], samples, found["top"], found["facts"])


def apart(text: bytes) -> tuple[bytes, bytes]:
    """What to_json() has written: all but the prefixes, which from_json() takes as well, and what
    it was told of these.
    """
    head, _, prefix_hits = text.partition(b"\n")
    return head, prefix_hits


def _file(size: int) -> int:
    """A new file of so many bytes that has no name."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("rlproxy")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor
