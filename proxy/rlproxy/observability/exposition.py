"""The text format of Prometheus: samples to text."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Final

from rlproxy.observability.metrics import HISTOGRAM, TABLE, Labels, Row, Samples

_ESCAPED: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})  # in the value of a label


def exposition(samples: Samples) -> bytes:
    """Return `samples` in Prometheus' text format, version 0.0.4."""
    lines: list[str] = []
    for row in TABLE:
        values = samples.get(row.name)
        if values is not None:
            lines += (f"# HELP {row.name} {row.help}", f"# TYPE {row.name} {row.kind}")
            lines += _histogram(row.name, values) if row.kind == HISTOGRAM else _plain(row, values)
    return "".join(f"{line}\n" for line in lines).encode()


def _plain(row: Row, values: dict[Labels, float]) -> Iterator[str]:
    """Yield the lines of a counter or gauge."""
    for found, value in values.items():
        pairs = sorted(zip(row.labels, found, strict=True))
        labels = ",".join(f'{name}="{text.translate(_ESCAPED)}"' for name, text in pairs)
        yield f"{row.name}{{{labels}}} {float(value)}" if labels else f"{row.name} {float(value)}"


def _histogram(name: str, values: dict[Labels, float]) -> Iterator[str]:
    """Yield the lines of a histogram, whose classes contain those below."""
    *classes, (_, sum_of) = values.items()
    numbers = list(accumulate(number for _, number in classes))
    for ((bound,), _), number in zip(classes, numbers, strict=True):
        yield f'{name}_bucket{{le="{bound}"}} {float(number)}'
    yield f"{name}_count {float(numbers[-1])}"
    yield f"{name}_sum {float(sum_of)}"
