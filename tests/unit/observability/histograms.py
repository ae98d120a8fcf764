"""Values of histograms, made from the numbers in their classes."""

from __future__ import annotations

from collections.abc import Sequence

from rlproxy.observability.counters import TIMES_S, Histogram
from rlproxy.observability.metrics import Labels, histogram_values


def times(classes: Sequence[int], sum_s: float = 0.0) -> dict[Labels, float]:
    """The values of a histogram of times; classes that are not given are empty."""
    made = Histogram(TIMES_S)
    made.classes[: len(classes)] = classes
    made.sum_of = sum_s
    return histogram_values(made)
