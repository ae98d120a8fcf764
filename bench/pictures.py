"""python -m bench.pictures DIRECTORY: draw the decisions of each algorithm on the same traffic.

These are the pictures of docs/images. The scripts run on a real server with the clock as an
argument, so the pictures show real decisions and are the same each time.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from . import parts, traffic
from .client import Client
from .drawing import AHEAD, LEVEL, TOKENS, Picture, draw
from .errors import UsageError, reported

# The table of pictures: one for each ALGO, then one for each option that changes the picture.
PICTURES: Final = (
    Picture(
        "log",
        "LOG, the default",
        "",
        "Never more than 10 in any 10 s: a hit stops counting exactly 10 s after it was admitted.",
    ),
    Picture(
        "zlog",
        "ZLOG",
        "ALGO ZLOG",
        "Answers as LOG does, hit for hit. It keeps a sorted set, so ZRANGE shows when they were.",
    ),
    Picture(
        "fixed",
        "FIXED",
        "ALGO FIXED",
        "The window begins with its first hit and ends 10 s later: "
        "across its edge, at 10 s, 19 hits pass within 4 s.",
    ),
    Picture(
        "counter",
        "COUNTER",
        "ALGO COUNTER",
        "It spreads the first window's hits evenly over it, though nine of the ten came after 8 s, "
        "and so admits the next ones too early.",
    ),
    Picture(
        "token",
        "TOKEN",
        "ALGO TOKEN",
        "One token a second flows back, up to 10: a full bucket admits 10 at once.",
        TOKENS,
    ),
    Picture(
        "leaky",
        "LEAKY",
        "ALGO LEAKY",
        "The same decisions as TOKEN: each hit raises the level by one, one a second drains.",
        LEVEL,
    ),
    Picture(
        "gcra",
        "GCRA",
        "ALGO GCRA",
        "The same decisions, kept as one time: each hit moves it on by 1 s, to 10 s ahead at most.",
        AHEAD,
    ),
    Picture(
        "burst",
        "GCRA with BURST",
        "ALGO GCRA BURST 3",
        "A bucket of 3 instead of 10: the same rate, and never more than 3 at once.",
        TOKENS,
    ),
    Picture(
        "wait",
        "LEAKY with WAIT",
        "ALGO LEAKY WAIT 5",
        "Hits leave one a second. A reply is held for up to 5 s; longer waits are refused.",
        LEVEL,
    ),
    Picture("gap", "LOG with GAP", "GAP 0.5", "Between two hits that count lies half a second."),
    Picture(
        "and",
        "LOG with AND",
        "AND 4 2",
        "And at most 4 in any 2 s. The line shows the limit that leaves least.",
    ),
    Picture(
        "strict",
        "LOG with STRICT",
        "STRICT",
        "Refused hits count too: clients that keep retrying stay blocked, until the pause.",
    ),
    Picture(
        "penalty",
        "LOG with PENALTY",
        "PENALTY 10",
        "The first refusal, at 10.4 s, blocks the key for 10 s. Further tries prolong nothing.",
    ),
)


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
