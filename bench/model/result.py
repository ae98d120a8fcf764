"""The result of a measured model as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from ..result import Head
from . import laws
from .footprint import Footprint
from .laws import Laws
from .runs import Run


@dataclass(frozen=True)
class Result:
    """All that was measured. The laws follow from it."""

    head: Head
    runs: Sequence[Run]
    looks: Sequence[Footprint]

    def laws(self) -> Laws:
        """Fit the laws. Raises BenchError."""
        return laws.fit(self.runs, self.looks)

    def to_json(self) -> dict[str, object]:
        """Return the JSON value."""
        of = asdict(self)
        return {**of.pop("head"), **of}


def parse(data: Any) -> Result:
    """Return the result of a JSON value. Raises KeyError or TypeError if it is none."""
    return Result(
        Head(**{field.name: data[field.name] for field in fields(Head)}),
        [Run(**run) for run in data["runs"]],
        [Footprint(**look) for look in data["looks"]],
    )
