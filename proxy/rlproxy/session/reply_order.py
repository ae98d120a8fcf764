"""The order of replies: which source may write to the client now. No I/O.

    requests ──> A A A B B A ──expect()──> runs:  A · B · A
                                                  │   └───┴── buffered until their turn
    to_client <── the first run's source ─────────┘

A source is a place that replies come from: this client's calls on lanes, or one private connection.
A run is a row of consecutive requests whose replies come from one source. The source of the first
run writes straight to the client. Each later run has a buffer.

On one server the router sends to a source only while all others owe nothing, because commands must
also run in the order of the requests. There is one run at a time then, and nothing is buffered.
"""

from __future__ import annotations

from collections import deque


class Source:
    """A place that replies come from.

    replies: the list that it appends replies to; ReplyOrder replaces it.
    """

    __slots__ = ("replies",)

    def __init__(self, replies: list[bytes]) -> None:
        self.replies = replies

    def owes(self) -> bool:
        """Return whether replies to requests sent so far are still to come."""
        raise NotImplementedError

    def write_to(self, replies: list[bytes]) -> None:
        """Append further replies to `replies`."""
        self.replies = replies


class _Run:
    __slots__ = ("done", "replies", "source")

    def __init__(self, source: Source, replies: list[bytes]) -> None:
        self.source = source
        self.replies = replies
        self.done = False  # all replies are in `replies`


class ReplyOrder:
    """The runs of one client, and `to_client`, the list that its replies leave by."""

    __slots__ = ("_last", "_runs", "to_client")

    def __init__(self, to_client: list[bytes]) -> None:
        self.to_client = to_client
        self._last: Source | None = None  # source of the last run
        self._runs: deque[_Run] | None = None  # with two or more runs, all of them

    def expect(self, source: Source) -> None:
        """Record that the replies to the next requests come from `source`."""
        last = self._last
        if last is source:
            return
        self._last = source
        if last is None or (self._runs is None and not last.owes()):
            source.write_to(self.to_client)
            return
        if self._runs is None:
            self._runs = deque([_Run(last, self.to_client)])
        elif not last.owes():
            self.finished(last)
        behind = self._unfinished(source) is not None
        run = _Run(source, [])
        self._runs.append(run)
        if not behind:
            source.write_to(run.replies)

    def finished(self, source: Source) -> None:
        """Record that `source` has delivered all replies of its first unfinished run."""
        runs = self._runs
        if runs is None:
            return
        run = self._unfinished(source)
        if run is not None:
            run.done = True
            run = self._unfinished(source)
            if run is not None:
                source.write_to(run.replies)
        while len(runs) > 1 and runs[0].done:
            runs.popleft()
            first = runs[0]
            self.to_client += first.replies
            first.replies = self.to_client
            if not first.done:
                first.source.write_to(self.to_client)
        if len(runs) == 1:
            self._runs = None

    def _unfinished(self, source: Source) -> _Run | None:
        """The first run of `source` that is not delivered."""
        if self._runs is not None:
            for run in self._runs:
                if run.source is source and not run.done:
                    return run
        return None

    def buffered(self) -> int:
        """Return the number of bytes that wait behind another source's replies."""
        if self._runs is None:
            return 0
        return sum([len(part) for run in self._runs for part in run.replies]) - sum(
            [len(part) for part in self.to_client]
        )
