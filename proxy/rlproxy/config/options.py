"""Options: a row of the table in `config`, and the kinds of values that options take."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Generic, TypeVar

from rlproxy.config.urls import whole_number

PREFIX: Final = "RLPROXY_"  # of environment variables
MAX_COMMAND: Final = 64  # bytes of a command's name; the same as requests.MAX_NAME
MAX_SECONDS: Final = 1_000_000_000
NO_FILE: Final = "expected a file; the URL of Redis is given with --upstream"
_UNITS: Final = {"MS": " of milliseconds", "SECONDS": " of seconds", "BYTES": " of bytes"}
_UNIT: Final = re.compile("_m?s$")  # units at the end of a field's name

T = TypeVar("T")


@dataclass(frozen=True)
class Value(Generic[T]):
    """The values that an option takes, and its default.

    takes: how help and docs show a value, such as SECONDS.
    parse: returns the value that a text stands for. Raises ValueError.
    default: as text.
    repeats: the option may be given several times; then T is a tuple.
    """

    takes: str
    parse: Callable[[str], Any]
    default: str = ""
    repeats: bool = False


@dataclass(frozen=True)
class Option:
    """One option. Flag, environment variable and key in the file follow from the field's name.

    field: the name of the field of Config. It may end in a unit: _s (seconds) or _ms.
    reload: it takes effect on SIGHUP.
    """

    field: str
    group: str
    value: Value[Any]
    help: str
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
    """A group of options in help and docs. Its methods make the fields of Config, one for each."""

    def __init__(self, title: str) -> None:
        self._title = title

    def fixed(self, value: Value[T], about: str) -> T:
        """Make the field of an option that takes effect at the start; `about` is its help text."""
        return self._field(value, about, False)

    def reloadable(self, value: Value[T], about: str) -> T:
        """Make the field of an option that takes effect on SIGHUP, too."""
        return self._field(value, about, True)

    def _field(self, value: Value[T], about: str, reload: bool) -> T:
        texts = value.default.split() if value.repeats else [value.default]
        parsed = tuple(map(value.parse, texts))
        default: Any = parsed if value.repeats else parsed[0]
        made: T = field(default=default, metadata={"row": (self._title, value, about, reload)})
        return made


def number(default: int, least: int, most: int, takes: str = "N") -> Value[int]:
    """Return the whole numbers from `least` to `most`. `takes`: N, or a unit of _UNITS."""
    wrong = f"expected a whole number{_UNITS.get(takes, '')}"
    return Value(takes, partial(whole_number, least=least, most=most, wrong=wrong), str(default))


def choice(default: str, choices: str) -> Value[str]:
    """Return several words: `choices`, separated by |."""
    return _words(default, {word: word for word in choices.split("|")})


def _words(default: str, meanings: dict[str, T]) -> Value[T]:
    """Return the values that words stand for."""
    words = list(meanings)

    def parse(text: str) -> T:
        if text.lower() not in meanings:
            raise ValueError(f"expected {', '.join(words[:-1])} or {words[-1]}")
        return meanings[text.lower()]

    return Value("|".join(words), parse, default)


def seconds(default: str, zero: bool = False) -> Value[float]:
    """Return durations above 0 up to MAX_SECONDS, and with `zero` 0 itself."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not (0 < value <= MAX_SECONDS or (zero and value == 0)):
            least = "from 0" if zero else "above 0 and up"
            raise ValueError(f"expected a number of seconds {least} to {MAX_SECONDS}")
        return value

    return Value("SECONDS", parse, default)


def _file(text: str) -> str:
    """Return the path `text`. Raises ValueError for a URL, which may have a password."""
    if "://" in text:
        raise ValueError(NO_FILE)
    return text


def _mode(text: str) -> int:
    # TOML reads 0o660 as 432, the text of other permissions. All such numbers are below 512.
    if not re.fullmatch("0?[67][0-7]{2}", text):
        raise ValueError(
            "expected permissions such as 600 or 660, with which the owner may read and write; "
            "in the file without 0o"
        )
    return int(text, 8)


def _command(text: str) -> str:
    words = text.replace(" ", "|").lower().split("|")
    if not 1 <= len(words) <= 2 or not all(word and word.isascii() for word in words):
        raise ValueError("expected the name of a command, or NAME|SUB")
    if len(words[0]) > MAX_COMMAND or not text.isprintable() or "," in text:
        raise ValueError(
            f"no command has such a name (printable, no comma, at most {MAX_COMMAND} bytes)"
        )
    return "|".join(words)


YES: Final[Value[bool]] = _words("yes", {"yes": True, "no": False})
NO: Final[Value[bool]] = _words("no", {"yes": True, "no": False})
# None: other settings decide.
AUTO: Final[Value[bool | None]] = _words("auto", {"auto": None, "yes": True, "no": False})
SWITCHES: Final = (YES, NO, AUTO)  # without a value they mean yes
FILE: Final[Value[str]] = Value("FILE", _file)
PEM: Final[Value[str]] = Value("FILE", _file)  # its contents are part of the settings, too
NAME: Final[Value[str]] = Value("NAME", str)
MODE: Final[Value[int]] = Value("MODE", _mode, "600")
COMMANDS: Final[Value[tuple[str, ...]]] = Value("NAME[|SUB]", _command, repeats=True)
