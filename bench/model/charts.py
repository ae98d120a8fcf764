"""The pictures of the page: cost by masters, measured and by the laws; processes by load."""

from __future__ import annotations

from typing import Final

from .. import plots
from ..plots import Image, Line, Panel
from . import runs
from .forecast import PIPED, SINGLE, predict
from .laws import Laws
from .result import Result

PREFIX: Final = "scale-"  # of the pictures' file names
RATES: Final = (1e6, 3e6, 1e7, 3e7, 1e8)


def drawn(result: Result, laws: Laws) -> list[Image]:
    """Return all pictures."""
    return [_costs(result, laws, 1), _costs(result, laws, 16), _forecasts(laws)]


def _costs(result: Result, laws: Laws, pipeline: int) -> Image:
    """Draw batch and CPU time by masters, for 50 clients and one worker."""
    wanted = (runs.ADMITTED, 50, pipeline, 1)
    found = [
        run for run in result.runs if (run.work, run.clients, run.pipeline, run.workers) == wanted
    ]
    panels = [
        Panel(
            title,
            "masters",
            [
                Line("measured", 1, [(run.masters, run.value(value)) for run in found]),
                Line("model", 2, [(run.masters, model(run)) for run in found]),
            ],
        )
        for title, value, model in (
            ("hits in one batch", runs.BATCH, laws.batch_of),
            ("the proxy, µs for a hit", runs.PROXY_US, laws.proxy_us_of),
            ("all masters, µs for a hit", runs.REDIS_US, laws.redis_us_of),
        )
    ]
    writes = "one hit" if pipeline == 1 else f"{pipeline} hits"
    sentence = (
        f"50 clients, each with {writes} in a write, one worker. The model has not seen 6 masters."
    )
    title = f"Cost of a hit by masters, {writes} in a write"
    alt = f"{title}: measured, as in the table above, and by the model"
    return plots.image(f"{PREFIX}cost-{pipeline}.svg", alt, title, sentence, panels)


def _forecasts(laws: Laws) -> Image:
    found = [predict(laws, rate, SINGLE) for rate in RATES]
    processes = [
        Line("workers", 1, [(one.rate, one.workers) for one in found]),
        Line("masters", 2, [(one.rate, one.masters) for one in found]),
    ]
    connections = [
        Line("of workers", 1, [(one.rate, one.connections) for one in found]),
        Line("with clients", 3, [(one.rate, one.connections_with(SINGLE)) for one in found]),
        Line("that pipeline", 4, [(one.rate, one.connections_with(PIPED)) for one in found]),
    ]
    panels = [
        Panel("processes of one core each", "hits per second", processes, log_x=True, log_y=True),
        Panel("connections of one master", "hits per second", connections, log_x=True, log_y=True),
    ]
    sentence = "Predictions, not measurements: one hit a write, even keys, 60 % of each core used."
    alt = "Predicted workers, masters and connections by hits per second, as in the table above"
    title = "What more hits would need"
    return plots.image(f"{PREFIX}forecast.svg", alt, title, sentence, panels)
