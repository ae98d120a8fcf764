"""The samples of a row, and the values derived from them: medians, ratios, spread."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from .errors import BenchError
from .progress import Progress

# (dividend, divisor) of the ratios of each row that has both columns
RATIOS: Final = (
    ("proxy", "direct"),
    ("proxy", "bare"),
    ("proxy", "interpreted"),
    ("proxy", "splice"),
    ("proxy", "haproxy"),
    ("proxy", "twemproxy"),
    ("proxy", "predixy"),
    ("proxy", "redis-cluster-proxy"),
    ("share", "haproxy"),
    ("share", "twemproxy"),
    ("proxy", "script"),
    ("proxy", "limits"),
    ("evalsha", "bare"),
    ("2-workers", "1-worker"),
)


@dataclass
class Figure:
    """One result of a row: for each column (a party, a kind of call) one sample per repeat."""

    name: str
    kind: str
    unit: str
    generator: str
    note: str = ""
    samples: dict[str, list[float]] = field(default_factory=dict)

    def medians(self) -> dict[str, float]:
        """Return the median of each column, in `unit`."""
        return {name: statistics.median(found) for name, found in self.samples.items()}

    def ratios(self) -> dict[str, float]:
        """Return the ratios of medians, by names such as `proxy/direct`."""
        medians = self.medians()
        return {
            f"{over}/{under}": medians[over] / medians[under]
            for over, under in RATIOS
            if over in medians and medians.get(under)
        }

    def spread(self) -> float:
        """Return (greatest - least) / median of the samples, for the column where it is largest."""
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
    """Fill `figure` with `repeats` samples of each column: all columns in turn, then all again.

    once: measures one sample of a column.
    Raises what `once` raises; the figure and column are added to the message of a BenchError.
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
    """Fill several figures as interleave() does, where one run has a value for each.

    figures: by name of the value.
    shown: the name of the figure that the progress display shows.
    once: gets the column and the turn, from 1; returns the values by name.
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
