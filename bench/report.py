"""Figures as JSON, and the tables in which they are shown."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .bounds import Verdict
from .figures import Figure
from .rows import (
    CLUSTER,
    CLUSTER_CPU,
    COST,
    CPU,
    IDLE,
    LATENCY,
    RATE,
    START,
    TASKS,
    TASKS_CPU,
    VALUES,
    WORKERS,
    WORKERS_CPU,
)

SCHEMA: Final = 3
# The tables, in order: title, and the kinds of rows in them.
TABLES: Final = (
    ("Speed", (RATE, VALUES)),
    ("CPU seconds per million commands", (CPU,)),
    ("Hits of one Python program", (TASKS,)),
    ("Hits of one Python program, CPU seconds per million", (TASKS_CPU,)),
    ("One and two proxy processes", (WORKERS,)),
    ("One and two proxy processes, CPU seconds per million", (WORKERS_CPU,)),
    ("Three masters", (CLUSTER,)),
    ("Three masters, CPU seconds per million", (CLUSTER_CPU,)),
    ("Latency at fixed rates", (LATENCY,)),
    ("Start", (START,)),
    ("Memory of each idle client", (IDLE,)),
    ("The script of a plain hit, time in Redis", (COST,)),
)


@dataclass(frozen=True)
class Report:
    """All results of a run.

    date: in ISO 8601.
    sentences: the method as sentences; `method` as values.
    """

    date: str
    machine: Mapping[str, str | int | float]
    versions: Mapping[str, str]
    sentences: Sequence[str]
    method: Mapping[str, object]
    figures: Sequence[Figure]
    verdicts: Sequence[Verdict] = ()

    def to_json(self) -> dict[str, object]:
        """Return the JSON value: what the tables show, and every sample."""
        return {
            "schema": SCHEMA,
            "date": self.date,
            "machine": dict(self.machine),
            "versions": dict(self.versions),
            "method": {"sentences": list(self.sentences), **self.method},
            "rows": [
                {
                    "name": figure.name,
                    "kind": figure.kind,
                    "unit": figure.unit,
                    "generator": figure.generator,
                    "note": figure.note,
                    "medians": {name: _short(value) for name, value in figure.medians().items()},
                    "ratios": {name: round(value, 3) for name, value in figure.ratios().items()},
                    "spread": round(figure.spread(), 3),
                    "samples": {
                        name: [_short(value) for value in found]
                        for name, found in figure.samples.items()
                    },
                }
                for figure in self.figures
            ],
            "verdicts": [
                {
                    "work": verdict.bound.work,
                    "against": verdict.bound.against,
                    "figure": verdict.bound.figure,
                    "of": verdict.bound.of,
                    "value": None if verdict.value is None else round(verdict.value, 3),
                    "at_most" if verdict.bound.most else "at_least": verdict.bound.bound,
                    "goal": verdict.bound.goal,
                    "floor": verdict.bound.floor,
                    "floor_value": None if verdict.floor is None else round(verdict.floor, 3),
                    "verdict": verdict.word,
                }
                for verdict in self.verdicts
            ],
        }


def write(value: object, path: Path) -> None:
    """Write a JSON value to `path` atomically; its directory is made. Raises OSError."""
    path.parent.mkdir(exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(json.dumps(value, indent=2) + "\n")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _short(value: float) -> float:
    return round(value, 3) if value < 1000 else round(value)
