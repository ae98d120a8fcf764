"""command_entries: every row is one that Redis could report, and has what the grammar has."""

from __future__ import annotations

import pytest
from rlproxy.ratelimit import command_entries, grammar
from rlproxy.ratelimit.algorithms import ALGORITHMS
from rlproxy.ratelimit.command_entries import ENTRIES, Entry
from rlproxy.resp.commands import FAMILY

BY_NAME = {entry.name: entry for entry in ENTRIES}
IDS = [name.decode() for name in BY_NAME]

# As Redis names them (server.c).
FLAGS = {"write", "readonly", "denyoom", "noscript", "blocking", "loading", "stale", "fast"}


def test_each_command_has_a_row() -> None:
    assert {name.upper() for name in BY_NAME} == set(FAMILY)
    assert len(BY_NAME) == len(ENTRIES)


@pytest.mark.parametrize("entry", ENTRIES, ids=IDS)
def test_entry(entry: Entry) -> None:
    assert set(entry.flags) <= FLAGS
    assert entry.lines[0].endswith(".")


@pytest.mark.parametrize(
    ("name", "arity", "categories", "keys"),
    [
        (b"rl.hit", -4, "@write @fast @blocking @scripting", "RW access update"),
        (b"rl.peek", -4, "@read @fast @scripting", "RO access"),
        (b"rl.refund", -5, "@write @fast @scripting", "RW access update"),
        (b"rl.reset", -2, "@keyspace @write @slow", "RM delete"),
        (b"rl.block", -3, "@write @fast @scripting", "RW access update"),
        (b"cl.throttle", -5, "@write @fast @scripting", "RW access update"),
        (b"rl.top", -2, "@slow @scripting", ""),
        (b"rl.stats", 1, "@fast @scripting", ""),
    ],
)
def test_what_follows_from_the_form_and_the_flags(
    name: bytes, arity: int, categories: str, keys: str
) -> None:
    entry = BY_NAME[name]
    assert entry.arity == arity
    assert entry.categories() == categories.split()
    assert entry.keys == keys.split()
    assert entry.many == (name == b"rl.reset")


@pytest.mark.parametrize("name", grammar.OPTIONS, ids=bytes.decode)
def test_every_option_is_in_an_entry(name: bytes) -> None:
    entry = BY_NAME[name.lower()]
    found = {each[b"token"] for each in entry.arguments if b"token" in each}
    assert found == set(grammar.OPTIONS[name])
    for word in found:
        assert f"[{word.decode()}" in entry.syntax


def test_help_has_every_command_and_algorithm() -> None:
    text = "\n".join(command_entries.HELP)
    assert text.startswith("RL.<subcommand> key [<arg> [value] [opt] ...]. Subcommands are:\n")
    for entry in ENTRIES:
        assert f"\n{entry.syntax}\n    {entry.lines[0]}" in text
    for algorithm in ALGORITHMS:
        assert algorithm.decode() in text


def test_help_is_a_script_of_simple_strings() -> None:
    words = command_entries.HELP_REQUEST.split(b"\r\n")
    assert words[2] == b"EVAL"
    assert words[4].count(b"{ok='") == len(command_entries.HELP)
    for line in command_entries.HELP:
        assert line.replace("'", "\\'").encode() in words[4]
        assert "\r" not in line
        assert "\n" not in line
        assert "\\" not in line
    assert words[6] == b"0"
