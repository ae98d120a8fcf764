"""The answers of Sentinels, and which server they make the master. No I/O.

Every change of master that the Sentinels agree on gets a new configuration epoch, higher than all
before. So one Sentinel with a newer epoch is right against any number of Sentinels with older ones.
A Sentinel that was cut off and still names the old master is recognized by its older epoch.

    answers, compared with the known master                 the named server becomes master if
    -----------------------------------------------------   ------------------------------------
    no master is known yet                                  it is a master
    a newer epoch                                           it is a master
    no newer epoch, all name another one (set up anew)      it is a master
    no newer epoch, most name another one, none ours        ... and ours is gone, or a replica
    anything else                                           (ours stays)

A server whose role cannot be queried (password, rights) is believed to be a master in the first
three rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rlproxy.config.urls import Address

# The role of a server by its reply to ROLE.
MASTER: Final = "master"
REPLICA: Final = "a replica"
UNKNOWN: Final = "unknown"  # the server answers, but its role cannot be queried
NO_REPLY: Final = "no reply"  # the server does not answer


@dataclass(frozen=True)
class Answer:
    """The answer of one Sentinel: the master's address and epoch.

    address: None if the Sentinel names no master; `why` is the reason then.
    epoch: the configuration epoch; 0 if the Sentinel did not return it.
    """

    address: Address | None = None
    epoch: int = 0
    why: str = ""


@dataclass(frozen=True)
class Claim:
    """A server that is the master, or may become it.

    epoch: the highest with which a Sentinel named it.
    if_gone: only if the known master does not answer, or replies that it is a replica.
    """

    address: Address
    epoch: int
    if_gone: bool = False


def answer(name: str, where: object, facts: object) -> Answer:
    """Build an Answer from the replies of one Sentinel.

    name: the name of the master that was queried.
    where: the reply to SENTINEL GET-MASTER-ADDR-BY-NAME, an error as an exception.
    facts: the reply to SENTINEL MASTER, an error as an exception.

    Both commands are needed. During a failover only the first one returns the new master in time,
    and only the second one returns the epoch.
    """
    if where is None:
        return Answer(why=f"has no master named {name}")
    if isinstance(where, Exception):
        why = str(where).removeprefix("ERR ")
        return Answer(why=f"is no Sentinel, or refuses the query: {why}")
    words = where if isinstance(where, list) else []
    port = _number(_text(words[1])) if len(words) == 2 else -1
    if not 0 <= port <= 65535:
        return Answer(why="does not answer as a Sentinel does")
    return Answer(Address(_text(words[0]), port), _epoch(facts))


def _epoch(facts: object) -> int:
    pairs: Sequence[Any] = facts if isinstance(facts, list) else []
    found = {_text(pairs[at]): _text(pairs[at + 1]) for at in range(0, len(pairs) - 1, 2)}
    return max(0, _number(found.get("config-epoch", "")))


def _number(word: str) -> int:
    """Return the number that `word` has, of at most 20 digits as epochs have; -1 for none."""
    return int(word) if word.isascii() and word.isdigit() and len(word) <= 20 else -1


def _text(word: object) -> str:
    return word.decode("utf-8", "replace") if isinstance(word, bytes) else str(word)


def role(reply: object) -> str:
    """Return MASTER, REPLICA or UNKNOWN for a reply to ROLE."""
    first = reply[0] if isinstance(reply, list) and reply else None
    if first == b"master":
        return MASTER
    return REPLICA if first in (b"slave", b"replica") else UNKNOWN


def choose(answers: Sequence[Answer | None], known: Claim | None) -> Claim | None:
    """Choose the server that may be the master.

    answers: one for each Sentinel, None for one that is outstanding.
    known: the claim of the present master, None if there is none yet.
    Returns None if no Sentinel names a master, or if outstanding answers may decide. The claim may
    name the server of `known`.
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
    address, count = _most_named(named)
    if 2 * count > len(answers) and known.address not in [each.address for each in named]:
        return Claim(address, newest, count < len(answers))
    return Claim(known.address, known.epoch)


def _most_named(named: Sequence[Answer]) -> tuple[Address, int]:
    """Return the address that most answers name, the first of equals, and their number."""
    counts = Counter(each.address for each in named if each.address is not None)
    return counts.most_common(1)[0]


def accepts(claim: Claim, itself: str, former: str) -> bool:
    """Return whether the server of `claim` becomes the master.

    itself: the role of that server.
    former: the role of the known master.

    Where the role cannot be queried (password, rights), it is taken for a master, but not if_gone.
    """
    if claim.if_gone:
        return itself == MASTER and former in (REPLICA, NO_REPLY)
    return itself in (MASTER, UNKNOWN)


def unanswered(answers: Iterable[tuple[Address, Answer | None]]) -> list[str]:
    """Return the Sentinels that name no master, with reasons, for the log.

    answers: the address of each Sentinel, and its answer or None.
    """
    return [
        f"{address} {each.why if each is not None else 'did not answer'}"
        for address, each in answers
        if each is None or each.address is None
    ]
