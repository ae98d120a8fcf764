"""The input of all measurements: sizes, the server, the parties, the progress display."""

from __future__ import annotations

from dataclasses import dataclass

from .progress import Progress


@dataclass(frozen=True)
class Plan:
    """One run of the benchmark, with sizes from the command line or from --quick."""

    engine: str
    executable: str
    parties: tuple[str, ...]
    redis_benchmark: bool  # whether it is installed
    repeats: int
    requests: int  # commands of one run without pipelining
    idle_clients: int
    limit_s: float  # seconds of one run, at most
    warm_up: bool  # False with --quick
    progress: Progress
