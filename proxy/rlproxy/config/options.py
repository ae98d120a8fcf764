"""What an option is: a row of the table in `config`; and the kinds of values that options take."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Generic, TypeVar

from rlproxy.config.urls import whole_number

PREFIX: Final = "RLPROXY_"  # of environment variables
MAX_COMMAND: Final = 64  # bytes of a command's name; the same as framing.MAX_NAME
_UNIT: Final = re.compile("_m?s$")  # units at the end of a field's name

T = TypeVar("T")


@dataclass(frozen=True)
class Kind(Generic[T]):
    """A kind of value.

    takes: the value as shown in help and docs, such as SECONDS.
    parse: returns the value that a text stands for. Raises ValueError.
    """

    takes: str
    parse: Callable[[str], T]


@dataclass(frozen=True)
class Option:
    """One option. Flag, environment variable and key in the file follow from the field's name.

    field: the name of the field of Config. It may end in a unit: _s (seconds) or _ms.
    default: the text of the default value.
    repeats: it may be given several times; its value is a tuple.
    reload: it takes effect on SIGHUP.
    """

    field: str
    group: str
    kind: Kind[Any]
    default: str
    help: str
    repeats: bool
    reload: bool

    @property
    def name(self) -> str:
        """The key in the file: the field without its unit, with dashes."""
        return _UNIT.sub("", self.field).replace("_", "-")

    @property
    def flag(self) -> str:
        """The flag of the command line."""
        return f"--{self.name}"

    @property
    def variable(self) -> str:
        """The environment variable."""
        return PREFIX + self.name.replace("-", "_").upper()


class Group:
    """A group of options in help and docs. Its methods make the fields of Config, one for each.

    default: the text of the default value; of several ones, separated by blanks.
    about: the help text.
    reload: whether the option takes effect on SIGHUP.
    """

    def __init__(self, title: str) -> None:
        self._title = title

    def option(self, kind: Kind[T], default: str, about: str, reload: bool = False) -> T:
        """Make the field of an option that takes one value."""
        row = (self._title, kind, default, about, False, reload)
        return field(default=kind.parse(default), metadata={"row": row})

    def repeated(
        self, kind: Kind[T], default: str, about: str, reload: bool = False
    ) -> tuple[T, ...]:
        """Make the field of an option that may be given several times."""
        row = (self._title, kind, default, about, True, reload)
        return field(default=tuple(map(kind.parse, default.split())), metadata={"row": row})


def number(least: int, most: int, takes: str = "N") -> Kind[int]:
    """Return the kind of whole numbers from `least` to `most`."""
    return Kind(takes, partial(whole_number, least=least, most=most))


def choice(choices: str) -> Kind[str]:
    """Return the kind of values that are one of several words: `choices`, separated by |."""
    words = choices.split("|")

    def parse(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(f"expected {', '.join(words[:-1])} or {words[-1]}")
        return text.lower()

    return Kind(choices, parse)


def _seconds(text: str, zero: bool) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not (0 < value < 1e9 or (zero and value == 0)):
        raise ValueError(f"expected a number of seconds{', or 0' if zero else ' above 0'}")
    return value


def _switch(text: str) -> bool:
    if text.lower() not in ("yes", "no"):
        raise ValueError("expected yes or no")
    return text.lower() == "yes"


def _mode(text: str) -> int:
    if not re.fullmatch("0?[0-7]{1,3}", text):
        raise ValueError("expected permissions such as 600 or 660")
    return int(text, 8)


def _command(text: str) -> str:
    words = text.replace(" ", "|").lower().split("|")
    if not 1 <= len(words) <= 2 or not all(word and word.isascii() for word in words):
        raise ValueError("expected the name of a command, or NAME|SUB")
    if len(words[0]) > MAX_COMMAND or not text.isprintable():
        raise ValueError(f"no command has such a name (printable, at most {MAX_COMMAND} bytes)")
    return "|".join(words)


SECONDS: Final = Kind("SECONDS", partial(_seconds, zero=False))
SECONDS_OR_ZERO: Final = Kind("SECONDS", partial(_seconds, zero=True))
SWITCH: Final = Kind("yes|no", _switch)
FILE: Final = Kind("FILE", str)
NAME: Final = Kind("NAME", str)
MODE: Final = Kind("MODE", _mode)
COMMAND: Final = Kind("NAME[|SUB]", _command)
