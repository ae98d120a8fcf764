"""What the clients of the cluster's chaos send, and how each reply is judged.

Each part of a client's work makes commands with their judges. A judge is called once, in the order
of the replies: with the reply, or with LOST if the connection ended before it.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import hiredis

from tests.stress import checks
from tests.stress.checks import Tally, Violations
from tests.stress.cluster_checks import Pushed, check_redirect

WINDOW_S = 36_000  # of all rules: no hit leaves its window while the test runs
FIRST_MAX, LAST_MAX = 20_000, 90_000  # of the rules, which are identified by their max
TAGS = 6  # hash tags, whose slots are moved


class Lost:
    """The type of LOST."""


LOST = Lost()  # instead of a reply
Judge = Callable[[object], None]
Command = tuple[tuple[str | int, ...], Judge]


@dataclass
class Phase:
    """A stretch of the run with keys of its own, and its judgement.

    exact: no server is killed or stopped, so nothing may be lost, refused or closed.
    strict: violations that hold only if the cluster itself did not fail.
    """

    number: int
    exact: bool
    violations: Violations
    source: random.Random
    maxima: Iterator[int] = field(
        default_factory=lambda: itertools.cycle(range(FIRST_MAX, LAST_MAX))
    )
    strict: Violations = field(default_factory=Violations)
    errors: dict[str, int] = field(default_factory=dict)
    lists: dict[str, dict[str, Pushed]] = field(default_factory=dict)
    hits: dict[str, Limit] = field(default_factory=dict)
    judged: int = 0
    slowest: float = 0.0

    def key(self, tag: int, name: str) -> str:
        """Return the key `name` in the slot of a tag."""
        return f"{{t{tag}}}:{self.number}:{name}"

    def fail(self, kind: str, evidence: str) -> None:
        """Record what is wrong only where the cluster loses nothing."""
        if self.exact:
            self.strict.add(kind, f"phase {self.number}: {evidence}")

    def error(self, words: Sequence[str | int], error: object) -> None:
        """Record an error."""
        text = str(error)[:70]
        if len(self.errors) < 60 or text in self.errors:
            self.errors[text] = self.errors.get(text, 0) + 1
        self.fail("an unexpected error", f"{' '.join(map(str, words[:4]))} got {error}")
        expected = ("UPSTREAMDOWN", "CLUSTERDOWN", "TRYAGAIN", "LOADING", "MASTERDOWN")
        if not text.startswith((*expected, "EXECABORT", "UNBLOCKED")):
            self.violations.add("an unexpected error", f"{words[:4]} got {error}")

    def judge(self, words: Sequence[str | int], judge: Judge, got: object) -> None:
        """Judge one reply."""
        if got is not LOST:
            self.judged += 1
            check_redirect(self.violations, f"phase {self.number}: {words}", got)
            if isinstance(got, Exception):
                self.error(words, got)
        judge(got)


class PushWork:
    """RPUSH of the client's numbers to a list. Of its own list it knows the length, too."""

    def __init__(self, phase: Phase, client: str, key: str, own: bool) -> None:
        self._phase, self._client, self._key, self._own = phase, client, key, own
        self.pushed = phase.lists.setdefault(key, {}).setdefault(client, Pushed())
        self._answered = 0
        self._longest = 0

    def commands(self) -> list[Command]:
        """Return one RPUSH."""
        self.pushed.sent += 1
        number = self.pushed.sent
        words = ("RPUSH", self._key, f"{self._client}/{number}")
        return [(words, lambda got: self.judge(number, got))]

    def judge(self, number: int, got: object) -> None:
        """Judge the reply to the RPUSH of `number`."""
        if got is LOST:
            self.pushed.unknown.add(number)
        elif not isinstance(got, int):
            self.pushed.refused.add(number)
        else:
            self._answered += 1
            if self._own and not self.pushed.unknown and got != self._answered:
                self._phase.fail(
                    "length", f"RPUSH {number} to {self._key} got {got}, not {self._answered}"
                )
            elif got <= self._longest:
                self._phase.fail(
                    "length", f"RPUSH {number} to {self._key} got {got} after {self._longest}"
                )
            self._longest = got


class CounterWork:
    """INCR and GET of the client's own counter."""

    def __init__(self, phase: Phase, key: str) -> None:
        self._phase, self._key = phase, key
        self._sent = self._count = 0
        self._known = True

    def commands(self) -> list[Command]:
        """Return INCR or GET."""
        if self._phase.source.random() < 0.5:
            return [(("GET", self._key), self._got)]
        self._sent += 1
        sent = self._sent
        return [(("INCR", self._key), lambda got: self.counted(sent, got))]

    def counted(self, sent: int, got: object) -> None:
        """Judge the reply to the INCR that was number `sent`."""
        if got is LOST:
            self._known = False
        elif isinstance(got, int):
            self._count += 1
            self._check(sent, got)

    def _got(self, got: object) -> None:
        if got is not LOST and not isinstance(got, Exception):
            assert got is None or isinstance(got, bytes), got
            self._check(self._sent, int(got or 0))

    def _check(self, sent: int, got: int) -> None:
        if got > sent:
            self._phase.violations.add("counted twice", f"{self._key} is {got}, {sent} INCR")
        elif self._known and got != self._count:
            self._phase.fail("count", f"{self._key} is {got}, not {self._count}")


class SlotsWork:
    """SET, MSET, MGET and DEL of the client's own keys in several slots."""

    def __init__(self, phase: Phase, client: str) -> None:
        self._phase, self._client = phase, client
        self._keys = [phase.key(tag, f"{client}:{n}") for tag in range(TAGS) for n in range(2)]
        self._may_be: dict[str, set[str | None]] = {key: {None} for key in self._keys}
        self._ever: dict[str, set[str | None]] = {key: {None} for key in self._keys}
        self._number = 0

    def commands(self) -> list[Command]:
        """Return one of the four."""
        source = self._phase.source
        keys = source.sample(self._keys, source.randrange(2, 7))
        kind = source.randrange(4)
        if kind < 2:
            keys = keys if kind else keys[:1]
            self._number += 1
            value = f"{self._client}={self._number}"
            for key in keys:
                self._ever[key].add(value)
            words = [word for key in keys for word in (key, value)]
            name = "MSET" if kind else "SET"
            return [((name, *words), lambda got: self._wrote(keys, value, got))]
        if kind == 2:
            return [(("MGET", *keys), lambda got: self._read(keys, got))]
        return [(("DEL", *keys), lambda got: self._deleted(keys, got))]

    def _wrote(self, keys: list[str], value: str | None, got: object) -> None:
        for key in keys:
            if got is LOST or isinstance(got, Exception):
                self._may_be[key].add(value)
            else:
                self._may_be[key] = {value}

    def _read(self, keys: list[str], got: object) -> None:
        if not isinstance(got, list):
            return
        if len(got) != len(keys):
            self._phase.violations.add("another's reply", f"MGET {keys} got {got}")
        for key, each in zip(keys, got, strict=False):
            value = each.decode() if isinstance(each, bytes) else each
            may_be = (self._may_be if self._phase.exact else self._ever)[key]
            if value not in may_be:
                kinds = self._phase.strict if self._phase.exact else self._phase.violations
                kinds.add("another's value", f"MGET: {key} is {value!r}, not {may_be}")

    def _deleted(self, keys: list[str], got: object) -> None:
        if isinstance(got, int):
            found = [self._may_be[key] for key in keys]
            least = sum(None not in may_be for may_be in found)
            most = sum(may_be != {None} for may_be in found)
            if not least <= got <= most:
                self._phase.fail("count", f"DEL {keys} got {got}, not {least} to {most}")
        self._wrote(keys, None, got)


class Limit:
    """The hits on one key, by all clients.

    replenishes: it admits more in the course of time.
    """

    def __init__(self, phase: Phase, key: str, algorithm: str, most: int) -> None:
        self.key, self.algorithm, self.most = key, algorithm, most
        self.tally = Tally()
        self.doubtful = 0  # cost of hits that may have run, although no reply says so
        self.since = time.monotonic()
        self.replenishes = algorithm in ("TOKEN", "LEAKY", "GCRA", "COUNTER")
        phase.hits[key] = self

    def check(self, violations: Violations) -> None:
        """The clients got no more admissions than the rule allows."""
        passed = (time.monotonic() - self.since) / WINDOW_S * self.most + 1
        most = self.most + (passed if self.replenishes else 0)
        if self.tally.admitted > most:
            violations.add("too many admitted", f"{self.key} {self.algorithm} {most}: {self.tally}")


class HitWork:
    """Hits on a key; of its own key the client knows what is left."""

    def __init__(self, phase: Phase, limit: Limit, own: bool) -> None:
        self._phase, self._limit, self._own = phase, limit, own

    def commands(self) -> list[Command]:
        """Return one RL.HIT, sometimes with a cost."""
        limit, source = self._limit, self._phase.source
        cost = source.choice((1, 1, 1, 2, 5))
        words: tuple[str | int, ...] = ("RL.HIT", limit.key, limit.most, WINDOW_S)
        words += ("ALGO", limit.algorithm) if limit.algorithm != "LOG" else ()
        words += ("COST", cost) if cost > 1 else ()
        limit.tally.sent += cost
        limit.tally.unknown += cost
        return [(words, lambda got: self.judge(cost, got))]

    def judge(self, cost: int, got: object) -> None:
        """Judge the reply to a hit of this cost. After an error it is not known whether it ran."""
        limit, phase = self._limit, self._phase
        if got is LOST or isinstance(got, Exception):
            limit.doubtful += cost
            return
        admitted = checks.check_hit(phase.violations, limit.key, limit.most, got)
        if admitted is None:
            return
        tally = limit.tally
        tally.unknown -= cost
        tally.admitted += cost if admitted else 0
        assert isinstance(got, list)
        if self._own and not limit.replenishes:
            left = limit.most - tally.admitted
            if not left - limit.doubtful <= got[2] <= left:
                phase.fail("remaining", f"{limit.key} {limit.algorithm} got {got}, not {left}")
        if phase.exact:
            limit.check(phase.strict)


class TransactionWork:
    """MULTI and EXEC with keys in one slot."""

    def __init__(self, phase: Phase, push: PushWork, counter: CounterWork, hit: HitWork) -> None:
        self._phase, self._push, self._counter, self._hit = phase, push, counter, hit

    def commands(self) -> list[Command]:
        """Return the whole transaction."""
        source = self._phase.source
        inside = [*self._push.commands(), *self._counter.commands()]
        if source.random() < 0.3:
            inside += self._hit.commands()
        judges = [judge for _, judge in inside]
        queued = [(words, self._queued) for words, _ in inside]
        return [
            (("MULTI",), self._queued),
            *queued,
            (("EXEC",), lambda got: self._executed(judges, got)),
        ]

    def _queued(self, got: object) -> None:
        if isinstance(got, str) and got not in ("OK", "QUEUED"):
            self._phase.violations.add("another's reply", f"in MULTI: {got!r}")

    def _executed(self, judges: list[Judge], got: object) -> None:
        if isinstance(got, list) and len(got) == len(judges):
            for judge, each in zip(judges, got, strict=True):
                judge(each)
            return
        if got is not LOST and not isinstance(got, Exception):
            self._phase.violations.add("another's reply", f"EXEC got {got!r}")
        for judge in judges:
            judge(got)


Work = PushWork | CounterWork | SlotsWork | HitWork | TransactionWork


def of_a_mixed_client(phase: Phase, client: str, shared: dict[str, Limit]) -> list[Work]:
    """Return the work of a client that sends all kinds of commands."""
    works: list[Work] = [SlotsWork(phase, client)]
    for tag in range(TAGS):
        push = PushWork(phase, client, phase.key(tag, f"{client}:list"), own=True)
        counter = CounterWork(phase, phase.key(tag, f"{client}:counter"))
        key = phase.key(tag, f"{client}:hits")
        hit = HitWork(phase, Limit(phase, key, "LOG", next(phase.maxima)), own=True)
        both = PushWork(phase, client, phase.key(tag, "list"), own=False)
        works += [push, push, counter, both, both, TransactionWork(phase, push, counter, hit), hit]
    return works + [HitWork(phase, limit, own=False) for limit in shared.values()]


def of_a_hitting_client(phase: Phase, client: str, shared: dict[str, Limit]) -> list[Work]:
    """Return the work of a client whose hits go by lane."""
    works: list[Work] = []
    for tag, algorithm in zip(range(TAGS), itertools.cycle(("LOG", "ZLOG", "FIXED"))):
        key = phase.key(tag, f"{client}:{algorithm}")
        works.append(HitWork(phase, Limit(phase, key, algorithm, next(phase.maxima)), own=True))
    return works + [HitWork(phase, limit, own=False) for limit in shared.values()]


def shared_limits(phase: Phase) -> dict[str, Limit]:
    """Return the limits that all clients hit: small ones, so that most hits are refused."""
    algorithms = ("LOG", "LOG", "GCRA", "TOKEN", "FIXED", "COUNTER", "LEAKY", "ZLOG", "LOG")
    found = {}
    for number, algorithm in enumerate(algorithms):
        key = phase.key(number % TAGS, f"shared:{algorithm}:{number}")
        found[key] = Limit(phase, key, algorithm, 40 + number * 50)
    return found


def parser() -> Any:
    """Return a parser of replies; errors are values."""
    return hiredis.Reader(notEnoughData=Ellipsis)
