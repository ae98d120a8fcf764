"""python -m bench.pictures DIRECTORY: draw the decisions of each algorithm on the same traffic.

These are the pictures of docs/images: hits above, the limiter's state below. The scripts run on a
real server with the clock as an argument, so the decisions are real and the same each time.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rlproxy.ratelimit.algorithms import MICROSECONDS

from . import parts, plots, traffic
from .client import Client
from .errors import UsageError, reported
from .plots import COLOURS, DOTS, GRID, PAIRS, SETTINGS, SOFT, WIDTH
from .traffic import MAX, PARTS, SECONDS, TRAFFIC, WINDOW_S, Run

HEIGHT: Final = 336 / DOTS  # inches
RED: Final = ("#cf222e", "#f85149")
_, BLUE, ORANGE, VIOLET, GREEN, _ = (light for light, _ in COLOURS)

# values that the line in the lower part can show
REMAINING: Final = "hits left"
TOKENS: Final = "tokens"
LEVEL: Final = "level"
AHEAD: Final = "s ahead"


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


# The table of pictures: one for each ALGO, then one for each option that changes the picture.
# fmt: off
PICTURES: Final = (
    Picture("log", "LOG, the default", "",
        "Never more than 10 in any 10 s: a hit stops counting exactly 10 s after it was admitted."),
    Picture("zlog", "ZLOG", "ALGO ZLOG",
        "Answers as LOG does, hit for hit. It keeps a sorted set, so ZRANGE shows when they were."),
    Picture("fixed", "FIXED", "ALGO FIXED",
        "The window begins with its first hit and ends 10 s later: "
        "across its edge, at 10 s, 19 hits pass within 4 s."),
    Picture("counter", "COUNTER", "ALGO COUNTER",
        "It spreads the first window's hits evenly over it, though nine of the ten came after 8 s, "
        "and so admits the next ones too early."),
    Picture("token", "TOKEN", "ALGO TOKEN",
        "One token a second flows back, up to 10: a full bucket admits 10 at once.", TOKENS),
    Picture("leaky", "LEAKY", "ALGO LEAKY",
        "The same decisions as TOKEN: each hit raises the level by one, one a second drains.",
        LEVEL),
    Picture("gcra", "GCRA", "ALGO GCRA",
        "The same decisions, kept as one time: each hit moves it on by 1 s, to 10 s ahead at most.",
        AHEAD),
    Picture("burst", "GCRA with BURST", "ALGO GCRA BURST 3",
        "A bucket of 3 instead of 10: the same rate, and never more than 3 at once.", TOKENS),
    Picture("wait", "LEAKY with WAIT", "ALGO LEAKY WAIT 5",
        "Hits leave one a second. A reply is held for up to 5 s; longer waits are refused.", LEVEL),
    Picture("gap", "LOG with GAP", "GAP 0.5", "Between two hits that count lies half a second."),
    Picture("and", "LOG with AND", "AND 4 2",
        "And at most 4 in any 2 s. The line shows the limit that leaves least."),
    Picture("strict", "LOG with STRICT", "STRICT",
        "Refused hits count too: clients that keep retrying stay blocked, until the pause."),
    Picture("penalty", "LOG with PENALTY", "PENALTY 10",
        "The first refusal, at 10.4 s, blocks the key for 10 s. Further tries prolong nothing."),
)
# fmt: on


def draw(picture: Picture, run: Run) -> str:
    """Return the SVG of `run`. Its last line has a digest of all hits and states.

    By it a test compares pictures that different versions of matplotlib have drawn.
    """
    rule = f"RL.HIT k {MAX} {WINDOW_S} {picture.options}".strip()
    with mpl.rc_context({**SETTINGS, "xtick.major.size": 5}):
        figure = Figure(figsize=(WIDTH, HEIGHT), edgecolor=GRID[0], linewidth=1)
        figure.text(0.02, 0.9, picture.title, fontsize=17, fontweight="bold")
        figure.text(0.98, 0.9, rule, ha="right", family="monospace")
        figure.text(0.02, 0.835, picture.sentence, color=SOFT[0])
        upper, lower = figure.subplots(2, sharex=True)
        figure.subplots_adjust(left=0.06, right=0.976, top=0.81, bottom=0.18)
        _hits(run, upper)
        _state(picture.line, run, lower)
        figure.legend(ncols=4, loc="lower left", bbox_to_anchor=(0.05, 0))
        words = describe(picture, run)
        svg = plots.svg(figure, f"{picture.title}: {rule}", words, (*PAIRS, RED))
        return f"{svg}<!-- {hashlib.sha256(repr(run).encode()).hexdigest()} -->\n"


def describe(picture: Picture, run: Run) -> str:
    """Return the text alternative of the picture."""
    begin_us, count = run.worst()
    words = [
        picture.sentence,
        f"{len(run.hits)} hits in {SECONDS} s under the rule {MAX} hits per {WINDOW_S} s.",
        f"{run.admitted()} are admitted.",
        f"The fullest {WINDOW_S} s, from {begin_us / MICROSECONDS:g} s on, admit {count}.",
    ]
    hits = iter(run.hits)
    for name, times_us in PARTS.items():
        if part := [next(hits) for _ in times_us]:
            admitted = sum(hit.admitted for hit in part)
            words.append(f"{name.capitalize()}: {admitted} of {len(part)} admitted.")
    return " ".join(words)


def _hits(run: Run, axes: Axes) -> None:
    """Draw a bar for each hit: admitted ones upwards, refused ones downwards.

    A held hit has a line from its arrival to its reply.
    """
    admitted = [hit for hit in run.hits if hit.admitted]
    refused = [hit.at_us / MICROSECONDS for hit in run.hits if not hit.admitted]
    held = [hit for hit in admitted if hit.held_us]
    yes = f"admitted: {len(admitted)}" + (", held since the slanted line began" if held else "")
    replies = [hit.leaves_us / MICROSECONDS for hit in admitted]
    axes.vlines(replies, 0, 30, colors=GREEN, linewidth=2.6, label=yes)
    no = f"refused: {len(refused)}"
    axes.vlines(refused, -16, -2, colors=RED[0], linewidth=2.6, label=no)
    for hit in held:
        times = (hit.at_us / MICROSECONDS, hit.leaves_us / MICROSECONDS)
        axes.plot(times, (-14, 0), color=GREEN, linewidth=0.8)
    axes.axhline(0, color=SOFT[0], linewidth=1)
    axes.set_ylim(-20, 80)
    axes.set_axis_off()

    begin_us, count = run.worst()
    left, right = begin_us / MICROSECONDS, begin_us / MICROSECONDS + WINDOW_S
    colour, over = VIOLET, ""
    if count > MAX:
        colour, over = ORANGE, f": {count - MAX} above the rule"
    bracket = (left, left, right, right), (37, 44, 44, 37)
    axes.plot(*bracket, color=colour, linewidth=1.5, label=f"the fullest {WINDOW_S} s")
    style = {"ha": "center", "weight": "bold", "color": colour}
    axes.text((left + right) / 2, 50, f"{count} in {WINDOW_S} s{over}", style)
    last_us = 0
    for name, times_us in PARTS.items():
        # A part without hits reaches from the last hit before it to the first one behind it.
        first_us = times_us[0] if times_us else last_us
        last_us = times_us[-1] if times_us else min(at for at in TRAFFIC if at > last_us)
        middle = (first_us + last_us) / 2 / MICROSECONDS
        axes.text(middle, 66, name, {"ha": "center", "color": SOFT[0]})


def _state(line: str, run: Run, axes: Axes) -> None:
    """Draw the state over time: in steps if it is a number of hits, else straight lines."""
    values = []
    for state in run.states:
        hits = state.reset_us * MAX / (WINDOW_S * MICROSECONDS)
        choice = {
            REMAINING: state.remaining,
            TOKENS: state.limit - hits,
            LEVEL: hits,
            AHEAD: state.reset_us / MICROSECONDS,
        }
        values.append(choice[line])
    times = [state.at_us / MICROSECONDS for state in run.states]
    style = "steps-post" if line == REMAINING else "default"
    axes.plot(times, values, color=BLUE, drawstyle=style, label=line)
    axes.set_xlim(0, SECONDS)
    axes.set_xticks(range(0, SECONDS, 5), ["0 s", *map(str, range(5, SECONDS, 5))])
    axes.set_ylim(0, MAX)
    axes.set_yticks((0, MAX // 2, MAX))
    axes.grid(axis="x", visible=False)
    axes.set_title(line, loc="left", fontsize=12, color=SOFT[0], x=-0.044, y=1.06)


def drawn(client: Client) -> dict[str, str]:
    """Return all pictures: file name to SVG. The server's data is deleted. Raises BenchError."""
    return {
        f"{picture.name}.svg": draw(picture, traffic.run(client, picture.options))
        for picture in PICTURES
    }


def main(argv: Sequence[str]) -> int:
    """Write the pictures into a directory. Returns the exit code of reported()."""

    def write() -> None:
        if len(argv) != 1 or not Path(argv[0]).is_dir():
            raise UsageError("usage: python -m bench.pictures DIRECTORY")
        with parts.server(parts.engine(None)) as server, Client(server.port) as client:
            for name, text in drawn(client).items():
                Path(argv[0], name).write_text(text)

    return reported(write)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
