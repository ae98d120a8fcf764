"""Least squares of relative errors, for a few parameters that can't be negative. No I/O."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np  # comes with matplotlib

from ..errors import BenchError


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
    values = np.array(measured, float)
    if not (values > 0).any():
        raise BenchError("there is no run to fit the model to")
    scaled = (np.array(rows, float)[values > 0].T / values[values > 0]).T
    found, places = np.zeros(scaled.shape[1]), list(range(scaled.shape[1]))
    while places:
        solved, _, rank, _ = np.linalg.lstsq(scaled[:, places], np.ones(len(scaled)), rcond=None)
        if rank < len(places):
            raise BenchError("the runs are too much alike to fit the model to them")
        if min(solved) >= 0:
            found[places] = solved
            return [float(value) for value in found]
        del places[int(solved.argmin())]
    raise BenchError("no parameter of the model is above 0")
