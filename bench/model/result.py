"""The result of a measured model as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from ..errors import UsageError
from . import laws
from .footprint import Footprint
from .laws import Laws
from .runs import Run

SCHEMA: Final = 1
KIND: Final = "model"
_DIGITS: Final = 4  # of a sample behind the point


@dataclass(frozen=True)
class Result:
    """All that was measured. The laws follow from it.

    date: in ISO 8601.
    sentences: the method as sentences.
    """

    date: str
    machine: Mapping[str, str | int | float]
    versions: Mapping[str, str]
    sentences: Sequence[str]
    runs: Sequence[Run]
    looks: Sequence[Footprint]

    def laws(self) -> Laws:
        """Fit the laws. Raises BenchError."""
        return laws.fit(self.runs, self.looks)

    def to_json(self) -> dict[str, object]:
        """Return the JSON value: what was measured, the laws and their errors."""
        found = self.laws()
        checked = laws.checks(found, self.runs, self.looks)
        return {
            "schema": SCHEMA,
            "kind": KIND,
            "date": self.date,
            "machine": dict(self.machine),
            "versions": dict(self.versions),
            "sentences": list(self.sentences),
            "runs": [
                {
                    **asdict(run),
                    "samples": {
                        name: [round(value, _DIGITS) for value in samples]
                        for name, samples in run.samples.items()
                    },
                }
                for run in self.runs
            ],
            "looks": [look.to_json() for look in self.looks],
            "laws": asdict(found),
            "errors": {name: asdict(one) for name, one in checked.items()},
        }


def parse(data: Any) -> Result:
    """Return the result of a JSON value. Raises UsageError if it is none."""
    if not isinstance(data, dict) or (data.get("schema"), data.get("kind")) != (SCHEMA, KIND):
        raise UsageError(f"is no result of python -m bench model (of schema {SCHEMA})")
    try:
        return Result(
            str(data["date"]),
            dict(data["machine"]),
            dict(data["versions"]),
            [str(line) for line in data["sentences"]],
            [Run(**run) for run in data["runs"]],
            [Footprint(**look) for look in data["looks"]],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"lacks a part of a result: {error}") from None
