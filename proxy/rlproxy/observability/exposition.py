"""The text format of Prometheus: samples to text."""

from __future__ import annotations

from itertools import accumulate
from types import SimpleNamespace
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from rlproxy.observability.metrics import COUNTER, HISTOGRAM, TABLE, Labels, Row, Samples


def exposition(samples: Samples) -> bytes:
    """Return `samples` in Prometheus' text format."""
    families = [_family(row, samples[row.name]) for row in TABLE if row.name in samples]
    collector: Any = SimpleNamespace(collect=lambda: families)
    return generate_latest(collector)


def _family(row: Row, values: dict[Labels, float]) -> Metric:
    if row.kind == HISTOGRAM:
        *classes, (_, sum_of) = values.items()
        counts = accumulate(number for _, number in classes)
        buckets = [(bound, count) for ((bound,), _), count in zip(classes, counts, strict=True)]
        return HistogramMetricFamily(row.name, row.help, buckets, sum_of)
    family = CounterMetricFamily if row.kind == COUNTER else GaugeMetricFamily
    out = family(row.name, row.help, labels=row.labels)
    for found, value in values.items():
        out.add_metric(found, value)
    return out
