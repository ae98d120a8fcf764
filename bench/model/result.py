"""The result of a measured model as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from ..errors import UsageError
from ..result import Head
from . import laws
from .footprint import Footprint
from .laws import Laws
from .runs import Run

SCHEMA: Final = 1
KIND: Final = "model"


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
        return {"schema": SCHEMA, "kind": KIND, **of.pop("head"), **of}


def parse(data: Any) -> Result:
    """Return the result of a JSON value. Raises UsageError if it is none."""
    if not isinstance(data, dict) or (data.get("schema"), data.get("kind")) != (SCHEMA, KIND):
        raise UsageError(f"is no result of python -m bench model (of schema {SCHEMA})")
    return Result(
        Head(**{field.name: data[field.name] for field in fields(Head)}),
        [Run(**run) for run in data["runs"]],
        [Footprint(**look) for look in data["looks"]],
    )
