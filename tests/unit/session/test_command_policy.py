"""Which commands a client may not send, in each form."""

from __future__ import annotations

import pytest
from rlproxy.resp import commands
from rlproxy.resp.commands import COMMANDS, UNRESTRICTED
from rlproxy.session import command_policy

LOCAL = command_policy.table((), True).rows
ONLY_LOCAL = "rlproxy lets only local clients {} (--local-commands)\r\n"
DENIED = "-NOPERM command '{}' is denied by rlproxy (--deny-command)\r\n"


def error(table: dict[bytes, commands.Command], line: str, complete: bool = True) -> str:
    """The error for a command that is written as `line`."""
    name, *args = line.encode("latin-1").split(b" ")
    row = table.get(name.upper())
    if row is None or row.ban is None:
        return ""
    return row.ban.error(args if row.whole else [], complete).decode()


def test_nothing_denied_is_the_table_itself() -> None:
    assert command_policy.table((), False) is UNRESTRICTED
    assert all(row.ban is None for row in COMMANDS.values())


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("DEBUG SLEEP 0", "-ERR DEBUG command not allowed. " + ONLY_LOCAL.format("run it")),
        ("debug", "-ERR DEBUG command not allowed. " + ONLY_LOCAL.format("run it")),
        ("MODULE LOAD x", "-ERR MODULE LOAD command not allowed. " + ONLY_LOCAL.format("run it")),
        ("MODULE loadex x", "-ERR MODULE LOADEX command not allowed. "
         + ONLY_LOCAL.format("run it")),
    ],
)  # fmt: skip
def test_for_local_clients_only(line: str, expected: str) -> None:
    assert error(LOCAL, line) == expected


def test_what_is_too_long_to_be_looked_at_is_not_sent() -> None:
    unseen = "-ERR CONFIG command of this size not allowed by rlproxy\r\n"
    assert error(LOCAL, "CONFIG SET a", complete=False) == unseen
    assert error(LOCAL, "CONFIG", complete=False) == unseen
    assert error(LOCAL, "CONFIG GET a", complete=False) == ""
    assert "MODULE command of this size" in error(LOCAL, "MODULE", complete=False)


def test_denied_ones() -> None:
    table = command_policy.table(
        ("keys", "config|set", "config|rewrite", "ft.drop", "rl.hit"), False
    ).rows
    assert error(table, "KEYS *") == DENIED.format("keys")
    assert error(table, "keys") == DENIED.format("keys")
    assert error(table, "ConFig sEt a 1") == DENIED.format("config|set")
    assert error(table, "CONFIG REWRITE") == DENIED.format("config|rewrite")
    assert error(table, "CONFIG GET a") == error(table, "CONFIG") == ""
    assert error(table, "FT.DROP x") == DENIED.format("ft.drop")
    assert error(table, "RL.HIT x") == DENIED.format("rl.hit")
    assert error(table, "DEBUG x") == error(table, "GET x") == ""
    assert table[b"FT.DROP"].kind == commands.UNKNOWN
    assert table[b"keys"] is table[b"KEYS"]
    assert table[b"KEYS"].reads
    assert {name for name in table if table[name] is not COMMANDS.get(name)} == {
        *(b"KEYS", b"keys", b"CONFIG", b"config", b"FT.DROP", b"ft.drop", b"RL.HIT", b"rl.hit")
    }


def test_a_denied_command_is_never_shared() -> None:
    assert COMMANDS[b"GET"].shared != commands.PRIVATE
    assert command_policy.table(("get",), False).rows[b"GET"].shared == commands.PRIVATE
    assert command_policy.table(("get|secret",), False).rows[b"GET"].shared == commands.PRIVATE
