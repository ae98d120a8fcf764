"""The pictures of the page: cost by masters, measured and by the laws; processes by load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from .. import plots
from ..charts import Image
from ..plots import Line, Panel
from . import runs
from .forecast import SINGLE, forecast
from .laws import Laws
from .result import Result
from .runs import Run

PREFIX: Final = "scale-"  # of the pictures' file names
RATES: Final = (1e6, 3e6, 1e7, 3e7, 1e8)


def drawn(result: Result, laws: Laws) -> list[Image]:
    """Return all pictures."""
    return [*_costs(result, laws, "1", 1), *_costs(result, laws, "16", 16), _forecasts(laws)]


def _costs(result: Result, laws: Laws, name: str, pipeline: int) -> list[Image]:
    """Draw batch and CPU time by masters, for 50 clients and one worker."""
    found = [
        run
        for run in result.runs
        if (run.work, run.clients, run.pipeline, run.workers) == (runs.ADMITTED, 50, pipeline, 1)
    ]
    if not found:
        return []

    def proxy_us(run: Run) -> float:
        return laws.proxy_us(run.pipeline, laws.batch_of(run))

    def redis_us(run: Run) -> float:
        return laws.redis_us(laws.batch_of(run))

    panels = [
        _compared("hits in one batch", found, runs.BATCH, laws.batch_of),
        _compared("the proxy, µs for a hit", found, runs.PROXY_US, proxy_us),
        _compared("all masters, µs for a hit", found, runs.REDIS_US, redis_us),
    ]
    writes = "one hit" if pipeline == 1 else f"{pipeline} hits"
    sentence = (
        f"50 clients, each with {writes} in a write, one worker. The model has not seen 6 masters."
    )
    title = f"Cost of a hit by masters, {writes} in a write"
    alt = f"{title}: measured, as in the table above, and by the model"
    return [Image(f"{PREFIX}cost-{name}.svg", alt, plots.lines(title, sentence, panels))]


def _compared(title: str, found: Sequence[Run], value: str, model: Callable[[Run], float]) -> Panel:
    lines = [
        Line("measured", 1, [(run.masters, run.value(value)) for run in found]),
        Line("model", 2, [(run.masters, model(run)) for run in found]),
    ]
    return Panel(title, "masters", lines)


def _forecasts(laws: Laws) -> Image:
    found = [forecast(laws, rate, SINGLE) for rate in RATES]

    def panel(title: str, *lines: tuple[str, int, str]) -> Panel:
        """Draw lines, each with a name, a place, and an attribute of a forecast."""
        drawn = [
            Line(name, place, [(one.rate, getattr(one, value)) for one in found])
            for name, place, value in lines
        ]
        return Panel(title, "hits per second", drawn, log_x=True, log_y=True)

    panels = [
        panel("processes of one core each", ("workers", 1, "workers"), ("masters", 2, "masters")),
        panel(
            "connections of one master",
            ("of workers", 1, "connections"),
            ("with clients", 3, "plain_connections"),
            ("that pipeline", 4, "piped_connections"),
        ),
    ]
    sentence = "Predictions, not measurements: one hit a write, even keys, 60 % of each core used."
    alt = "Predicted workers, masters and connections by hits per second, as in the table above"
    title = "What more hits would need"
    return Image(f"{PREFIX}forecast.svg", alt, plots.lines(title, sentence, panels))
