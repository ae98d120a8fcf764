"""command_entries: every row is one that Redis could report, and has what the grammar has."""

from __future__ import annotations

import pytest
from rlproxy.ratelimit import algorithms, grammar
from rlproxy.ratelimit.command_entries import ENTRIES, ArgumentNode, Entry

BY_NAME = {entry.name: entry for entry in ENTRIES}
IDS = [name.decode() for name in BY_NAME]

# As Redis names them (server.c, acl.c).
FLAGS = {b"write", b"readonly", b"denyoom", b"noscript", b"blocking", b"loading", b"stale", b"fast"}
CATEGORIES = {b"@keyspace", b"@read", b"@write", b"@fast", b"@slow", b"@blocking", b"@scripting"}
KEY_FLAGS = {b"RO", b"RW", b"OW", b"RM", b"access", b"update", b"insert", b"delete"}


@pytest.mark.parametrize("entry", ENTRIES, ids=IDS)
def test_entry(entry: Entry) -> None:
    assert entry.name == entry.name.lower()
    assert set(entry.flags) <= FLAGS
    assert set(entry.categories) <= CATEGORIES
    assert set(entry.keys) <= KEY_FLAGS
    assert (b"write" in entry.flags) == (b"@write" in entry.categories)
    assert (b"readonly" in entry.flags) == (b"@read" in entry.categories)
    assert (b"fast" in entry.flags) == (b"@fast" in entry.categories)
    assert (b"write" in entry.flags) == bool({b"RW", b"RM"} & set(entry.keys))
    assert entry.summary.endswith(b".")
    assert entry.arity != 0


def words(argument: ArgumentNode) -> int:
    """The least number of words that an argument takes."""
    if b"optional" in argument.flags:
        return 0
    below = [words(each) for each in argument.below]
    own = (argument.token != b"") + (argument.kind not in (b"oneof", b"block", b"pure-token"))
    return own + (min(below) if argument.kind == b"oneof" else sum(below))


@pytest.mark.parametrize("entry", ENTRIES, ids=IDS)
def test_the_arity_is_that_of_the_arguments(entry: Entry) -> None:
    fixed = all(words(each) for each in entry.arguments) and not entry.many
    assert abs(entry.arity) == 1 + sum(map(words, entry.arguments))
    assert (entry.arity > 0) == fixed


@pytest.mark.parametrize("name", [b"rl.hit", b"rl.peek", b"rl.refund"], ids=bytes.decode)
def test_a_policy_stands_in_place_of_max_and_window(name: bytes) -> None:
    _, rule, *_ = BY_NAME[name].arguments
    limit, policy = rule.below
    assert [each.name for each in limit.below] == [b"max", b"window"]
    assert policy.token == grammar.POLICY
    assert words(limit) == words(policy)


@pytest.mark.parametrize("name", grammar.OPTIONS, ids=bytes.decode)
def test_every_option_is_in_an_entry(name: bytes) -> None:
    arguments = [
        argument
        for each in BY_NAME[name.lower()].arguments
        for argument in (each.below if each.name == b"limiter" else (each,))
    ]
    assert {each.token for each in arguments} - {b"", grammar.POLICY} == set(grammar.OPTIONS[name])
    (algorithm,) = (each for each in arguments if each.token == b"ALGO")
    assert {each.token for each in algorithm.below} == set(algorithms.ALGORITHMS)
