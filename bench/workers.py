"""The row of kind WORKERS: the same hits through one proxy process and through two."""

from __future__ import annotations

from collections.abc import Mapping

from . import parts, rate
from .figures import Figure
from .parts import ONE_WORKER, TWO_WORKERS, Part
from .plan import Plan
from .rows import Row


def measure(row: Row, plan: Plan, _parts: Mapping[str, Part]) -> list[Figure]:
    """Measure hits per second, and the CPU time of all processes of the proxy, supervisor included.

    The server is a separate one, with nothing else in front of it. Raises BenchError.
    """
    with parts.running(plan.executable, (ONE_WORKER, TWO_WORKERS)) as pair:
        return rate.measure(row, plan, pair)
