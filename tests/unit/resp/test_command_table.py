"""The command table: names that follow each other, whatever was found before."""

from __future__ import annotations

from itertools import permutations

from rlproxy.resp.command_table import UNRESTRICTED, CommandTable
from rlproxy.resp.commands import COMMANDS, UNKNOWN_COMMAND, Ban, Command

# Most are of one class: their first letters are the same, in upper or lower case.
NAMES = (b"GET", b"get", b"GeT", b"GETSET", b"GETX", b"G", b"", b"\0GET", b"DEBUG\0")


def test_each_name_has_its_row_behind_any_other() -> None:
    for names in permutations(NAMES, 3):
        data = b"$" + b"".join(names)
        end = 1
        for name in names:
            end += len(name)
            row = COMMANDS.get(name.upper(), UNKNOWN_COMMAND)
            assert UNRESTRICTED.find(data, end - len(name), end) is row


def test_tables_are_apart() -> None:
    banned = Command(b"GET", COMMANDS[b"GET"].kind)
    banned.ban = Ban()
    strict = CommandTable({**COMMANDS, b"GET": banned})
    assert strict.strict
    assert not UNRESTRICTED.strict
    for _ in range(2):
        assert UNRESTRICTED.find(b"GET", 0, 3) is COMMANDS[b"GET"]
        assert strict.find(b"GET", 0, 3) is banned
        assert strict.find(b"GET\0x", 0, 5) is banned
        assert UNRESTRICTED.find(b"GET\0x", 0, 5) is UNKNOWN_COMMAND
