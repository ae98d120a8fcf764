"""commands: the table is consistent, and what it names is treated as it was reviewed."""

from __future__ import annotations

import pytest
from rlproxy.resp import commands as c

KINDS = {
    b"GET": c.PASS,
    b"SET": c.PASS,
    b"EVAL": c.PASS,
    b"COMMAND": c.INTROSPECT,
    b"READONLY": c.OF_NODE,
    b"READWRITE": c.OF_NODE,
    b"AUTH": c.AUTH,
    b"HELLO": c.HELLO,
    b"SELECT": c.SELECT,
    b"RESET": c.RESET,
    b"QUIT": c.QUIT,
    b"MULTI": c.MULTI,
    b"EXEC": c.EXEC,
    b"DISCARD": c.DISCARD,
    b"CLIENT": c.CLIENT,
    b"SCRIPT": c.SCRIPT,
    b"ASKING": c.OF_NODE,
    b"WAIT": c.WAIT,
    b"WAITAOF": c.WAIT,
    b"SUBSCRIBE": c.PUBSUB,
    b"SUNSUBSCRIBE": c.PUBSUB,
    b"MONITOR": c.STREAM,
    b"SYNC": c.STREAM,
    b"PSYNC": c.STREAM,
    b"REPLCONF": c.STREAM,
    b"DEBUG": c.STREAM,
    b"RL.HIT": c.OURS,
    b"RL.PEEK": c.OURS,
    b"RL.REFUND": c.OURS,
    b"RL.RESET": c.OURS,
    b"RL.BLOCK": c.OURS,
    b"RL.HELP": c.OURS,
    b"RL.THROTTLE": c.OURS,
    b"CL.THROTTLE": c.OURS,
}

# Their effect on a connection is not followed: nothing may count them as harmless.
NEVER_HARMLESS = [
    b"READONLY",
    b"READWRITE",
    b"PFDEBUG",
    b"PFSELFTEST",
    b"POST",
    b"HOST:",
    b"CLIENTS",
    b"RL.FOO",
    b"",
]


@pytest.mark.parametrize(("name", "kind"), KINDS.items())
def test_kind(name: bytes, kind: int) -> None:
    assert c.COMMANDS[name].kind == kind
    assert c.COMMANDS[name.lower()] is c.COMMANDS[name]


@pytest.mark.parametrize("name", NEVER_HARMLESS)
def test_not_stateless(name: bytes) -> None:
    row = c.COMMANDS.get(name, c.UNKNOWN_COMMAND)
    assert row.kind != c.PASS
    assert not row.ours
    assert not row.reads


def test_every_name_is_in_one_list() -> None:
    reads = c.READS.split()
    writes = c.WRITES.split()
    lists = [*reads, *writes, *c.FOLLOWED, *c.FAMILY, *c.STATEFUL.split()]
    twice = {name for name in lists if lists.count(name) > 1} - {b"POST", b"HOST:"}
    assert not twice
    assert all(name == name.upper() for name in lists)


def test_rows_know_their_names() -> None:
    for name, row in c.COMMANDS.items():
        assert row.name == name.upper()
        assert len(name) <= 64  # framing looks no further


def test_reads_change_nothing() -> None:
    reads = {row.name for row in c.COMMANDS.values() if row.reads}
    assert reads == {*c.READS.split(), b"COMMAND"}
    assert not reads & set(c.WRITES.split())


def test_whole_rows_are_those_whose_arguments_are_looked_at() -> None:
    for name in (b"AUTH", b"HELLO", b"SELECT", b"CLIENT", b"SCRIPT", b"COMMAND", *c.FAMILY):
        assert c.COMMANDS[name].whole, name
    for name in (b"SET", b"MULTI", b"EXEC", b"SUBSCRIBE", b"EVAL", b"QUIT"):
        assert not c.COMMANDS[name].whole, name


def test_ours_is_the_family() -> None:
    assert {row.name for row in c.COMMANDS.values() if row.ours} == set(c.FAMILY)


@pytest.mark.parametrize(
    "word", [b"REPLY", b"TRACKING", b"CACHING", b"NO-EVICT", b"NO-TOUCH", b"MAINT_NOTIFICATIONS"]
)
def test_subcommands_of_client_that_leave_something(word: bytes) -> None:
    assert word not in c.CLIENT_STATELESS


def test_script_debug_leaves_something() -> None:
    assert b"DEBUG" not in c.SCRIPT_STATELESS
    assert b"LOAD" in c.SCRIPT_STATELESS
