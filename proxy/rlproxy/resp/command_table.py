"""A table of commands for clients: the row of a command by its name, as the client writes it."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from rlproxy.resp.commands import COMMANDS, UNKNOWN_COMMAND, Command
from rlproxy.resp.encoding import same

_CLASSES: Final = 32  # classes of names: by the low bits of the first byte


class CommandTable:
    """The rows of commands, by name in upper and in lower case.

    The latest name of each class is found without a copy of its bytes: clients repeat few names.

    strict: some commands are banned, and none may pass unrecognized. Any table but COMMANDS is
        taken to contain bans.
    """

    def __init__(self, rows: dict[bytes, Command]) -> None:
        self.rows = rows
        self.strict = rows is not COMMANDS
        self._names = [b""] * _CLASSES
        self._found = [UNKNOWN_COMMAND] * _CLASSES

    def find(self, data: bytes, start: i64, end: i64) -> Command:
        """Return the row of the name that stands in `data` from `start` to `end`."""
        place: i64 = data[start] & (_CLASSES - 1) if start < end else 0
        if not same(self._names[place], data, start, end):
            name = data[start:end]
            self._names[place] = name
            self._found[place] = self.rows.get(name) or self._unusual(name)
        return self._found[place]

    def _unusual(self, name: bytes) -> Command:
        """The row of a name that is in neither all upper nor all lower case, or unknown."""
        command = self.rows.get(name.upper())
        if command is not None:
            return command
        return self.banned(name) if self.strict else UNKNOWN_COMMAND

    def banned(self, name: bytes) -> Command:
        """Return the banned command that Redis may find by a `name` with a NUL in it, if any."""
        # Redis hashes the whole name but compares up to the NUL, so some such names match.
        word, found, _ = name.partition(b"\0")
        command = self.rows.get(word.upper()) if found else None
        if command is None or command.ban is None or command.ours:
            return UNKNOWN_COMMAND
        return command


UNRESTRICTED: Final = CommandTable(COMMANDS)
