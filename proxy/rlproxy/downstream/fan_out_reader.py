"""The fan-out reader: of many subscribers that become readable together, a few are read per tick.

The event loop reads all readable connections before it does anything else. So connections in a
fan-out are not watched by the loop itself. An epoll set watches them, and the loop watches the set,
which returns a few at a time.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from typing import Final

PIECE: Final = 4096  # bytes read of a connection in a tick; with no more it joins no fan-out
MANY: Final = 65536  # bytes that other connections brought in the tick; beyond, it is a fan-out
PER_TURN: Final = 4  # connections of a fan-out that are read per tick
STAYS_S: Final = 1.0  # seconds for which a connection remains part of a fan-out

Turn = Callable[[bool], None]


class FanOutReader:
    """The fan-out reader of one process. It does nothing where the system has no epoll."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._epoll: select.epoll | None = None
        self._turns: dict[int, Turn] = {}
        self._bytes = 0  # read in this tick

    def many(self, size: int) -> bool:
        """Return whether a read of `size` bytes is part of a fan-out in this tick."""
        if self._bytes == 0:
            self._loop.call_soon(self._all_read)
        before = self._bytes
        self._bytes += size
        return before > MANY and hasattr(select, "epoll")

    def _all_read(self) -> None:
        self._bytes = 0

    def watch(self, descriptor: int, turn: Turn) -> None:
        """Call `turn` once, when the connection is readable and its turn has come.

        The argument of `turn` is True if PER_TURN connections were ready, so that more may be.
        Raises OSError.
        """
        if self._epoll is None:
            self._epoll = select.epoll()
            self._loop.add_reader(self._epoll.fileno(), self._readable)
        try:
            self._epoll.modify(descriptor, select.EPOLLIN | select.EPOLLONESHOT)
        except FileNotFoundError:  # not in the set yet; closed descriptors leave it automatically
            self._epoll.register(descriptor, select.EPOLLIN | select.EPOLLONESHOT)
        self._turns[descriptor] = turn

    def forget(self, descriptor: int, turn: Turn) -> None:
        """Remove a connection that is gone."""
        if self._turns.get(descriptor) == turn:  # else another connection has this descriptor now
            del self._turns[descriptor]

    def close(self) -> None:
        """Stop watching all connections."""
        if self._epoll is not None:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None
        self._turns.clear()

    def _readable(self) -> None:
        assert self._epoll is not None
        found = self._epoll.poll(0, PER_TURN)
        for descriptor, _ in found:
            turn = self._turns.pop(descriptor, None)
            if turn is not None:
                turn(len(found) == PER_TURN)
