"""Least squares of relative errors, for a few parameters that can't be negative. No I/O."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ..errors import BenchError

_TINY: Final = 1e-12  # a pivot below it, of columns scaled to 1, is none


@dataclass(frozen=True)
class Errors:
    """How far predictions are from what was measured, as shares of the measured values."""

    median: float
    worst: float
    count: int

    def text(self) -> str:
        """Return the errors in percent."""
        return f"median {self.median:.0%}, worst {self.worst:.0%} of {self.count}"


def errors(predicted: Sequence[float], measured: Sequence[float]) -> Errors:
    """Return the errors of predictions. Raises BenchError if there is none."""
    found = [abs(one - two) / two for one, two in zip(predicted, measured, strict=True) if two]
    if not found:
        raise BenchError("there is no run to check the model with")
    return Errors(statistics.median(found), max(found), len(found))


def relative(rows: Sequence[Sequence[float]], measured: Sequence[float]) -> list[float]:
    """Return the parameters p, none below 0, for which sum(row * p) is nearest to `measured`.

    rows: the factors of the parameters, a row for each of `measured`.

    Least squares of (predicted - measured) / measured, so that small values count as much as large
    ones. A parameter that would be negative is 0, and the others are fitted again.
    Raises BenchError if the rows don't determine the parameters.
    """
    kept = [(row, value) for row, value in zip(rows, measured, strict=True) if value > 0]
    if not kept:
        raise BenchError("there is no run to fit the model to")
    scaled = [[factor / value for factor in row] for row, value in kept]
    places = list(range(len(kept[0][0])))
    while places:
        solved = _solve([[row[place] for place in places] for row in scaled])
        least = min(solved)
        if least >= 0:
            found = dict(zip(places, solved, strict=True))
            return [found.get(place, 0.0) for place in range(len(kept[0][0]))]
        del places[solved.index(least)]
    raise BenchError("no parameter of the model is above 0")


def _solve(rows: Sequence[Sequence[float]]) -> list[float]:
    """Return the least squares solution of rows * p = 1 by the normal equations."""
    count = len(rows[0])
    sizes = [max(max(abs(row[at]) for row in rows), _TINY) for at in range(count)]
    scaled = [[value / size for value, size in zip(row, sizes, strict=True)] for row in rows]
    system = [
        [
            *(sum(row[one] * row[two] for row in scaled) for two in range(count)),
            sum(row[one] for row in scaled),
        ]
        for one in range(count)
    ]
    for at in range(count):
        pivot = max(range(at, count), key=lambda line: abs(system[line][at]))
        if abs(system[pivot][at]) < _TINY:
            raise BenchError("the runs are too much alike to fit the model to them")
        system[at], system[pivot] = system[pivot], system[at]
        for line in range(count):
            if line != at:
                part = system[line][at] / system[at][at]
                system[line] = [
                    value - part * other
                    for value, other in zip(system[line], system[at], strict=True)
                ]
    return [system[at][count] / system[at][at] / sizes[at] for at in range(count)]
