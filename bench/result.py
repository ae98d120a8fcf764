"""What a run has measured, as JSON: every sample, the machine, the versions and the method."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from .errors import UsageError
from .figures import Figure

Parsed = TypeVar("Parsed")
_FIELDS: Final = ("name", "kind", "unit", "note", "samples")  # of a figure


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
        method = {"sentences": head.pop("sentences"), "only": self.only}
        return {**head, "method": method, "rows": list(map(asdict, self.figures))}

    def median(self, name: str, column: str) -> float | None:
        """Return a median by figure and column; None if there is none."""
        return next((one.medians.get(column) for one in self.figures if one.name == name), None)


def parse(data: Any) -> Result:
    """Return the result of a JSON value. Raises KeyError or TypeError if it is none."""
    return Result(
        Head(data["date"], data["machine"], data["versions"], data["method"]["sentences"]),
        [Figure(*(row[name] for name in _FIELDS)) for row in data["rows"]],
        data["method"]["only"],
    )


def read(path: Path, parse: Callable[[Any], Parsed]) -> Parsed:
    """Read a result from its file.

    parse: makes the result of a JSON value; raises KeyError or TypeError if it is none.
    Raises UsageError, which names the file.
    """
    try:
        return parse(json.loads(path.read_text()))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path}: is no JSON of a whole result: {error}") from None


def write(value: object, path: Path) -> None:
    """Write a JSON value to `path`; its directory is made. Raises OSError."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n")
