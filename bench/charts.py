"""The pictures of a result: the figures they show, their file names and text alternatives."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from . import growth, latency, plots
from .parts import DIRECT, HAPROXY, PROXY, SPLICE
from .plots import Bar, Line, Panel
from .result import Result, Row
from .rows import GROWTH, LATENCY
from .tables import union

IMAGES: Final = "images"
PREFIX: Final = "bench-"  # of the pictures' file names
SCALE: Final = "scale-"  # of those of bench.model.page
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


def ratios(result: Result, name: str, title: str, rows: Sequence[Row]) -> list[Image]:
    """Draw bars of all ratios of rates, row by row, with their bounds."""
    places = {ratio: place for place, ratio in enumerate(union(row["ratios"] for row in rows))}
    groups = [
        (
            row["name"],
            [
                Bar(ratio, places[ratio], value, result.bound(row["name"], ratio))
                for ratio, value in row["ratios"].items()
            ],
        )
        for row in rows
        if row["ratios"]
    ]
    if not groups:
        return []
    sentence = "One rate by another, each the median of its turns: right of 1 the first is faster."
    alt = f"{title}: the ratios of rates, row by row, as in the table below"
    return [Image(f"{PREFIX}{name}.svg", alt, plots.bars(title, sentence, groups))]


def latencies(result: Result) -> list[Image]:
    """Draw a panel for each of DRAWN: latency by offered rate, one line per party."""
    panels = []
    for name in DRAWN:
        lines = []
        for place, party in enumerate(latency.PARTIES):
            points = [
                (offered, result.median(latency.name_of(LATENCY, name, percent), party))
                for percent, offered in offers(result)
            ]
            lines.append(_line(NAMES[party], place, points))
        panels.append(_panel(f"{name}, µs", "hits per second offered", lines, log_y=True))
    sentence = "RL.HIT at fixed rates, from when it was due until it was answered."
    alt = "Latency of a hit by the rate offered, as in the table below"
    return _image("latency", "Latency by load", sentence, alt, panels)


def grown(result: Result, row: str, foot: str) -> list[Image]:
    """Draw two panels by the quantity that `foot` names: rates, and CPU time of a hit."""

    def line(place: int, called: str, what: str, column: str) -> Line:
        names = ((point, growth.name_of(row, point, what)) for point in points(result, row))
        return _line(called, place, [(at, result.median(name, column)) for at, name in names])

    rates = [line(0, "direct", growth.RATE, DIRECT), line(1, "proxy", growth.RATE, PROXY)]
    spent = [
        line(0, "Redis, directly", growth.REDIS, DIRECT),
        line(1, "Redis, through the proxy", growth.REDIS, PROXY),
        line(2, "the proxy", growth.PARTY, PROXY),
    ]
    panels = [
        _panel("hits per second", foot, rates, log_x=True),
        _panel("CPU time of a hit, µs", foot, spent, log_x=True),
    ]
    alt = f"Throughput and CPU time by {foot}, as in the table below"
    return _image(row, f"Growth with {foot}", f"RL.HIT admitted, by {foot}.", alt, panels)


def offers(result: Result) -> list[tuple[int, float]]:
    """Return list of (load in percent, offered hits per second); empty without the row."""
    peak = result.median(latency.name_of(LATENCY, latency.PEAK), PROXY)
    return [] if peak is None else [(load, peak * load / 100) for load in latency.LOADS]


def points(result: Result, row: str) -> list[int]:
    """Return the points (numbers of clients, keys or hits) at which `row` was measured."""
    found = (re.fullmatch(rf"{row} (\d+)", one["name"]) for one in result.of([GROWTH]))
    return [int(match[1]) for match in found if match is not None]


def _line(name: str, place: int, points: Iterable[tuple[float, float | None]]) -> Line:
    return Line(name, place, [(x, y) for x, y in points if y is not None])


def _panel(
    title: str, foot: str, lines: Iterable[Line], log_x: bool = False, log_y: bool = False
) -> Panel:
    return Panel(title, foot, [line for line in lines if line.points], log_x, log_y)


def _image(name: str, title: str, sentence: str, alt: str, panels: Sequence[Panel]) -> list[Image]:
    drawn = [panel for panel in panels if panel.lines]
    if not drawn:
        return []
    return [Image(f"{PREFIX}{name}.svg", alt, plots.lines(title, sentence, drawn))]
