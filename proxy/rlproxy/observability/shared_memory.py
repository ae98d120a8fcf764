"""The memory that all processes of a proxy share: each worker's latest samples, and the outcome of
the latest reload. It outlives a worker, so that its successor continues the counters.

    process ──publish()──> its place: [turn | length, bytes | length, bytes] ──latest()──> others

A place has two halves, and the lowest bit of `turn` selects the one to read. The writer fills the
other half, then increments `turn`. A reader that finds `turn` changed after reading starts again,
because the bytes may be partly overwritten. The values are pickled: only processes of one proxy
have the memory.
"""

from __future__ import annotations

import mmap
import os
import pickle
import tempfile
from typing import Any, Final

# Longest value, bytes. Untouched pages take no memory. 10,000 prefixes take 2 MB, and 10,000
# policies 3 MB with the rows that reloads have freed.
HALF: Final = 16 << 20
_PLACE: Final = 8 + 2 * (8 + HALF)  # size of a place, bytes


class SharedMemory:
    """One place for a value of each worker, and one for their parent, in a file without a name.

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
        self._read: dict[int, tuple[int, Any]] = {}  # turn and value last read, by place

    def publish(self, place: int, value: object) -> bool:
        """Replace the value in a place, the number of a worker or `parent`.

        Only the process of that worker, or the parent, may do so.

        Returns False if `value` takes more than HALF bytes.
        """
        data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        if len(data) > HALF:
            return False
        turn = self._turns[place][0] + 1
        start = self._half(place, turn)
        self._map[start + 8 : start + 8 + len(data)] = data
        self._map[start : start + 8] = len(data).to_bytes(8, "little")
        self._turns[place][0] = turn
        return True

    def latest(self, place: int) -> Any:
        """Return the latest value in a place, None if there is none. It must not be changed.

        A value is decoded once.
        """
        known, value = self._read.get(place, (0, None))
        while (turn := self._turns[place][0]) != known:
            start = self._half(place, turn)
            length = int.from_bytes(self._map[start : start + 8], "little")
            data = self._map[start + 8 : start + 8 + length]
            if self._turns[place][0] == turn:
                known, value = turn, pickle.loads(data)  # noqa: S301 (of this very program)
                self._read[place] = (known, value)
        return value

    def _half(self, place: int, turn: int) -> int:
        return place * _PLACE + 8 + (turn & 1) * (8 + HALF)


def _file(size: int) -> int:
    """Return the descriptor of a new file without a name, of `size` bytes."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("rlproxy")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor
