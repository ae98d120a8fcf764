"""A row's samples, and what is worked out from them: medians, ratios, spread."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from .errors import BenchError
from .progress import Progress

# What is divided by what, where a row has both.
RATIOS: Final = (
    ("proxy", "direct"),
    ("proxy", "haproxy"),
    ("proxy", "twemproxy"),
    ("share", "haproxy"),
    ("share", "twemproxy"),
    ("proxy", "script"),
    ("2-workers", "1-worker"),
)
RATIOS_OF_SCRIPTS: Final = (("eval", "evalsha"),)


@dataclass
class Figure:
    """One row's result: for each column (a party, a way of calling) a sample of each repeat.

    `absent` are columns that could not be measured here. `best` gives names to the highest median
    of several columns, for the proxy to be compared with.
    """

    name: str
    kind: str
    unit: str
    generator: str
    note: str = ""
    samples: dict[str, list[float]] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    best: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def medians(self) -> dict[str, float]:
        """The median of each column, in `unit`."""
        return {name: statistics.median(found) for name, found in self.samples.items()}

    def ratios(self) -> dict[str, float]:
        """Medians divided by each other: `proxy/direct` and so on."""
        medians = self.medians()
        pairs: tuple[tuple[str, str], ...] = RATIOS + RATIOS_OF_SCRIPTS
        for name, columns in self.best.items():
            pairs += (("proxy", name),)
            medians[name] = max((medians.get(column, 0.0) for column in columns), default=0.0)
        return {
            f"{over}/{under}": medians[over] / medians[under]
            for over, under in pairs
            if over in medians and medians.get(under)
        }

    def spread(self) -> float:
        """How far apart a column's samples lie: (most - least) / median, of the worst column."""
        medians = self.medians()
        return max(
            (
                (max(found) - min(found)) / medians[name] if medians[name] else 0.0
                for name, found in self.samples.items()
            ),
            default=0.0,
        )


def interleave(
    figure: Figure,
    columns: Sequence[str],
    once: Callable[[str], float],
    repeats: int,
    progress: Progress,
) -> Figure:
    """Fill `figure` with `repeats` samples of each column: all columns, then all again.

    Raises what `once` raises; a BenchError tells then of which figure and column.
    """
    for repeat in range(repeats):
        for column in columns:
            progress.begin(f"{figure.name} {column}", repeat + 1, repeats)
            try:
                value = once(column)
            except BenchError as error:
                raise BenchError(f"{figure.name} {column}: {error}") from None
            figure.samples.setdefault(column, []).append(value)
    progress.finish(figure.name, figure.medians(), figure.unit)
    return figure


def interleave_all(
    figures: Mapping[str, Figure],
    shown: str,
    columns: Sequence[str],
    once: Callable[[str, int], Mapping[str, float]],
    repeats: int,
    progress: Progress,
) -> list[Figure]:
    """As interleave(), where one run has a value for several figures: `once` is given the column
    and the turn, from 1 on, and names its values as `figures` does. Progress is told of `shown`.

    Returns the figures that have samples. Raises as interleave().
    """
    name = figures[shown].name
    for repeat in range(1, repeats + 1):
        for column in columns:
            progress.begin(f"{name} {column}", repeat, repeats)
            try:
                values = once(column, repeat)
            except BenchError as error:
                raise BenchError(f"{name} {column}: {error}") from None
            for what, value in values.items():
                figures[what].samples.setdefault(column, []).append(value)
    progress.finish(name, figures[shown].medians(), figures[shown].unit)
    return [figure for figure in figures.values() if figure.samples]
