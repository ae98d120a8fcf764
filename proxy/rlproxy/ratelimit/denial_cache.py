"""The denial cache: refusals that the proxy repeats without asking Redis. No I/O.

    refused ──> MARKED ──the same hit, told by Redis when its key is touched──> OPENING
                  ^                                                                │ refused again
                  └── its time is over, it wrote ──────────────────── OPEN <───────┘

While it is OPEN an entry answers the identical call (the same rule and key, on the same lane). It
lives as long as the script said, counted from the sending of the call that opened it, and at most
MOST_S. Whatever may change the answer sooner drops it: Redis' word that the key was touched, any
other call on the key, a reply that is no refusal, the lane's end.

An entry takes 0.33 kB (measured, 65,536 keys of 16 bytes). Which client may use it is for its
session to say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rlproxy.ratelimit.grammar import Rule
from rlproxy.resp import encoding

MOST_S: Final = 1.0  # bounds what Redis tells nobody: changed rights, clocks, SWAPDB, a cut line
_MICROSECONDS: Final = 1_000_000

MARKED: Final = 0  # refused once; nothing is known of its key
OPENING: Final = 1  # asked again, this time to be told when the key is touched
OPEN: Final = 2
DROPPED: Final = 3


class Denial:
    """One entry: a rule and a key of one lane. Times in seconds of the clock."""

    __slots__ = (
        "_after",
        "_before",
        "_heard_at",
        "_limit",
        "_name",
        "_remaining",
        "_reply",
        "_reply_until",
        "_reset_us",
        "_retry_us",
        "_until",
        "rule",
        "sent_at",
        "state",
        "times",
    )

    def __init__(self, name: bytes, rule: Rule) -> None:
        self._name = name
        self.rule = rule
        self.state: int = MARKED
        self.times: int = 0  # that it has answered, see DenialCache.harvest()
        self.sent_at: float = 0.0  # when the call that opens it was sent
        self._until: float = 0.0  # it answers nothing from then on
        self._heard_at: float = 0.0  # when Redis' refusal came; what it told is aged by
        self._limit: int = 0
        self._remaining: int = 0
        self._retry_us: int = 0
        self._reset_us: int = 0
        self._reply: bytes = b""
        self._reply_until: float = 0.0  # its times in the client's unit are others from then on
        self._before: Denial = self
        self._after: Denial = self

    def heard(self, found: list[int], now: float) -> None:
        """The call that was to open it was refused: `found` is the script's reply in microseconds,
        its sixth integer what the entry lives by (none: it wrote, or there is no telling).
        """
        if self.state != OPENING:
            return
        if len(found) < 6:
            self.state = MARKED
            return
        self.state = OPEN
        self._until = self.sent_at + min(found[5] / _MICROSECONDS, MOST_S)
        self._heard_at = now
        self._limit = found[1]
        self._remaining = found[2]
        self._retry_us = found[3]
        self._reset_us = found[4]
        self._reply_until = 0.0

    def answer(self, now: float) -> bytes:
        """The reply at `now`; empty if the entry's time is over.

        What is told has aged since it was heard, not since it was sent: who waits as told is never
        early.
        """
        if now < self._reply_until:
            return self._reply
        if now >= self._until:
            self.state = MARKED
            return b""
        unit_us = self.rule.unit_us
        age_us = max(0, int((now - self._heard_at) * _MICROSECONDS))
        retry = max(1, -((age_us - self._retry_us) // unit_us))
        reset = max(1, -((age_us - self._reset_us) // unit_us))
        self._reply = encoding.five(1, self._limit, self._remaining, retry, reset)
        until_us = min(
            self._retry_us - (retry - 1) * unit_us, self._reset_us - (reset - 1) * unit_us
        )
        self._reply_until = min(self._until, self._heard_at + until_us / _MICROSECONDS)
        return self._reply


class DenialCache:
    """The entries of one process, at most `most`; who was of no use for longest goes first."""

    def __init__(self, most: int, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._most = most
        self._kept: dict[bytes, Denial] = {}
        self._ends = Denial(b"", Rule())  # before the oldest, after the newest
        self._scopes = 0
        self._answered: list[Denial] = []

    def __len__(self) -> int:
        return len(self._kept)

    def scope(self) -> bytes:
        """What the names of one lane's entries begin with: a new one forgets all it had."""
        self._scopes += 1
        return b"%d " % self._scopes

    def find(self, name: bytes) -> Denial | None:
        """The entry called `name`: a scope and a key."""
        return self._kept.get(name)

    def mark(self, name: bytes, rule: Rule) -> None:
        """A hit was refused."""
        if len(self._kept) >= self._most:
            self.drop(self._ends._after)
        denial = self._kept[name] = Denial(name, rule)
        self._append(denial)

    def used(self, denial: Denial) -> None:
        """`denial` has answered, or is about to be opened: it is the last to go."""
        if self._ends._before is not denial:
            self._unlink(denial)
            self._append(denial)

    def answered(self, denial: Denial) -> None:
        """`denial` was a hit's answer."""
        if denial.times == 0:
            self._answered.append(denial)
        denial.times += 1
        self.used(denial)

    def harvest(self) -> list[tuple[int, bytes, int]]:
        """Where the hits are counted that were answered since the last harvest, their keys (as
        bulks), and how many these were.
        """
        answered, self._answered = self._answered, []
        found = []
        for denial in answered:
            start = denial._name.index(b" ") + 1
            found.append((denial.rule.row, denial._name[start:], denial.times))
            denial.times = 0
        return found

    def drop(self, denial: Denial) -> None:
        """`denial` answers nothing any more."""
        if denial.state != DROPPED:
            denial.state = DROPPED
            self._unlink(denial)
            del self._kept[denial._name]

    def _append(self, denial: Denial) -> None:
        ends = self._ends
        denial._before, denial._after = ends._before, ends
        ends._before._after = denial
        ends._before = denial

    def _unlink(self, denial: Denial) -> None:
        denial._before._after = denial._after
        denial._after._before = denial._before
        denial._before = denial._after = self._ends  # (itself would be a cycle)
