"""A run of traffic as an SVG: hits above, the limiter's state below. No server, no file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape

from rlproxy.ratelimit.algorithms import MICROSECONDS

from .traffic import MAX, PARTS, SECONDS, TRAFFIC, WINDOW_S, Run

WIDTH: Final = 1000
HEIGHT: Final = 336
LEFT: Final = 60
SECOND: Final = 19.5  # width of one second
AXIS: Final = 138  # baseline of the hits: admitted ones above it, refused ones below
TALL: Final = 30
SHORT: Final = 14
BAR: Final = 2.6
BRACKET: Final = 94
LETTER: Final = 6.6  # approximate width of a letter in STYLE
PLOT_TOP: Final = 176
PLOT_BOTTOM: Final = 276

# values that the line in the lower part can show
REMAINING: Final = "hits left"
TOKENS: Final = "tokens"
LEVEL: Final = "level"
AHEAD: Final = "s ahead"

# Both colour schemes include a background: an image can't always detect the page's scheme.
STYLE: Final = """\
.card{fill:#fff;stroke:#d1d9e0}text{fill:#1f2328;font:13px system-ui,sans-serif}
.name{font-size:17px;font-weight:600}.rule{font:13px ui-monospace,monospace}.soft{fill:#59636e}
.grid{stroke:#d1d9e0}.axis{stroke:#59636e}.yes{fill:#1a7f37}.no{fill:#cf222e}.held{stroke:#1a7f37}
.worst{stroke:#8250df;fill:none;stroke-width:1.5}.count{fill:#8250df;font-weight:600}
.worst.over{stroke:#bc4c00}.count.over{fill:#bc4c00}
.state{stroke:#0969da;fill:none;stroke-width:1.8}
@media(prefers-color-scheme:dark){
.card{fill:#0d1117;stroke:#3d444d}text{fill:#e6edf3}.soft{fill:#9198a1}.grid{stroke:#3d444d}
.axis{stroke:#9198a1}.yes{fill:#3fb950}.no{fill:#f85149}.held{stroke:#3fb950}
.worst{stroke:#ab7df8}.count{fill:#ab7df8}.state{stroke:#4493f8}
.worst.over{stroke:#db6d28}.count.over{fill:#db6d28}}"""


@dataclass(frozen=True)
class Picture:
    """The description of one picture.

    name: the file name without its suffix.
    options: the options of the rule.
    sentence: the sentence below the title.
    line: the value that the line shows.
    """

    name: str
    title: str
    options: str
    sentence: str
    line: str = REMAINING


def draw(picture: Picture, run: Run) -> str:
    """Return the SVG of `run`."""
    rule = f"RL.HIT k {MAX} {WINDOW_S} {picture.options}".strip()
    parts = [
        *_opening(f"{picture.title}: {rule}", describe(picture, run)),
        text(LEFT - 40, 28, picture.title, "name"),
        text(WIDTH - 20, 28, rule, "rule", "end"),
        text(LEFT - 40, 50, picture.sentence, "soft"),
        *_hits(run),
        *_worst(run),
        *_state(picture, run),
        *_time(),
        *_legend(picture, run),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def describe(picture: Picture, run: Run) -> str:
    """Return the text alternative of the picture."""
    begin_us, count = run.worst()
    begin = tenths(begin_us / MICROSECONDS)
    words = [
        picture.sentence,
        f"{len(run.hits)} hits in {SECONDS} s under the rule {MAX} hits per {WINDOW_S} s.",
        f"{run.admitted()} are admitted.",
        f"The fullest {WINDOW_S} s, from {begin} s on, admit {count}.",
    ]
    at = 0
    for name, hits in PARTS:
        part = run.hits[at : at + len(hits)]
        at += len(hits)
        if part:
            admitted = sum(hit.admitted for hit in part)
            words.append(f"{name.capitalize()}: {admitted} of {len(part)} admitted.")
    return " ".join(words)


# -- the parts -------------------------------------------------------------------------------------


def _opening(title: str, alt: str) -> list[str]:
    """Return the first lines: title, text alternative (`alt`), style and card."""
    head = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
    return [
        f'<svg {head} role="img" aria-labelledby="title desc">',
        f'<title id="title">{escape(title)}</title>',
        f'<desc id="desc">{escape(alt)}</desc>',
        f"<style>{STYLE}</style>",
        f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="6"/>',
    ]


def _hits(run: Run) -> list[str]:
    """Draw bars, one path for admitted and one for refused hits.

    A held hit has a line from its arrival to its reply.
    """
    right = _x(SECONDS * MICROSECONDS)
    found = [f'<path class="axis" d="M{LEFT} {AXIS}H{right}"/>']
    held = [hit for hit in run.hits if hit.admitted and hit.held_us]
    if held:
        lines = "".join(
            f"M{_x(hit.at_us)} {AXIS + SHORT}L{_x(hit.leaves_us)} {AXIS}" for hit in held
        )
        found.append(f'<path class="held" stroke-width="0.8" d="{lines}"/>')
    admitted = [hit.leaves_us for hit in run.hits if hit.admitted]
    refused = [hit.at_us for hit in run.hits if not hit.admitted]
    found.append(f'<path class="yes" d="{_bars(admitted, AXIS - TALL, TALL)}"/>')
    if refused:
        found.append(f'<path class="no" d="{_bars(refused, AXIS + 2, SHORT)}"/>')
    return found


def _bars(times_us: Sequence[int], top: int, height: int) -> str:
    return "".join(
        f"M{tenths(_at(time) - BAR / 2)} {top}h{BAR}v{height}h-{BAR}z" for time in times_us
    )


def _worst(run: Run) -> list[str]:
    begin_us, count = run.worst()
    left, right = _x(begin_us), _x(begin_us + WINDOW_S * MICROSECONDS)
    middle = begin_us + WINDOW_S * MICROSECONDS // 2
    over = " over" if count > MAX else ""
    words = f"{count} in {WINDOW_S} s" + (f": {count - MAX} above the rule" if over else "")
    return [
        f'<path class="worst{over}" d="M{left} {BRACKET + 7}V{BRACKET}H{right}V{BRACKET + 7}"/>',
        text(_at(middle), BRACKET - 6, words, f"count{over}", "middle"),
    ]


def _state(picture: Picture, run: Run) -> list[str]:
    found: list[str] = []
    for value in (0, MAX // 2, MAX):
        y = tenths(_y(value))
        found.append(f'<path class="grid" d="M{LEFT} {y}H{_x(SECONDS * MICROSECONDS)}"/>')
        found.append(text(LEFT - 8, _y(value) + 4, str(value), "soft", "end"))
    found.append(text(LEFT - 40, PLOT_TOP - 10, picture.line, "soft"))
    found.append(f'<path class="state" d="{_line(picture.line, run)}"/>')
    return found


def _line(line: str, run: Run) -> str:
    """Draw the state over time: in steps if it is a number of hits, else straight lines."""
    points: list[tuple[float, float]] = []
    for state in run.states:
        hits = state.reset_us * MAX / (WINDOW_S * MICROSECONDS)
        value = {
            REMAINING: state.remaining,
            TOKENS: state.limit - hits,
            LEVEL: hits,
            AHEAD: state.reset_us / MICROSECONDS,
        }[line]
        point = (_at(state.at_us), _y(value))
        if line == REMAINING and points:
            points.append((point[0], points[-1][1]))
        points.append(point)
    kept = _simplified(points)
    return "M" + "L".join(f"{tenths(x)} {tenths(y)}" for x, y in kept)


def _simplified(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the same line without the points inside a straight piece."""
    kept: list[tuple[float, float]] = []
    for point in points:
        while len(kept) > 1 and _straight(kept[-2], kept[-1], point):
            kept.pop()
        kept.append(point)
    return kept


def _straight(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> bool:
    turn = (b[0] - a[0]) * (c[1] - b[1]) - (b[1] - a[1]) * (c[0] - b[0])
    onward = (b[0] - a[0]) * (c[0] - b[0]) + (b[1] - a[1]) * (c[1] - b[1])
    return abs(turn) < 0.01 and onward >= 0


def _time() -> list[str]:
    found: list[str] = []
    for second in range(0, SECONDS + 1, 5):
        x = _at(second * MICROSECONDS)
        found.append(f'<path class="grid" d="M{tenths(x)} {PLOT_BOTTOM}v5"/>')
        unit = " s" if not second else ""
        found.append(text(x, PLOT_BOTTOM + 19, f"{second}{unit}", "soft", "middle"))
    begin = 0
    for name, hits in PARTS:
        first_us = hits[0] if hits else TRAFFIC[begin - 1]
        begin += len(hits)
        next_us = TRAFFIC[begin] if begin < len(TRAFFIC) else SECONDS * MICROSECONDS
        last_us = hits[-1] if hits else next_us
        found.append(text(_at((first_us + last_us) // 2), 72, name, "soft", "middle"))
    return found


def _legend(picture: Picture, run: Run) -> list[str]:
    y = HEIGHT - 17
    admitted = run.admitted()
    held = any(hit.held_us for hit in run.hits)
    yes = f"admitted: {admitted}" + (", held since the slanted line began" if held else "")
    no = f"refused: {len(run.hits) - admitted}"
    worst = f"the fullest {WINDOW_S} s"
    found: list[str] = []
    x = float(LEFT)
    for label, mark in (
        (yes, '<rect class="yes" x="0" y="-11" width="4" height="13"/>'),
        (no, '<rect class="no" x="0" y="-6" width="4" height="8"/>'),
        (worst, '<path class="worst" d="M-10 -1V-7H6V-1"/>'),
        (picture.line, '<path class="state" d="M-10 -4H6"/>'),
    ):
        found.append(f'<g transform="translate({tenths(x)} {y})">{mark}</g>')
        found.append(text(x + 11, y, label, "soft"))
        x += 50 + LETTER * len(label)
    return found


# -- numbers and words -----------------------------------------------------------------------------


def _at(time_us: int) -> float:
    return LEFT + SECOND * time_us / MICROSECONDS


def _x(time_us: int) -> str:
    return tenths(_at(time_us))


def _y(value: float) -> float:
    return PLOT_BOTTOM - (PLOT_BOTTOM - PLOT_TOP) * value / MAX


def tenths(value: float) -> str:
    """Format a number with at most one decimal."""
    return f"{value:.1f}".removesuffix(".0")


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "") -> str:
    """Return a text element of class `kind`; it begins at `x` unless `anchor` is middle or end."""
    where = f'x="{tenths(x)}" y="{tenths(y)}"'
    kinds = (f' class="{kind}"' if kind else "") + (f' text-anchor="{anchor}"' if anchor else "")
    return f"<text {where}{kinds}>{escape(words)}</text>"
