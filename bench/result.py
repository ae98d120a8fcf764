"""A result of `python -m bench`, read from its JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from .errors import UsageError
from .report import SCHEMA

Row = Mapping[str, Any]
Parsed = TypeVar("Parsed")


class Result:
    """The result of one run. Raises UsageError if `data` is not the JSON value of a result."""

    def __init__(self, data: object) -> None:
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            raise UsageError(f"is no result of python -m bench (of schema {SCHEMA})")
        try:
            self.date = str(data["date"])
            self.machine: Mapping[str, object] = dict(data["machine"])
            self.versions: Mapping[str, object] = dict(data["versions"])
            self.sentences: Sequence[str] = [str(line) for line in data["method"]["sentences"]]
            self.rows: Sequence[Row] = list(data["rows"])
            self.verdicts: Sequence[Row] = list(data["verdicts"])
            self._named: dict[str, Row] = {row["name"]: row for row in self.rows}
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"lacks a part of a result: {error}") from None

    def of(self, kinds: Sequence[str]) -> list[Row]:
        """Return the rows of these kinds, in order."""
        return [row for row in self.rows if row["kind"] in kinds]

    def median(self, name: str, column: str) -> float | None:
        """Return a median by figure and column; None if there is none."""
        found = self._named.get(name, {}).get("medians", {}).get(column)
        return None if found is None else float(found)


def wanted(verdict: Row) -> tuple[str, float]:
    """Return "at least" or "at most", and the bound of a verdict."""
    if "at_least" in verdict:
        return "at least", float(verdict["at_least"])
    return "at most", float(verdict["at_most"])


def read(path: Path, parse: Callable[[object], Parsed]) -> Parsed:
    """Read a result from its file.

    parse: makes the result of a JSON value; raises UsageError if it is none.
    Raises UsageError, which names the file.
    """
    try:
        return parse(json.loads(path.read_text()))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{path}: is no JSON: {error}") from None
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
