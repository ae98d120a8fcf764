"""Pictures: lines over scales, drawn as SVG by matplotlib."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from xml.sax.saxutils import escape

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import LogLocator

IMAGES: Final = "images"  # the directory of pictures, beside the page

DOTS: Final = 72  # SVG units per inch of a figure
WIDTH: Final = 1000 / DOTS  # inches, like all sizes of figures below
HEIGHT: Final = 376 / DOTS
HEAD: Final = 56 / DOTS  # the title and the sentence below it

# Colour of each part, in light and in dark pages. matplotlib draws the light one; the style of the
# SVG replaces it.
TEXT: Final = ("#1f2328", "#e6edf3")
SOFT: Final = ("#59636e", "#9198a1")
GRID: Final = ("#d1d9e0", "#3d444d")
CARD: Final = ("#ffffff", "#0d1117")

# Colour, dash and mark of each series, by its place.
COLOURS: Final = (
    ("#58626d", "#9198a2"),  # almost SOFT, so that a path shows what it belongs to
    ("#0969da", "#4493f8"),
    ("#bc4c00", "#db6d28"),
    ("#8250df", "#ab7df8"),
    ("#1a7f37", "#3fb950"),
    ("#bf3989", "#db61a2"),
)
Pair = tuple[str, str]
PAIRS: Final[tuple[Pair, ...]] = (TEXT, SOFT, GRID, CARD, *COLOURS)
DASHES: Final = ("--", "-", ":", "-.", (0, (8, 3)), (0, (1, 3)))
MARKS: Final = "so^Dv_"

SETTINGS: Final[dict[Any, object]] = {
    "axes.edgecolor": SOFT[0],
    "axes.facecolor": "none",
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.labelcolor": SOFT[0],
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.facecolor": CARD[0],
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 12.0,
    "grid.color": GRID[0],
    "legend.frameon": False,
    "legend.labelcolor": SOFT[0],
    "lines.linewidth": 1.8,
    "svg.fonttype": "none",
    "svg.hashsalt": "rlproxy",
    "text.color": TEXT[0],
    "xtick.color": SOFT[0],
    "ytick.color": SOFT[0],
    "ytick.major.size": 0.0,
}


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
class Image:
    """A picture: its file name, its text alternative, its SVG."""

    name: str
    alt: str
    text: str

    def link(self) -> str:
        """Return the picture as a Markdown image."""
        return f"![{self.alt}]({IMAGES}/{self.name})"


def image(name: str, alt: str, title: str, sentence: str, panels: Sequence[Panel]) -> Image:
    """Draw panels side by side; all with a logarithmic y axis have the same one.

    sentence: the sentence below the title.
    """
    logs = [y for panel in panels if panel.log_y for line in panel.lines for _, y in line.points]
    layout = ConstrainedLayoutEngine(rect=(0.01, 0.01, 0.98, 0.98 - HEAD / HEIGHT))
    with mpl.rc_context(SETTINGS):
        size = (WIDTH, HEIGHT)
        figure = Figure(figsize=size, layout=layout, edgecolor=GRID[0], linewidth=1)
        for place, panel in enumerate(panels):
            axes = figure.add_subplot(1, len(panels), place + 1)
            _draw(panel, axes)
            if panel.log_y:
                axes.set_yscale("log")
                axes.set_ylim(min(logs) / 1.2, max(logs) * 1.2)
                axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                axes.yaxis.minorticks_off()
            else:
                axes.set_ylim(bottom=0)
            axes.yaxis.set_major_formatter(short)
        figure.text(0.02, 1 - HEAD / 2 / HEIGHT, title, fontsize=17, fontweight="bold")
        figure.text(0.02, 1 - HEAD / HEIGHT, sentence, color=SOFT[0], va="bottom")
        words = " ".join([sentence, *map(_words, panels)])
        return Image(name, alt, svg(figure, title, words))


def _draw(panel: Panel, axes: Axes) -> None:
    for line in panel.lines:
        style: dict[str, Any] = {"linestyle": DASHES[line.place], "marker": MARKS[line.place]}
        colour, _ = COLOURS[line.place]
        axes.plot(*zip(*line.points, strict=True), label=line.name, color=colour, **style)
    if panel.log_x:
        axes.set_xscale("log")
    axes.set_xticks(sorted({x for line in panel.lines for x, _ in line.points}))
    axes.xaxis.minorticks_off()
    axes.xaxis.set_major_formatter(short)
    axes.grid(axis="x", visible=False)
    axes.set_title(panel.title, loc="left", fontsize=12, pad=24)
    axes.set_xlabel(panel.foot)
    axes.legend(ncols=3, loc="lower left", bbox_to_anchor=(-0.02, 1), borderpad=0)


def svg(figure: Figure, title: str, words: str, pairs: Sequence[Pair] = PAIRS) -> str:
    """Return the SVG of a figure, with the text alternative `words` and the style of dark pages."""
    for artist in figure.findobj():
        artist.set_clip_on(False)  # the names of clip paths would differ in each run
    written = io.StringIO()
    figure.savefig(written, format="svg", dpi=DOTS, metadata=dict.fromkeys(("Creator", "Date")))
    drawn = written.getvalue()
    for number, (light, _) in enumerate(pairs):
        drawn = drawn.replace(light, f"var(--c{number})")
    light, dark = ("".join(f"--c{n}:{pair[k]};" for n, pair in enumerate(pairs)) for k in (0, 1))
    opening, _, body = drawn[drawn.index("<svg") :].partition(">")
    return (
        f'{opening} role="img" aria-labelledby="title desc">\n<title id="title">{escape(title)}'
        f'</title>\n<desc id="desc">{escape(words)}</desc>\n<style>:root{{{light}}}'
        f"@media(prefers-color-scheme:dark){{:root{{{dark}}}}}</style>{body}"
    )


def _words(panel: Panel) -> str:
    words = [
        f"{line.name}: " + ", ".join(f"{_rounded(y)} at {_rounded(x)}" for x, y in line.points)
        for line in panel.lines
    ]
    return f"{panel.title} by {panel.foot}: {'; '.join(words)}."


def short(value: float, _place: float | None = None) -> str:
    """Return a tick's label: 2000 is 2k, 1,500,000 is 1.5M."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def _rounded(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
