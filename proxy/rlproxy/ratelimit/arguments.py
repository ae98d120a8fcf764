"""The arguments of RL commands: integers, times and names, each with its range and its error text.

No command is known here; `grammar` has the table of options.
"""

from __future__ import annotations

import re
from typing import Final

from rlproxy.ratelimit.algorithms import MICROSECONDS, MILLISECONDS, Algorithm
from rlproxy.resp.escape import quoted

NOT_AN_INTEGER: Final = "ERR value is not an integer or out of range"

_INTEGER: Final = re.compile(rb"0|[1-9][0-9]{0,18}")
_SECONDS: Final = re.compile(rb"([0-9]{1,18})(?:\.([0-9]{1,6}))?")


class GrammarError(Exception):
    """A command with a mistake: it is not sent to Redis. The message is the text of the reply."""


class Form:
    """The unit and the algorithm of a command: the options MS and ALGO, at any position."""

    def __init__(self, unit_us: int, algorithm: Algorithm | None) -> None:
        self.unit_us = unit_us  # of its times, in microseconds: 1000 with MS, else 1000000
        self.algorithm = algorithm  # None: the command names an unknown algorithm


class Argument:
    """An integer argument of a command.

    name: name in error texts.
    least, most: range, both included.
    """

    def __init__(self, name: str, least: int, most: int) -> None:
        self.name = name
        self._least = least
        self._most = most

    def read(self, word: bytes, form: Form) -> int:
        """Return `word` as an integer, by Redis' syntax.

        Raises GrammarError for another syntax, or outside the widest range of any algorithm. The
        command's own algorithm may allow less; see check().
        """
        if _INTEGER.fullmatch(word) is None or not self._least <= int(word) <= self._most:
            raise self.wrong(form)
        return int(word)

    def check(self, value: int, form: Form) -> None:
        """Raise GrammarError if `value` exceeds the bound of the command's algorithm."""
        if value > self._largest(form):
            raise self.wrong(form)

    def wrong(self, form: Form) -> GrammarError:
        """Return the error for a value outside the range."""
        most = self._largest(form)
        text = f"{NOT_AN_INTEGER}: {self.name} is {self._least} to {most}"
        if form.algorithm is not None and most < self._most:
            text += f" with ALGO {form.algorithm.name.decode()}"
        return GrammarError(text)

    def _largest(self, form: Form) -> int:
        if form.algorithm is None:
            return self._most
        return form.algorithm.bounds.get(self.name, self._most)


class Time(Argument):
    """A time argument, in seconds, or in milliseconds with MS.

    least, most: range in microseconds, both included.
    end: text of the upper bound in errors; default `most` in milliseconds.
    """

    def __init__(self, name: str, least: int, most: int, end: str = "") -> None:
        super().__init__(name, least, most)
        self._end = end or str(most // MILLISECONDS)

    def read(self, word: bytes, form: Form) -> int:
        """Return `word` in microseconds.

        Raises GrammarError for another syntax, or outside the range.
        """
        value = -1
        if form.unit_us == MILLISECONDS:
            if _INTEGER.fullmatch(word) is not None:
                value = int(word) * MILLISECONDS
        else:
            match = _SECONDS.fullmatch(word)
            if match is not None:
                value = int(match[1]) * MICROSECONDS + int((match[2] or b"").ljust(6, b"0"))
        if not self._least <= value <= self._most:
            raise self.wrong(form)
        return value

    def wrong(self, form: Form) -> GrammarError:
        if form.unit_us != MILLISECONDS:
            return GrammarError(f"ERR {self.name} is not a valid number of seconds")
        least = self._least // MILLISECONDS
        return GrammarError(f"{NOT_AN_INTEGER}: {self.name} is {least} to {self._end} with MS")


class Name(Argument):
    """The value of ALGO or POLICY, no number. The command's parser looks it up."""

    def __init__(self, name: str) -> None:
        super().__init__(name, 0, 0)

    def read(self, word: bytes, form: Form) -> int:
        """Return 0. Raises GrammarError if the command names an unknown algorithm."""
        if form.algorithm is None and self.name == "ALGO":
            raise GrammarError(f"ERR unknown {self.name} {quoted(word)}")
        return 0
