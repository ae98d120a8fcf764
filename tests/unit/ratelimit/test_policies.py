"""Policies: the table of the settings file, its mistakes, and what differs after a reload."""

from __future__ import annotations

import pytest
from rlproxy.ratelimit import policies
from rlproxy.ratelimit.policies import MAX_POLICIES


def test_the_table_is_sorted_and_parsed() -> None:
    texts = (("search", "100 60 ALGO COUNTER", True), ("login", "5 60 PENALTY 300", False))
    found, mistakes = policies.parse(texts)
    assert mistakes == []
    assert list(found) == [b"login", b"search"]
    search = found[b"search"]
    assert (search.name, search.text) == (b"search", b"100 60 ALGO COUNTER")
    assert (search.shadow, policies.mode(search.shadow)) == (True, "shadow")
    assert policies.mode(found[b"login"].shadow) == "enforced"
    limiter = found[b"login"].limiter
    assert (limiter.max, limiter.window_us, limiter.penalty_us) == (5, 60_000_000, 300_000_000)


@pytest.mark.parametrize("name", ["a", "A", "0", "_.:-", "x" * 64, "api.v1:login-2_b"])
def test_names(name: str) -> None:
    found, mistakes = policies.parse([(name, "5 60", False)])
    assert mistakes == []
    assert list(found) == [name.encode()]


FORM = "a name is 1 to 64 letters, digits, '_', '.', ':' and '-'"
WRONG = [
    ("", "5 60", f"policy '': {FORM}"),
    ("a b", "5 60", f"policy 'a b': {FORM}"),
    ("a\n", "5 60", rf"policy 'a\x0a': {FORM}"),
    ("é", "5 60", f"policy 'é': {FORM}"),
    ("\x1b[31m", "5 60", rf"policy '\x1b[31m': {FORM}"),
    ("x" * 65, "5 60", f"policy '{'x' * 32}...': {FORM}"),
    ("a", "", "policy 'a': expected max, window and options, such as '5 60'"),
    ("a", "5", "policy 'a': expected max, window and options, such as '5 60'"),
    ("a", "5 60 GAP", "policy 'a': syntax error near 'GAP'"),
    ("a", "5 60 ALGO GCRA GAP 1", "policy 'a': GAP is not supported by ALGO GCRA"),
    ("a", "5 0", "policy 'a': window is not a valid number of seconds"),
    ("a", "5 60 WAIT x", "policy 'a': WAIT is not a valid number of seconds"),
    ("a", "POLICY b", "policy 'a': a rule can't name a policy"),
    ("a", "policy a", "policy 'a': a rule can't name a policy"),
    ("a", "5 60 Policy a", "policy 'a': a rule can't name a policy"),
    ("a", "5 60 AND POLICY a", "policy 'a': a rule can't name a policy"),
]


@pytest.mark.parametrize(("name", "text", "mistake"), WRONG)
def test_a_mistake_names_the_policy(name: str, text: str, mistake: str) -> None:
    assert policies.mistakes([("good", "5 60", False), (name, text, False)]) == [mistake]


def test_all_mistakes_are_reported() -> None:
    texts = [(name, text, True) for name, text, _ in WRONG]
    assert policies.mistakes(texts) == [mistake for _, _, mistake in WRONG]


@pytest.mark.parametrize(
    ("rule", "limit"),
    [
        ("5 60 COST 5", 0),
        ("5 60 COST 6", 5),
        ("5 60 cost 6", 5),
        ("9 60 COST 6 AND 5 600", 5),
        ("5 60 ALGO GCRA BURST 9 COST 9", 0),
        ("5 60 ALGO GCRA BURST 9 COST 10", 9),
        ("5 60", 0),
    ],
)
def test_a_policy_that_refuses_every_hit_is_doubtful(rule: str, limit: int) -> None:
    cost = rule.upper().partition("COST ")[2].partition(" ")[0]
    found = policies.warnings([("good", "5 60 COST 2", False), ("bad", rule, False)])
    why = f"policy 'bad': COST {cost} is above its limit {limit}: it refuses every hit"
    assert found == ([f"{why} without a COST of its own"] if limit else [])


@pytest.mark.heavy
def test_the_number_of_policies_is_bounded() -> None:
    texts = [(f"p{n}", "5 60", False) for n in range(MAX_POLICIES)]
    assert policies.mistakes(texts) == []
    assert policies.mistakes([*texts, ("more", "5 60", False)]) == [
        "10001 policies, more than 10000"
    ]


def test_differences() -> None:
    old = (("b", "5 60", False), ("a", "5 60", False), ("c", "1 1", False), ("d", "2 2", True))
    new = (("d", "2 2", False), ("x", "1 1", False), ("a", "5 60", False), ("c", "1 2", False))
    assert policies.differences(old, new) == (["x"], ["b"], ["c", "d"])
    assert policies.differences(old, tuple(reversed(old))) == ([], [], [])
