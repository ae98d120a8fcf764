"""The progress display of a run, on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

WIDTH = 78


class Progress:
    """A line for each finished figure. On a terminal, a line for the current one is overwritten."""

    def __init__(self, rows: int = 1) -> None:
        self._rows = rows
        self._row = 0
        self._began = time.monotonic()

    def row(self) -> None:
        """Count the next row."""
        self._row += 1

    def begin(self, what: str, repeat: int, repeats: int) -> None:
        """Show that a measurement begins."""
        if sys.stderr.isatty():
            self._show(f"{what}, {repeat} of {repeats}"[: WIDTH - 20], end="")

    def finish(self, name: str, medians: Mapping[str, float], unit: str) -> None:
        """Show the result of one figure: `medians` by column, in `unit`."""
        shown = ", ".join(f"{column} {number(value)}" for column, value in medians.items())
        self._show(f"{name} ({unit}): {shown or 'nothing to measure'}", end="\n")

    def _show(self, text: str, end: str) -> None:
        seconds = int(time.monotonic() - self._began)
        before = f"\r{'':{WIDTH}}\r" if sys.stderr.isatty() else ""
        at = f"{before}[{self._row}/{self._rows} {seconds // 60}:{seconds % 60:02}]"
        print(at, text, end=end, file=sys.stderr, flush=True)


def number(value: float) -> str:
    """Format a value with at least three significant digits."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
