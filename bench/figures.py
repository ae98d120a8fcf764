"""The samples of a row, and the values derived from them: medians, ratios, spread."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from .errors import BenchError
from .options import Plan
from .rows import Row

DIGITS: Final = 3  # of a ratio behind the point


@dataclass(frozen=True)
class Figure:
    """One result of a row: for each column (a party, a kind of call) one sample per repeat."""

    name: str
    kind: str
    unit: str
    note: str = ""
    samples: dict[str, list[float]] = field(default_factory=dict)

    @classmethod
    def of(cls, row: Row, note: str = "") -> Figure:
        """Return the main figure of a row, without samples."""
        return cls(row.name, row.kind, row.unit, note or row.help)

    @property
    def medians(self) -> dict[str, float]:
        """The median of each column, in `unit`."""
        return {name: statistics.median(found) for name, found in self.samples.items()}

    def ratio(self, over: str, under: str) -> float | None:
        """Return the ratio of the medians of two columns; None if there is none."""
        medians = self.medians
        if over not in medians or not medians.get(under):
            return None
        return round(medians[over] / medians[under], DIGITS)

    @property
    def spread(self) -> float:
        """The spread of the column where it is largest."""
        return max(map(spread, self.samples.values()), default=0.0)


def spread(samples: Sequence[float]) -> float:
    """Return (greatest - least) / median; 0 if the median is."""
    median = statistics.median(samples)
    return (max(samples) - min(samples)) / median if median else 0.0


def interleave(
    figures: Mapping[str, Figure],
    columns: Sequence[str],
    once: Callable[[str, int], Mapping[str, float]],
    plan: Plan,
) -> list[Figure]:
    """Fill figures with `plan.repeats` samples of each column: all in turn, then all again.

    figures: by name of the value; the first one is shown as progress.
    once: measures a column in a turn, from 1; returns values by name.
    Returns the figures that have samples.
    Raises what `once` raises; the figure and column are added to the message of a BenchError.
    """
    first = next(iter(figures.values()))
    for turn in range(1, plan.repeats + 1):
        for column in columns:
            try:
                values = once(column, turn)
            except BenchError as error:
                raise BenchError(f"{first.name} {column}: {error}") from None
            for name, value in values.items():
                figures[name].samples.setdefault(column, []).append(value)
    show(first.name, first.unit, first.medians)
    return [figure for figure in figures.values() if figure.samples]


def show(name: str, unit: str, values: Mapping[str, float]) -> None:
    """Show what was measured on stderr: `values` by column, in `unit`."""
    shown = ", ".join(f"{column} {number(value)}" for column, value in values.items())
    print(f"{name} ({unit}): {shown}", file=sys.stderr, flush=True)


def number(value: float) -> str:
    """Format a value with at least three significant digits."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
