"""The choice of the master by the answers of Sentinels."""

from __future__ import annotations

import pytest
from rlproxy.config.urls import Address
from rlproxy.upstream.sentinel import (
    MASTER,
    NO_REPLY,
    REPLICA,
    UNKNOWN,
    Answer,
    Claim,
    accepts,
    answer,
    choose,
    role,
)

OLD = Address("10.0.0.1", 7001)
NEW = Address("10.0.0.2", 7002)
THIRD = Address("10.0.0.3", 7003)
DOWN = Answer(why="connection refused")
KNOWN = Claim(OLD, 4)
DIGITS = "9" * 5000  # more than int() takes


def facts(**words: object) -> list[bytes]:
    return [text for name, value in words.items() for text in (_key(name), str(value).encode())]


def _key(name: str) -> bytes:
    return name.replace("_", "-").encode()


# -- replies --------------------------------------------------------------------------------------


def test_an_answer() -> None:
    told = answer("m", [b"10.0.0.1", b"7001"], facts(name="m", flags="master", config_epoch=4))
    assert told == Answer(OLD, 4)


@pytest.mark.parametrize(
    "odd",
    [
        *(Exception("NOPERM"), None, [], [b"config-epoch"], 5),
        *(facts(config_epoch="x"), facts(config_epoch=DIGITS)),
    ],
    ids=range(7),
)
def test_without_an_epoch_it_is_the_lowest(odd: object) -> None:
    assert answer("m", [b"10.0.0.1", b"7001"], odd) == Answer(OLD, 0)


def test_an_unknown_name() -> None:
    told = answer("m", None, Exception("No such master with that name"))
    assert told == Answer(why="has no master named m")


def test_no_sentinel() -> None:
    assert answer("m", Exception("unknown command 'SENTINEL'"), None).why == (
        "is no Sentinel, or refuses the query: unknown command 'SENTINEL'"
    )


@pytest.mark.parametrize(
    "odd",
    [
        *([], [b"h"], [b"h", b"x"], [b"h", b"99999"], [b"h", b"-1"], b"OK", 7, [b"h", None]),
        [b"h", DIGITS.encode()],
    ],
    ids=range(9),
)
def test_nonsense(odd: object) -> None:
    assert answer("m", odd, []) == Answer(why="does not answer as a Sentinel does")


@pytest.mark.parametrize(
    ("reply", "is_"),
    [
        ([b"master", 10, []], MASTER),
        ([b"slave", b"10.0.0.1", 7001, b"connected", 5], REPLICA),
        ([b"sentinel", [b"m"]], UNKNOWN),
        ([], UNKNOWN),
        (b"OK", UNKNOWN),
    ],
)
def test_role(reply: object, is_: str) -> None:
    assert role(reply) == is_


# -- the choice of the master ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answers", "claim"),
    [
        ([], None),
        ([None, None, None], None),
        ([DOWN, DOWN, DOWN], None),
        # at first all are waited for: the one with the newest epoch may be the last
        ([Answer(OLD, 4), Answer(OLD, 4), None], None),
        ([Answer(OLD, 4), Answer(OLD, 4), Answer(OLD, 4)], Claim(OLD, 4)),
        ([Answer(OLD, 4), Answer(OLD, 4), Answer(NEW, 5)], Claim(NEW, 5)),
        ([DOWN, DOWN, Answer(OLD, 4)], Claim(OLD, 4)),
        # the same epoch: the master that most name, then the one that is named first
        ([Answer(OLD, 0), Answer(NEW, 0), Answer(NEW, 0)], Claim(NEW, 0)),
        ([Answer(OLD, 0), Answer(NEW, 0), DOWN], Claim(OLD, 0)),
    ],
)
def test_at_first(answers: list[Answer | None], claim: Claim | None) -> None:
    assert choose(answers, None) == claim


@pytest.mark.parametrize(
    ("answers", "claim"),
    [
        ([DOWN, DOWN, DOWN], None),
        ([Answer(OLD, 4), Answer(OLD, 4), Answer(OLD, 4)], Claim(OLD, 4)),
        ([Answer(OLD, 5), DOWN, DOWN], Claim(OLD, 5)),
        # a newer epoch counts at once, whatever the others answer
        ([None, None, Answer(NEW, 5)], Claim(NEW, 5)),
        ([Answer(OLD, 4), Answer(OLD, 4), Answer(NEW, 5)], Claim(NEW, 5)),
        ([Answer(NEW, 5), Answer(NEW, 5), Answer(THIRD, 6)], Claim(THIRD, 6)),
        # else all are waited for
        ([Answer(OLD, 4), None, None], None),
        ([Answer(NEW, 3), Answer(NEW, 3), None], None),
        # a Sentinel that was away
        ([Answer(NEW, 3), Answer(OLD, 4), Answer(OLD, 4)], Claim(OLD, 4)),
        ([Answer(NEW, 3), DOWN, DOWN], Claim(OLD, 4)),
        # one Sentinel reports a failover that most have not seen
        ([Answer(NEW, 3), Answer(NEW, 3), Answer(OLD, 4)], Claim(OLD, 4)),
        # ... and that one is gone now
        ([Answer(NEW, 3), Answer(NEW, 3), DOWN], Claim(NEW, 3, True)),
        # an operator gave all another master: their epochs begin again
        ([Answer(NEW, 0), Answer(NEW, 0), Answer(NEW, 0)], Claim(NEW, 0)),
        ([Answer(NEW, 4), Answer(OLD, 4), DOWN], Claim(OLD, 4)),
    ],
)
def test_later(answers: list[Answer | None], claim: Claim | None) -> None:
    assert choose(answers, KNOWN) == claim


@pytest.mark.parametrize(
    ("if_gone", "itself", "former", "taken"),
    [
        (False, MASTER, UNKNOWN, True),
        (False, UNKNOWN, UNKNOWN, True),  # it wants a password that the URL lacks
        (False, REPLICA, UNKNOWN, False),
        (False, NO_REPLY, UNKNOWN, False),
        (True, MASTER, NO_REPLY, True),
        (True, MASTER, REPLICA, True),
        (True, MASTER, MASTER, False),
        (True, MASTER, UNKNOWN, False),
        (True, UNKNOWN, NO_REPLY, False),
    ],
)
def test_accepts(if_gone: bool, itself: str, former: str, taken: bool) -> None:
    assert accepts(Claim(NEW, 5, if_gone), itself, former) is taken
