"""The text format of Prometheus: samples to text."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from rlproxy.observability.metrics import (
    COUNTER,
    HISTOGRAM,
    TABLE,
    Labels,
    Row,
    Samples,
)


def exposition(samples: Samples) -> bytes:
    """Return `samples` in Prometheus' text format."""
    return generate_latest(_Collected(samples))


class _Collected:
    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families that have samples; called by prometheus_client."""
        for row in TABLE:
            values = self._samples.get(row.name)
            if values is not None:
                yield _family(row, values)


def _family(row: Row, values: dict[Labels, float]) -> Metric:
    labels = list(row.labels)
    if row.kind == HISTOGRAM:
        *classes, (_, sum_of) = values.items()
        counts = accumulate(number for _, number in classes)
        buckets = [(bound, count) for ((bound,), _), count in zip(classes, counts, strict=True)]
        return HistogramMetricFamily(row.name, row.help, buckets, sum_of)
    family = CounterMetricFamily if row.kind == COUNTER else GaugeMetricFamily
    out = family(row.name, row.help, labels=labels)
    for found, value in values.items():
        out.add_metric(found, value)
    return out
