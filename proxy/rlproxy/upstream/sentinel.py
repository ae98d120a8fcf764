"""The answers of Sentinels, and which server they make the master. No I/O.

Every change of master that Sentinels agree on has a configuration epoch of its own, higher than all
before: so one Sentinel with a newer epoch is right against any number that have not heard of it
yet, and one that was cut off, and still names the old master, is known by its older epoch.

    what they say, against what is known                    the server named is taken if
    -----------------------------------------------------   ------------------------------------
    nothing is known yet                                    it is a master
    a newer epoch                                           it is a master
    no newer epoch, all name another one (set up anew)      it is a master
    no newer epoch, most name another one, nobody ours      ... and ours is gone, or no master
    no newer epoch, some name another one                   ... and ours says it is no master
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rlproxy.config.config import Address
from rlproxy.session.circuit_breaker import Backoff

# What the server that was the master must have come to, for another one to be taken.
ANYTHING: Final = 0
GONE: Final = 1  # it does not answer, or says that it is a replica
DEPOSED: Final = 2  # it says that it is a replica

# What a server says of itself.
MASTER: Final = "master"
REPLICA: Final = "a replica"
UNTOLD: Final = "untold"  # it answers, but not to this question
NOBODY: Final = "nobody"

CALM_S: Final = 10.0  # between two looks while all is well
TROUBLE_FIRST_S: Final = 0.1
TROUBLE_MOST_S: Final = 1.0
SUSPECT_S: Final = 5.0  # so long after something odd it is trouble
LEAST_S: Final = 0.2  # between two looks that somebody asked for
NOTICE_S: Final = 10.0  # between two log lines on the Sentinels


@dataclass(frozen=True)
class Answer:
    """What one Sentinel says: `address` is the master's, or None, and then `why` says why not."""

    address: Address | None = None
    epoch: int = -1
    why: str = ""


@dataclass(frozen=True)
class Master:
    """The server that is taken for the master, and the highest epoch that anybody told with it."""

    address: Address
    epoch: int


@dataclass(frozen=True)
class Claim:
    """A server that may be the master, if the one that was has come to `needs`."""

    address: Address
    epoch: int
    needs: int = ANYTHING


def answer(name: str, where: object, facts: object) -> Answer:
    """The Answer of a Sentinel that replied `where` to SENTINEL GET-MASTER-ADDR-BY-NAME and `facts`
    to SENTINEL MASTER: bytes, lists, or exceptions.

    Both are asked: during a failover only the first one names the new master in time, and only the
    second one has the epoch.
    """
    if where is None:
        return Answer(why=f"knows no master named {name}")
    if isinstance(where, Exception):
        return Answer(why=f"is no Sentinel, or will not tell: {where}")
    words = where if isinstance(where, list) else []
    port = _text(words[1]) if len(words) == 2 else ""
    if not (port.isascii() and port.isdigit()) or int(port) > 65535:
        return Answer(why="does not answer as a Sentinel does")
    return Answer(Address(_text(words[0]), int(port)), _epoch(facts))


def _epoch(facts: object) -> int:
    pairs: Sequence[Any] = facts if isinstance(facts, list) else []
    if isinstance(facts, dict):
        pairs = [word for pair in facts.items() for word in pair]
    found = {_text(pairs[at]): _text(pairs[at + 1]) for at in range(0, len(pairs) - 1, 2)}
    epoch = found.get("config-epoch", "")
    return int(epoch) if epoch.isascii() and epoch.isdigit() else 0


def _text(word: object) -> str:
    return word.decode("utf-8", "replace") if isinstance(word, bytes) else str(word)


def role(reply: object) -> str:
    """What a server is that replied this to ROLE."""
    first = reply[0] if isinstance(reply, list) and reply else None
    if first == b"master":
        return MASTER
    return REPLICA if first in (b"slave", b"replica") else UNTOLD


def choose(answers: Sequence[Answer | None], known: Master | None) -> Claim | None:
    """Who the master is by `reply_slots`, one of each Sentinel, None of those that are still asked.
    None if they tell nothing, or not yet. The claim may be that of `known` itself.
    """
    named = [each for each in answers if each is not None and each.address is not None]
    if not named:
        return None
    all_in = None not in answers
    newest = max(each.epoch for each in named)
    if known is None or newest > known.epoch:
        if known is None and not all_in:
            return None
        return Claim(_most_named([each for each in named if each.epoch == newest])[0], newest)
    if not all_in:
        return None
    others = [each for each in named if each.address != known.address]
    if not others:
        return Claim(known.address, known.epoch)
    best = max(each.epoch for each in others)
    address, count = _most_named(others)
    if count == len(answers):
        return Claim(address, best)
    if 2 * count > len(answers) and len(others) == len(named):
        return Claim(address, best, GONE)
    return Claim(_most_named([each for each in others if each.epoch == best])[0], best, DEPOSED)


def _most_named(named: Sequence[Answer]) -> tuple[Address, int]:
    """The address that most name (of several the one named first), and by how many."""
    counts: dict[Address, int] = {}
    for each in named:
        assert each.address is not None
        counts[each.address] = counts.get(each.address, 0) + 1
    address = max(counts, key=lambda one: counts[one])
    return address, counts[address]


def accepts(claim: Claim, itself: str, former: str) -> bool:
    """Whether the server of `claim` is taken: `itself` is what it says it is, `former` what the one
    says that was the master. Whoever may not ask (a password, rights) believes the Sentinels, if
    they are certain.
    """
    if claim.needs == DEPOSED:
        return itself == MASTER and former == REPLICA
    if claim.needs == GONE:
        return itself == MASTER and former in (REPLICA, NOBODY)
    return itself in (MASTER, UNTOLD)


def unanswered(answers: Sequence[tuple[Address, Answer | None]]) -> str:
    """Which Sentinels name nobody, and why; empty if all do. A person reads it."""
    parts: list[str] = []
    for asked, each in answers:
        if each is None or each.address is None:
            parts.append(f"{asked} {each.why if each is not None else 'did not answer'}")
    return ", ".join(parts)


class Pace:
    """When the Sentinels are asked again: now and then, soon while there is trouble, and at once
    when something odd was seen, but not each time.
    """

    def __init__(self, clock: Callable[[], float], chance: Callable[[], float]) -> None:
        self._clock = clock
        self._chance = chance
        self._trouble = Backoff(TROUBLE_FIRST_S, TROUBLE_MOST_S, chance)
        self._suspect_until = float("-inf")
        self._asked_at = float("-inf")

    def suspect(self) -> float:
        """Something odd was seen: the seconds until the Sentinels should be asked."""
        now = self._clock()
        if now >= self._suspect_until:
            self._trouble.reset()
        self._suspect_until = now + SUSPECT_S
        return max(0.0, self._asked_at + LEAST_S - now)

    def pause_s(self, well: bool) -> float:
        """Seconds until the next look, after one that found all well, or not."""
        now = self._clock()
        self._asked_at = now
        if well and now >= self._suspect_until:
            self._trouble.reset()
            return CALM_S * (1 - self._chance() / 2)
        return self._trouble.pause_s()


class Notice:
    """A text that changes and is logged, but not too often."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._said = ""
        self._said_at = float("-inf")

    def news(self, text: str) -> bool:
        """Whether to log `text` now: it is not what was said last, which was a while ago."""
        now = self._clock()
        if text == self._said or now - self._said_at < NOTICE_S:
            return False
        self._said = text
        self._said_at = now
        return True
