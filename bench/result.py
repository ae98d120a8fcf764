"""What a run has measured, as JSON: every sample, the machine, the versions and the method."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, TypeVar

from .errors import UsageError
from .figures import Figure

SCHEMA: Final = 3
Parsed = TypeVar("Parsed")


@dataclass(frozen=True)
class Head:
    """When, where, with what and how something was measured.

    date: in ISO 8601.
    sentences: the method.
    """

    date: str
    machine: Mapping[str, str | int | float]
    versions: Mapping[str, str]
    sentences: Sequence[str]


@dataclass(frozen=True)
class Result:
    """The result of `python -m bench`.

    only: the names of the rows that were run; empty for all.
    """

    head: Head
    figures: Sequence[Figure]
    only: Sequence[str] = ()

    def to_json(self) -> dict[str, object]:
        """Return the JSON value."""
        head = asdict(self.head)
        method = {"sentences": head.pop("sentences"), "only": list(self.only)}
        derived = ("medians", "ratios", "spread")  # for readers of the file; parse() skips them
        rows = [
            {**asdict(figure), **{name: getattr(figure, name) for name in derived}}
            for figure in self.figures
        ]
        return {"schema": SCHEMA, **head, "method": method, "rows": rows}

    def of(self, kinds: Sequence[str]) -> list[Figure]:
        """Return the figures of these kinds, in order."""
        return [figure for figure in self.figures if figure.kind in kinds]

    def median(self, name: str, column: str) -> float | None:
        """Return a median by figure and column; None if there is none."""
        found = [figure for figure in self.figures if figure.name == name]
        return found[0].medians.get(column) if found else None


def parse(data: Any) -> Result:
    """Return the result of a JSON value. Raises UsageError if it is none."""
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise UsageError(f"is no result of python -m bench (of schema {SCHEMA})")
    names = [field.name for field in fields(Figure)]
    return Result(
        Head(data["date"], data["machine"], data["versions"], data["method"]["sentences"]),
        [Figure(**{name: row[name] for name in names}) for row in data["rows"]],
        data["method"].get("only", ()),
    )


def read(path: Path, parse: Callable[[Any], Parsed]) -> Parsed:
    """Read a result from its file.

    parse: makes the result of a JSON value; raises UsageError if it is none.
    Raises UsageError, which names the file.
    """
    try:
        return parse(json.loads(path.read_text()))
    except OSError as error:
        why = str(error.strerror)
    except (KeyError, TypeError, ValueError) as error:
        why = f"is no JSON of a whole result: {error}"
    except UsageError as error:
        why = str(error)
    raise UsageError(f"{path}: {why}")


def write(value: object, path: Path) -> None:
    """Write a JSON value to `path`; its directory is made. Raises OSError."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n")
