"""The fan-out reader: connections that become readable together, such as 100 subscribers of one
channel, are read a few per tick of the event loop.

The loop reads whatever is readable before it does anything else. So who belongs to a crowd is not
watched by the loop itself, but by an epoll set that the loop watches: it gives a few at a time.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from typing import Final

PIECE: Final = 4096  # bytes: who brings no more than that in a turn belongs to no crowd
MANY: Final = 65536  # bytes that all others bring in it: further ones are a crowd
PER_TURN: Final = 4  # of a crowd are read
STAYS_S: Final = 1.0  # so long after it was crowded one still belongs to it

Turn = Callable[[bool], None]


class FanOutReader:
    """That of one process. Where there is no epoll, nobody belongs to one."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._epoll: select.epoll | None = None
        self._turns: dict[int, Turn] = {}
        self._bytes = 0  # in this turn of the loop

    def many(self, size: int) -> bool:
        """Whether a connection that brings `size` bytes is one of many that do in this turn."""
        if self._bytes == 0:
            self._loop.call_soon(self._all_read)
        before = self._bytes
        self._bytes += size
        return before > MANY and hasattr(select, "epoll")

    def _all_read(self) -> None:
        self._bytes = 0

    def watch(self, descriptor: int, turn: Turn) -> None:
        """Call `turn` once, when there is something to read and it is this connection's turn; it
        is told whether more of the crowd have something. Raises OSError.
        """
        if self._epoll is None:
            self._epoll = select.epoll()
            self._loop.add_reader(self._epoll.fileno(), self._readable)
        try:
            self._epoll.modify(descriptor, select.EPOLLIN | select.EPOLLONESHOT)
        except FileNotFoundError:  # (it is new: those that are closed leave the set by themselves)
            self._epoll.register(descriptor, select.EPOLLIN | select.EPOLLONESHOT)
        self._turns[descriptor] = turn

    def forget(self, descriptor: int, turn: Turn) -> None:
        """That connection is gone."""
        if self._turns.get(descriptor) == turn:  # (else it is another one's by now)
            del self._turns[descriptor]

    def close(self) -> None:
        """Watch nobody any more."""
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
