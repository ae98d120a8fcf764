"""The text of a rule: parsed again, it is the same hit."""

from __future__ import annotations

import pytest
from rlproxy.ratelimit import scripts
from rlproxy.ratelimit.grammar import Grammar, Policy, Rule

GRAMMAR = Grammar(scripts.load())


def parsed(text: bytes, name: bytes = b"RL.HIT") -> Rule:
    words = [b"key", *text.split()]
    found = GRAMMAR.rule(name + b" " + text, name, words)
    assert not found.error, found.error
    return found


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("5 60", "5 60"),
        ("5 60 algo log cost 1", "5 60"),
        ("5 0.5", "5 0.5"),
        ("5 1.000001 GAP 0.25", "5 1.000001 GAP 0.25"),
        ("5 100 MS", "5 100 MS"),
        ("MS", None),
        ("5 60000 gap 500 MS", "5 60000 MS GAP 500"),
        ("5 60 ALGO token BURST 10 COST 3", "5 60 ALGO TOKEN COST 3 BURST 10"),
        ("5 60 PENALTY 300 AND 20 3600", "5 60 PENALTY 300 AND 20 3600"),
        ("5 60 WAIT 2 STRICT AND 2 3 AND 3 4", "5 60 STRICT WAIT 2 AND 2 3 AND 3 4"),
    ],
)
def test_text_of_a_hit(given: str, shown: str | None) -> None:
    if shown is None:
        assert GRAMMAR.rule(b"wrong", b"RL.HIT", [b"key", given.encode()]).label() == b""
    else:
        assert parsed(given.encode()).label() == shown.encode()


def test_a_policy_is_shown_by_its_name() -> None:
    GRAMMAR.use({b"login": Policy(b"login", b"5 60", False)})
    rule = parsed(b"POLICY login COST 2")
    for each in (rule, rule.peek(), rule.attempt(), rule.in_microseconds()):
        assert each.label() == b"login"
