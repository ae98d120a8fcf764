"""A client of the cluster's chaos: one plain connection with overlapping pipelines."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import deque
from collections.abc import Callable, Sequence

from tests.harness import command
from tests.stress.cluster_work import LOST, Judge, Phase, Work, parser

ANSWER_S = 12.0  # until a command is answered or its connection closed
PAUSE_S = 0.03  # between two pipelines, at most
MOST = 16  # commands in one pipeline
RENEWALS = 30  # pipelines of one connection, where a client reconnects


class Client:
    """One client. It works through phases, and keeps its connection from one to the next.

    make: returns its work in a phase.
    renews: it reconnects from time to time.
    """

    def __init__(
        self, port: int, seed: int, make: Callable[[Phase], Sequence[Work]], renews: bool
    ) -> None:
        self._port = port
        self._source = random.Random(seed)
        self._make = make
        self._renews = renews
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._replies = parser()
        self._owed: deque[tuple[tuple[str | int, ...], Judge, float]] = deque()
        self.lost = 0  # connections

    async def work(self, phase: Phase, stop: asyncio.Event) -> None:
        """Send commands until `stop`, and read all replies."""
        works = self._make(phase)
        pipelines = 0
        while not stop.is_set():
            if self._writer is None:
                await self._connect()
            self._send(works)
            pipelines += 1
            renews = self._renews and pipelines % RENEWALS == 0
            await self._read(phase, 0 if renews else self._source.randrange(MOST))
            if renews:
                await self.close()
            await asyncio.sleep(self._source.random() * PAUSE_S)
        await self._read(phase, 0)

    async def _connect(self) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._replies = parser()

    def _send(self, works: Sequence[Work]) -> None:
        """Send a pipeline; sometimes in two segments that end anywhere."""
        assert self._writer is not None
        most, data = self._source.randint(1, MOST), b""
        for _ in range(most):
            for words, judge in self._source.choice(works).commands():
                data += command(*words)
                self._owed.append((words, judge, time.monotonic()))
        at = self._source.choice((0, self._source.randrange(len(data))))
        self._writer.write(data[:at])
        self._writer.write(data[at:])

    async def _read(self, phase: Phase, most: int) -> None:
        """Read replies until at most `most` are owed."""
        while len(self._owed) > most:
            words, judge, sent_at = self._owed[0]
            got = self._replies.gets()
            if got is not Ellipsis:
                self._owed.popleft()
                phase.slowest = max(phase.slowest, time.monotonic() - sent_at)
                phase.judge(words, judge, got)
            elif not await self._more(sent_at):
                if time.monotonic() - sent_at >= ANSWER_S:
                    phase.violations.add("forgotten", f"{words[:4]} after {ANSWER_S:g} s")
                phase.fail("closed", f"the connection that owed {words[:4]}")
                await self._abandon()
                return

    async def _more(self, sent_at: float) -> bool:
        """Read more bytes. Returns False if the connection has ended or it is too late."""
        assert self._reader is not None
        try:
            async with asyncio.timeout(sent_at + ANSWER_S - time.monotonic()):
                data = await self._reader.read(65536)
        except OSError:
            return False
        self._replies.feed(data)
        return data != b""

    async def _abandon(self) -> None:
        """Judge what is owed as lost; the next command goes on a new connection."""
        self.lost += 1
        owed = list(self._owed)
        self._owed.clear()
        for _, judge, _ in owed:
            judge(LOST)
        await self.close()

    async def close(self) -> None:
        """Close the connection."""
        if self._writer is not None:
            self._writer.close()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()
        self._reader = self._writer = None
