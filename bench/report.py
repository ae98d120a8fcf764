"""Figures as text tables and as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .bounds import NOT_MEASURED, Verdict
from .figures import Figure
from .progress import number
from .rows import (
    CLUSTER,
    CLUSTER_CPU,
    COST,
    CPU,
    GROWTH,
    IDLE,
    LARGE,
    LATENCY,
    RATE,
    SPACE,
    START,
    TASKS,
    TASKS_CPU,
    VALUES,
    WORKERS,
    WORKERS_CPU,
)

SCHEMA: Final = 2
ABSENT: Final = "not installed"
# The tables, in order: title, and the kinds of rows in them.
TABLES: Final = (
    ("Speed", (RATE, VALUES, LARGE)),
    ("CPU seconds per million commands", (CPU,)),
    ("Hits of one Python program", (TASKS,)),
    ("Hits of one Python program, CPU seconds per million", (TASKS_CPU,)),
    ("One and two proxy processes", (WORKERS,)),
    ("One and two proxy processes, CPU seconds per million", (WORKERS_CPU,)),
    ("Three masters", (CLUSTER,)),
    ("Three masters, CPU seconds per million", (CLUSTER_CPU,)),
    ("Latency at fixed rates", (LATENCY,)),
    ("Growth", (GROWTH,)),
    ("Start", (START,)),
    ("Memory of each idle client", (IDLE,)),
    ("Scripts, time in Redis", (COST,)),
    ("Scripts, memory of a key", (SPACE,)),
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
        """Return the JSON value: everything that the tables show, and every sample."""
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
                    "not_installed": list(figure.absent),
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
                    "verdict": verdict.word,
                }
                for verdict in self.verdicts
            ],
        }

    def to_text(self) -> str:
        """Return the head and the tables as text."""
        parts = [self._head()]
        for title, kinds in TABLES:
            figures = [figure for figure in self.figures if figure.kind in kinds]
            if figures:
                parts.append(f"{title}\n{table(figures)}")
        if self.verdicts:
            parts.append(f"Against what must be shown\n{judged(self.verdicts)}")
        return "\n\n".join(parts) + "\n"

    def _head(self) -> str:
        machine = ", ".join(
            f"{name.replace('_', ' ')} {value}" if name != "processor" else str(value)
            for name, value in self.machine.items()
        )
        versions = ", ".join(f"{name} {value}" for name, value in self.versions.items())
        return "\n".join([self.date, machine, versions, *self.sentences])


def table(figures: Sequence[Figure]) -> str:
    """Return medians and ratios as aligned columns, a line for each figure."""
    columns = _union((*figure.samples, *figure.absent) for figure in figures)
    ratios = _union(figure.ratios() for figure in figures)
    several = any(len(found) > 1 for figure in figures for found in figure.samples.values())
    lines = [["row", "unit", *columns, *ratios, *(["spread"] if several else [])]]
    for figure in figures:
        medians, found = figure.medians(), figure.ratios()
        line = [figure.name, figure.unit]
        missing = dict.fromkeys(figure.absent, ABSENT)
        line += [
            number(medians[name]) if name in medians else missing.get(name, "-") for name in columns
        ]
        line += [f"{found[name]:.2f}" if name in found else "-" for name in ratios]
        lines.append([*line, *([f"{figure.spread():.0%}"] if several else [])])
    return _aligned(lines, 2)


def judged(verdicts: Sequence[Verdict]) -> str:
    """Return a line for each verdict: work, comparison, figure, value, bound, goal, verdict."""
    lines = [["work", "against", "figure", "measured", "demanded", "goal", "verdict"]]
    for verdict in verdicts:
        bound = verdict.bound
        sign = "<=" if bound.most else ">="
        lines.append(
            [
                bound.work,
                bound.against,
                f"{bound.figure} {bound.of}",
                NOT_MEASURED if verdict.value is None else f"{verdict.value:.2f}",
                f"{sign} {bound.bound:.2f}",
                "" if bound.goal is None else f"{bound.goal:.2f}",
                verdict.word,
            ]
        )
    return _aligned(lines, 3)


def _aligned(lines: Sequence[Sequence[str]], left: int) -> str:
    """Align the columns, the first `left` of them to the left, the others to the right."""
    widths = [max(len(line[index]) for line in lines) for index in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if index < left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def write(report: Report, path: Path) -> None:
    """Write the JSON to `path` atomically. Raises OSError."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(json.dumps(report.to_json(), indent=2) + "\n")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _union(names: Iterable[Iterable[str]]) -> list[str]:
    return list(dict.fromkeys(name for some in names for name in some))


def _short(value: float) -> float:
    return round(value, 3) if value < 1000 else round(value)
