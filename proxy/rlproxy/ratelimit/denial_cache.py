"""The denial cache: refusals that the proxy repeats without asking Redis. No I/O.

    refused ──> MARKED ──the same hit, sent with key tracking──> OPENING
                  ^                                                 │ refused again
                  └───────── expired ──────────── OPEN <────────────┘

An OPEN entry answers the identical call: the same rule and key, on the same lane. It lives for the
retry_after of the refusal, counted from the sending of the call that opened it. Its longest life is
MAX_LIFE_S. An event that may change the answer earlier drops the entry:

- an invalidation push for the key;
- a call on the key by another rule that may write;
- a reply that is not a refusal;
- the end of the lane.

An entry takes 0.40 kB (measured, 65,536 keys of 16 bytes). The session decides whether its client
may use an entry.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from rlproxy.ratelimit.algorithms import MICROSECONDS
from rlproxy.ratelimit.grammar import Rule
from rlproxy.ratelimit.hit_replies import admitted, five
from rlproxy.ratelimit.outcomes import shadow

# Longest life of an entry, in seconds. It bounds the delay of changes that Redis does not announce:
# changed rights, clock changes, SWAPDB, a broken connection.
MAX_LIFE_S: Final = 1.0

MARKED: Final = 0  # refused once; the key is not tracked
OPENING: Final = 1  # sent again, with tracking of its key; not answered yet
OPEN: Final = 2  # answers the identical call
DROPPED: Final = 3  # removed from the cache


class Denial:
    """One entry: a refused rule and key of one lane.

    entries: those of its lane, by key.
    key: as a bulk string.

    All times are seconds of the cache's clock.
    """

    def __init__(self, entries: dict[bytes, Denial], key: bytes, rule: Rule) -> None:
        self.entries = entries
        self.key = key
        self.rule = rule
        self.state: int = MARKED
        self.times: int = 0  # answers since the last DenialCache.harvest()
        self.sent_at: float = 0.0  # time at which the opening call was sent
        self._until: float = 0.0  # expiry
        self._replied_at: float = 0.0  # time at which Redis' refusal came; the base of aging
        self._limit: int = 0
        self._remaining: int = 0
        self._retry_us: int = 0
        self._reset_us: int = 0
        self._reply: bytes = b""
        self._reply_until: float = 0.0  # time at which the rounded times in `_reply` change

    def opened(self, found: list[int], now: float) -> None:
        """Open the entry with the refusal of its opening call.

        found: the script's reply, times in microseconds.
        """
        if self.state != OPENING:
            return
        self.state = OPEN
        self._until = self.sent_at + min(found[3] / MICROSECONDS, MAX_LIFE_S)
        self._replied_at = now
        self._limit = found[1]
        self._remaining = found[2]
        self._retry_us = found[3]
        self._reset_us = found[4]
        self._reply_until = 0.0

    def answer(self, now: float) -> bytes:
        """Return the client's reply at time `now`; empty if the entry has expired.

        retry_after and reset_after age from the arrival of Redis' reply, not from the sending. So a
        client that waits `retry_after` is never too early.
        """
        if now < self._reply_until:
            return self._reply
        if now >= self._until:
            self.state = MARKED
            return b""
        unit_us = self.rule.unit_us
        age_us = max(0, int((now - self._replied_at) * MICROSECONDS))
        retry = max(1, -((age_us - self._retry_us) // unit_us))
        reset = max(0, -((age_us - self._reset_us) // unit_us))
        reply = five(1, self._limit, self._remaining, retry, reset)
        self._reply = admitted(reply) if shadow(self.rule.row) else reply
        until_us = min(
            self._retry_us - (retry - 1) * unit_us, self._reset_us - (reset - 1) * unit_us
        )
        self._reply_until = min(self._until, self._replied_at + until_us / MICROSECONDS)
        return self._reply


class DenialCache:
    """The entries of one process, with the oldest one evicted first.

    most: largest number of entries; 0: no refusal is remembered.
    clock: returns seconds.
    """

    def __init__(self, most: int, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.most = most
        self._kept: OrderedDict[Denial, None] = OrderedDict()
        self._answered: list[Denial] = []  # entries with `times` above 0

    def __len__(self) -> int:
        return len(self._kept)

    def mark(self, entries: dict[bytes, Denial], key: bytes, rule: Rule) -> None:
        """Add a MARKED entry for a hit that was refused to `entries`, those of its lane by key."""
        if len(self._kept) >= self.most:
            self.drop(next(iter(self._kept)))
        entries[key] = denial = Denial(entries, key, rule)
        self._kept[denial] = None

    def answered(self, denial: Denial) -> None:
        """Record that `denial` answered a hit."""
        if denial.times == 0:
            self._answered.append(denial)
        denial.times += 1

    def harvest(self) -> list[tuple[Rule, bytes, int]]:
        """Return and reset the counts of hits answered since the last harvest.

        Returns a list of (rule, key as a bulk string, number of hits).
        """
        answered, self._answered = self._answered, []
        found = []
        for denial in answered:
            found.append((denial.rule, denial.key, denial.times))
            denial.times = 0
        return found

    def drop(self, denial: Denial) -> None:
        """Remove `denial`; does nothing if it was removed before."""
        if denial.state != DROPPED:
            denial.state = DROPPED
            del denial.entries[denial.key]
            del self._kept[denial]
