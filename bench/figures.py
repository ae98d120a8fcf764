"""A row's samples, and what is worked out from them: medians, ratios, spread."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from .progress import Progress

# What is divided by what, where a row has both.
RATIOS: Final = (("proxy", "direct"), ("proxy", "haproxy"), ("proxy", "twemproxy"))
RATIOS_OF_SCRIPTS: Final = (("eval", "evalsha"),)


@dataclass
class Figure:
    """One row's result: for each column (a party, a way of calling) a sample of each repeat."""

    name: str
    kind: str
    unit: str
    generator: str
    note: str = ""
    samples: dict[str, list[float]] = field(default_factory=dict)

    def medians(self) -> dict[str, float]:
        """The median of each column, in `unit`."""
        return {name: statistics.median(found) for name, found in self.samples.items()}

    def ratios(self) -> dict[str, float]:
        """Medians divided by each other: `proxy/direct` and so on."""
        medians = self.medians()
        return {
            f"{over}/{under}": medians[over] / medians[under]
            for over, under in RATIOS + RATIOS_OF_SCRIPTS
            if over in medians and medians.get(under)
        }

    def spread(self) -> float:
        """How far apart a column's samples lie: (most - least) / median, of the worst column."""
        medians = self.medians()
        return max(
            ((max(found) - min(found)) / medians[name] if medians[name] else 0.0)
            for name, found in self.samples.items()
        )


def interleave(
    figure: Figure,
    columns: Sequence[str],
    once: Callable[[str], float],
    repeats: int,
    progress: Progress,
) -> Figure:
    """Fill `figure` with `repeats` samples of each column: all columns, then all again."""
    for repeat in range(repeats):
        for column in columns:
            progress.begin(f"{figure.name} {column}", repeat + 1, repeats)
            value = once(column)
            figure.samples.setdefault(column, []).append(value)
    progress.finish(figure.name, figure.medians(), figure.unit)
    return figure
