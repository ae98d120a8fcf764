"""commands: the table is consistent, and what it names is treated as it was reviewed."""

from __future__ import annotations

from itertools import permutations

import pytest
from rlproxy.resp import commands

KINDS = {
    commands.PASS: b"GET SET EVAL",
    commands.BLOCKS: b"BLPOP XREAD",
    commands.INTROSPECT: b"COMMAND",
    commands.OF_NODE: b"READONLY READWRITE ASKING",
    commands.AUTH: b"AUTH",
    commands.HELLO: b"HELLO",
    commands.SELECT: b"SELECT",
    commands.RESET: b"RESET",
    commands.QUIT: b"QUIT",
    commands.MULTI: b"MULTI",
    commands.EXEC: b"EXEC",
    commands.DISCARD: b"DISCARD",
    commands.CLIENT: b"CLIENT",
    commands.SCRIPT: b"SCRIPT",
    commands.WAIT: b"WAIT WAITAOF",
    commands.PUBSUB: b"SUBSCRIBE SUNSUBSCRIBE",
    commands.STREAM: b"MONITOR SYNC PSYNC REPLCONF DEBUG",
    commands.OURS: b"RL.HIT RL.PEEK RL.REFUND RL.RESET RL.BLOCK RL.HELP RL.THROTTLE CL.THROTTLE",
}

# Their effect on a connection is not followed: nothing may count them as harmless.
NEVER_HARMLESS = [b"READONLY", b"READWRITE", b"PFDEBUG", b"PFSELFTEST"]


@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for kind, names in KINDS.items() for name in names.split()]
)
def test_kind(name: bytes, kind: int) -> None:
    assert commands.COMMANDS[name].kind == kind
    assert commands.COMMANDS[name.lower()] is commands.COMMANDS[name]


@pytest.mark.parametrize("name", NEVER_HARMLESS)
def test_not_stateless(name: bytes) -> None:
    row = commands.COMMANDS.get(name, commands.UNKNOWN_COMMAND)
    assert row.kind != commands.PASS
    assert not row.ours
    assert not row.reads


def test_every_name_is_in_one_list() -> None:
    reads = commands.READS.split()
    writes = commands.WRITES.split()
    lists = [*reads, *writes, *commands.FOLLOWED, *commands.FAMILY, *commands.STATEFUL.split()]
    twice = {name for name in lists if lists.count(name) > 1} - {b"POST", b"HOST:"}
    assert not twice
    assert all(name == name.upper() for name in lists)


def test_reads_change_nothing() -> None:
    reads = {row.name for row in commands.COMMANDS.values() if row.reads}
    assert reads == {*commands.READS.split(), *commands.REPORTS, b"COMMAND"}
    assert not reads & set(commands.WRITES.split())


def test_whole_rows_are_those_whose_arguments_are_looked_at() -> None:
    for name in (b"AUTH", b"HELLO", b"SELECT", b"CLIENT", b"SCRIPT", b"COMMAND", *commands.FAMILY):
        assert commands.COMMANDS[name].whole, name
    for name in (b"SET", b"MULTI", b"EXEC", b"SUBSCRIBE", b"EVAL", b"QUIT"):
        assert not commands.COMMANDS[name].whole, name


def test_ours_is_the_family() -> None:
    assert {row.name for row in commands.COMMANDS.values() if row.ours} == set(commands.FAMILY)


# Most are of one class: their first letters are the same, in upper or lower case.
NAMES = (b"GET", b"get", b"GeT", b"GETSET", b"GETX", b"G", b"", b"\0GET", b"DEBUG\0")


def test_each_name_has_its_row_behind_any_other() -> None:
    for names in permutations(NAMES, 3):
        data = b"$" + b"".join(names)
        end = 1
        for name in names:
            end += len(name)
            row = commands.COMMANDS.get(name.upper(), commands.UNKNOWN_COMMAND)
            assert commands.UNRESTRICTED.find(data, end - len(name), end) is row


def test_tables_are_apart() -> None:
    banned = commands.Command(b"GET", commands.COMMANDS[b"GET"].kind)
    banned.ban = commands.Ban()
    strict = commands.CommandTable({**commands.COMMANDS, b"GET": banned})
    assert strict.strict
    assert not commands.UNRESTRICTED.strict
    for _ in range(2):
        assert commands.UNRESTRICTED.find(b"GET", 0, 3) is commands.COMMANDS[b"GET"]
        assert strict.find(b"GET", 0, 3) is banned
        assert strict.find(b"GET\0x", 0, 5) is banned
        assert commands.UNRESTRICTED.find(b"GET\0x", 0, 5) is commands.UNKNOWN_COMMAND
