"""Lines over scales and bars of ratios, as SVG. No figures of the benchmark, no files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from . import svg
from .svg import number, text

WIDTH: Final = 1000
EDGE: Final = 20
HEAD: Final = 50  # the baseline of the sentence below the title
TICK: Final = 5
MANY_TICKS: Final = 7

PANEL_TITLE: Final = 84
PANEL_LEGEND: Final = 105
PANEL_TOP: Final = 124
PANEL_BOTTOM: Final = 316
PANEL_FOOT: Final = 356  # the baseline of the text below the axis
PANELS_HEIGHT: Final = 376
LABELS: Final = 48  # the width of the numbers left of a panel
GAP: Final = 26  # space between panels

BARS_TOP: Final = 96
BARS_LEFT: Final = 170
BARS_RIGHT: Final = 930
BAR: Final = 14
BARS_GAP: Final = 9  # space between groups
BARS_FOOT: Final = 58
LEAST: Final = 1 / 16  # the ends of the scale of ratios, where bars are cut
MOST: Final = 16.0

# Colour (light, dark), dash and mark of each series, by its place; they differ for each.
COLOURS: Final = (
    ("#59636e", "#9198a1"),
    ("#0969da", "#4493f8"),
    ("#bc4c00", "#db6d28"),
    ("#8250df", "#ab7df8"),
    ("#1a7f37", "#3fb950"),
    ("#bf3989", "#db61a2"),
)
DASHES: Final = ("6 3", "", "2 3", "9 3 2 3", "12 4", "1 4")
MARKS: Final = (
    "M-3.5 -3.5h7v7h-7z",
    "M0 -4.2A4.2 4.2 0 1 1 0 4.2A4.2 4.2 0 1 1 0 -4.2z",
    "M0 -4.6L4.6 3.6H-4.6z",
    "M0 -5L5 0L0 5L-5 0z",
    "M0 4.6L4.6 -3.6H-4.6z",
    "M-4.5 -1.5h9v3h-9z",
)


def _style() -> str:
    def of(scheme: int) -> str:
        return "\n".join(
            f".s{place}{{stroke:{pair[scheme]};fill:none}}.m{place}{{fill:{pair[scheme]}}}"
            for place, pair in enumerate(COLOURS)
        )

    return (
        f"{svg.STYLE}.one{{stroke:#59636e}}.bound{{stroke:#cf222e;stroke-width:2}}\n{of(0)}\n"
        f"@media(prefers-color-scheme:dark){{\n{svg.DARK}.one{{stroke:#9198a1}}"
        f".bound{{stroke:#f85149}}\n{of(1)}}}"
    )


STYLE: Final = _style()


@dataclass(frozen=True)
class Line:
    """Points in order of x, drawn as series number `place` of the picture."""

    name: str
    place: int
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Panel:
    """One coordinate system; `title` names the y values, `foot` the x values, with units."""

    title: str
    foot: str
    lines: Sequence[Line]
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class Bar:
    """One ratio of series number `place`, and its bound, if any."""

    name: str
    place: int
    value: float
    bound: float | None = None


@dataclass(frozen=True)
class Scale:
    """A scale from values to pixels: `low` lies at `begin`, `high` at `end`."""

    low: float
    high: float
    begin: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """Return the pixel of `value`; values outside the scale lie on its edge."""
        value = min(max(value, self.low), self.high)
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.begin + share * (self.end - self.begin)


def linear_ticks(high: float) -> list[float]:
    """Return round numbers from 0 to the first one at or above `high`: four to six of them."""
    if high <= 0:
        return [0.0, 1.0]
    power = 10.0 ** math.floor(math.log10(high))
    steps = (power * factor for factor in (0.1, 0.2, 0.25, 0.5, 1.0, 2.0))
    step = next(step for step in steps if high / step <= 5)
    return [step * count for count in range(math.ceil(high / step - 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times powers of ten, from at or below `low` to at or above `high`.

    From MANY_TICKS steps on, only powers of ten are kept between the two ends.
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    found = [10.0**power * digit for power in range(first, last + 1) for digit in (1, 2, 5)]
    begin = max(place for place, tick in enumerate(found) if tick <= low * (1 + 1e-9))
    end = min(place for place, tick in enumerate(found) if tick >= high * (1 - 1e-9))
    end = max(end, begin + 1)
    if end - begin < MANY_TICKS:
        return found[begin : end + 1]
    return [
        found[place] for place in range(begin, end + 1) if place % 3 == 0 or place in (begin, end)
    ]


def short(value: float) -> str:
    """Return a tick's label: 2000 is 2k, 1,500,000 is 1.5M."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


# -- lines -----------------------------------------------------------------------------------------


def lines(title: str, says: str, panels: Sequence[Panel]) -> str:
    """Return the SVG of panels side by side; all with a logarithmic y axis have the same one.

    says: the sentence below the title.
    """
    told = " ".join([says, *(_panel_told(panel) for panel in panels)])
    parts = _head(PANELS_HEIGHT, title, says, told)
    width = (WIDTH - 2 * EDGE - GAP * (len(panels) - 1)) / len(panels)
    logs = [y for panel in panels if panel.log_y for y in _ys(panel)]
    for place, panel in enumerate(panels):
        left = EDGE + place * (width + GAP)
        ticks = log_ticks(min(logs), max(logs)) if panel.log_y else linear_ticks(max(_ys(panel)))
        parts += _panel(panel, ticks, left, left + width)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _ys(panel: Panel) -> list[float]:
    return [y for line in panel.lines for _, y in line.points]


def _panel(panel: Panel, ticks: Sequence[float], left: float, right: float) -> list[str]:
    xs = sorted({x for line in panel.lines for x, _ in line.points})
    inner = left + LABELS
    log_x = panel.log_x and len(xs) > 1
    low = xs[0] if log_x else 0.0
    across = Scale(low, max(xs[-1], low + 1), inner + 8, right - 12, log_x)
    up = Scale(ticks[0], ticks[-1], PANEL_BOTTOM, PANEL_TOP, panel.log_y)
    found = [text(left, PANEL_TITLE, panel.title)]
    found += _legend(left, PANEL_LEGEND, ((line.name, line.place) for line in panel.lines))
    for tick in ticks:
        y = number(up.at(tick))
        found.append(f'<path class="grid" d="M{number(inner)} {y}H{number(right)}"/>')
        found.append(text(inner - 6, up.at(tick) + 4, short(tick), "soft", "end"))
    for x in xs:
        at = number(across.at(x))
        found.append(f'<path class="axis" d="M{at} {PANEL_BOTTOM}v{TICK}"/>')
        found.append(text(across.at(x), PANEL_BOTTOM + 20, short(x), "soft", "middle"))
    found.append(text((inner + right) / 2, PANEL_FOOT, panel.foot, "soft", "middle"))
    for line in panel.lines:
        points = [(across.at(x), up.at(y)) for x, y in line.points]
        path = "M" + "L".join(f"{number(x)} {number(y)}" for x, y in points)
        found.append(_stroke(path, line.place))
        found += [_mark(x, y, line.place) for x, y in points]
    return found


def _panel_told(panel: Panel) -> str:
    told = [
        f"{line.name}: " + ", ".join(f"{_said(y)} at {_said(x)}" for x, y in line.points)
        for line in panel.lines
    ]
    return f"{panel.title} by {panel.foot}: {'; '.join(told)}."


# -- bars ------------------------------------------------------------------------------------------


def bars(title: str, says: str, groups: Sequence[tuple[str, Sequence[Bar]]]) -> str:
    """Return the SVG of named groups of ratios on one logarithmic scale, which contains 1.

    says: the sentence below the title.
    """
    values = [bar.value for _, group in groups for bar in group]
    values += [bar.bound for _, group in groups for bar in group if bar.bound is not None]
    kept = [min(max(value, LEAST), MOST) for value in values]
    low = 2.0 ** math.floor(math.log2(min(0.5, *kept)))
    high = 2.0 ** math.ceil(math.log2(max(2.0, *kept)))
    count = round(math.log2(high / low))
    size = sum(len(group) * BAR + BARS_GAP for _, group in groups)
    bottom = BARS_TOP + size
    scale = Scale(low, high, BARS_LEFT, BARS_RIGHT, log=True)
    parts = _head(bottom + BARS_FOOT, title, says, " ".join([says, *_bars_told(groups)]))
    series = {bar.name: bar.place for _, group in groups for bar in group}
    bounded = any(bar.bound is not None for _, group in groups for bar in group)
    parts += _legend(EDGE, 78, series.items(), filled=True)
    if bounded:
        parts.append(f'<path class="bound" d="M{BARS_RIGHT - 70} 67v14"/>')
        parts.append(text(BARS_RIGHT - 62, 78, "the bound", "soft"))
    for tick in (low * 2.0**power for power in range(count + 1)):
        kind = "one" if tick == 1 else "grid"
        parts.append(
            f'<path class="{kind}" d="M{number(scale.at(tick))} {BARS_TOP - 6}V{bottom}"/>'
        )
        parts.append(text(scale.at(tick), bottom + 18, _ratio(tick), "soft", "middle"))
    parts.append(text((BARS_LEFT + BARS_RIGHT) / 2, bottom + 40, "ratio", "soft", "middle"))
    y: float = BARS_TOP
    for name, group in groups:
        parts.append(text(BARS_LEFT - 12, y + len(group) * BAR / 2 + 4, name, "", "end"))
        for bar in group:
            parts += _bar(bar, y, scale)
            y += BAR
        y += BARS_GAP
    return "\n".join([*parts, "</svg>"]) + "\n"


def _bar(bar: Bar, y: float, scale: Scale) -> list[str]:
    """Draw a bar from 1 to its value, with the value beside its end; the bound is a stroke."""
    one, end = scale.at(1), scale.at(bar.value)
    left, width = min(one, end), abs(end - one)
    where = f'x="{number(left)}" y="{number(y + 1)}" width="{number(max(width, 1))}"'
    found = [f'<rect class="m{bar.place % len(COLOURS)}" {where} height="{BAR - 2}"/>']
    if bar.bound is not None:
        x = number(scale.at(bar.bound))
        found.append(f'<path class="bound" d="M{x} {number(y - 1)}v{BAR + 2}"/>')
    behind, anchor = (end + 6, "") if end >= one else (end - 6, "end")
    if bar.bound is not None and abs(scale.at(bar.bound) - behind) < 40:
        at = scale.at(bar.bound)  # the value must not overlap the bound's stroke
        behind = max(behind, at + 6) if end >= one else min(behind, at - 6)
    return [*found, text(behind, y + BAR - 3, f"{bar.value:.2f}", "soft", anchor)]


def _bars_told(groups: Sequence[tuple[str, Sequence[Bar]]]) -> Iterable[str]:
    for name, group in groups:
        yield f"{name}: " + ", ".join(f"{bar.name} {bar.value:.2f}" for bar in group) + "."


# -- common parts ----------------------------------------------------------------------------------


def _head(height: int, title: str, says: str, told: str) -> list[str]:
    return [
        *svg.opening(WIDTH, height, title, told, STYLE),
        text(EDGE, 28, title, "name"),
        text(EDGE, HEAD, says, "soft"),
    ]


def _legend(
    x: float, y: float, series: Iterable[tuple[str, int]], filled: bool = False
) -> list[str]:
    found: list[str] = []
    for name, place in series:
        if filled:
            where = f'x="{number(x)}" y="{number(y - 11)}" width="22"'
            found.append(f'<rect class="m{place % len(COLOURS)}" {where} height="{BAR - 2}"/>')
        else:
            found.append(_stroke(f"M{number(x)} {number(y - 4)}h22", place))
            found.append(_mark(x + 11, y - 4, place))
        found.append(text(x + 28, y, name, "soft"))
        x += 50 + svg.LETTER * len(name)
    return found


def _stroke(path: str, place: int) -> str:
    dash = DASHES[place % len(DASHES)]
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<path class="s{place % len(COLOURS)}" stroke-width="1.8"{dashes} d="{path}"/>'


def _mark(x: float, y: float, place: int) -> str:
    where = f"translate({number(x)} {number(y)})"
    kind, mark = f"m{place % len(COLOURS)}", MARKS[place % len(MARKS)]
    return f'<path class="{kind}" transform="{where}" d="{mark}"/>'


def _ratio(value: float) -> str:
    return f"{value:g}" if value >= 1 else f"1/{1 / value:g}"


def _said(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
