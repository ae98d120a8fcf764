"""The pictures of the page: cost by masters, measured and by the laws; processes by load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from .. import plots
from ..charts import SCALE, Image
from ..plots import Line, Panel
from . import runs
from .forecast import SINGLE, Forecast, forecast
from .laws import Laws, under_way
from .result import Result
from .runs import Run

PLACES: Final = {"measured": 1, "model": 2}
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

    def batch(run: Run) -> float:
        return laws.batch(under_way(run), run.masters)

    panels = [
        _compared("hits in one batch", found, runs.BATCH, batch),
        _compared(
            "the proxy, µs for a hit",
            found,
            runs.PROXY_US,
            lambda run: laws.proxy_us(run.pipeline, batch(run)),
        ),
        _compared(
            "all masters, µs for a hit", found, runs.REDIS_US, lambda run: laws.redis_us(batch(run))
        ),
    ]
    writes = "one hit" if pipeline == 1 else f"{pipeline} hits"
    sentence = (
        f"50 clients, each with {writes} in a write, one worker. The model has not seen 6 masters."
    )
    title = f"Cost of a hit by masters, {writes} in a write"
    alt = f"{title}: measured, as in the table above, and by the model"
    return [Image(f"{SCALE}cost-{name}.svg", alt, plots.lines(title, sentence, panels))]


def _compared(title: str, found: Sequence[Run], value: str, model: Callable[[Run], float]) -> Panel:
    measured = [(float(run.masters), run.value(value)) for run in found]
    alt = [(float(run.masters), model(run)) for run in found]
    lines = [
        Line(name, PLACES[name], points)
        for name, points in (("measured", measured), ("model", alt))
    ]
    return Panel(title, "masters", lines)


def _forecasts(laws: Laws) -> Image:
    found = [forecast(laws, rate, SINGLE) for rate in RATES]

    def line(name: str, place: int, value: Callable[[Forecast], float]) -> Line:
        return Line(name, place, [(one.rate, value(one)) for one in found])

    panels = [
        Panel(
            "processes of one core each",
            "hits per second",
            [
                line("workers", 1, lambda one: one.workers),
                line("masters", 2, lambda one: one.masters),
            ],
            log_x=True,
            log_y=True,
        ),
        Panel(
            "connections of one master",
            "hits per second",
            [
                line("of workers", 1, lambda one: one.connections),
                line("with clients", 3, lambda one: one.plain_connections),
                line("that pipeline", 4, lambda one: one.piped_connections),
            ],
            log_x=True,
            log_y=True,
        ),
    ]
    sentence = "Predictions, not measurements: one hit a write, even keys, 60 % of each core used."
    alt = "Predicted workers, masters and connections by hits per second, as in the table above"
    title = "What more hits would need"
    return Image(f"{SCALE}forecast.svg", alt, plots.lines(title, sentence, panels))
