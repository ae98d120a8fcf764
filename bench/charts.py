"""The picture of a result: latency by load; and what pictures of all pages have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from . import latency, plots
from .parts import DIRECT, HAPROXY, PROXY, SPLICE
from .plots import Line, Panel
from .result import Result
from .rows import LATENCY

IMAGES: Final = "images"
PREFIX: Final = "bench-"  # of the pictures' file names
NAMES: Final = {DIRECT: "direct", PROXY: "proxy", SPLICE: "splice", HAPROXY: "HAProxy"}
DRAWN: Final = ("p50", latency.P99, "p99.9")


@dataclass(frozen=True)
class Image:
    """A picture: its file name, its text alternative, its SVG."""

    name: str
    alt: str
    text: str

    def link(self) -> str:
        """Return the picture as a Markdown image."""
        return f"![{self.alt}]({IMAGES}/{self.name})"


def latencies(result: Result) -> list[Image]:
    """Draw a panel for each of DRAWN: latency by offered rate, one line per party.

    Returns nothing without the row.
    """
    panels = []
    for name in DRAWN:
        lines = []
        for place, party in enumerate(latency.PARTIES):
            found = [
                (offered, result.median(latency.name_of(LATENCY, name, percent), party))
                for percent, offered in offers(result)
            ]
            points = [(offered, value) for offered, value in found if value is not None]
            if points:
                lines.append(Line(NAMES[party], place, points))
        if lines:
            panels.append(Panel(f"{name}, µs", "hits per second offered", lines, log_y=True))
    if not panels:
        return []
    sentence = "RL.HIT at fixed rates, from when it was due until it was answered."
    alt = "Latency of a hit by the rate offered, as in the table below"
    return [Image(f"{PREFIX}latency.svg", alt, plots.lines("Latency by load", sentence, panels))]


def offers(result: Result) -> list[tuple[int, float]]:
    """Return list of (load in percent, offered hits per second); empty without the row."""
    peak = result.median(latency.name_of(LATENCY, latency.PEAK), PROXY)
    return [] if peak is None else [(load, peak * load / 100) for load in latency.LOADS]
