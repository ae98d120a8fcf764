"""What all measurements are given: sizes, the server, the parties, the progress display."""

from __future__ import annotations

from dataclasses import dataclass

from .progress import Progress


@dataclass(frozen=True)
class Plan:
    """One run of the benchmark. Sizes are the user's, or those of --quick."""

    engine: str
    executable: str
    parties: tuple[str, ...]
    redis_benchmark: bool  # whether it is there
    repeats: int
    requests: int  # commands of one run without pipelining
    idle_clients: int
    value_bytes: int  # of the large value
    limit_s: float  # for one run
    warm_up: bool
    progress: Progress
