"""The progress display of a run, on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

WIDTH = 78


class Progress:
    """One line that is rewritten on a terminal, and a line for each finished row everywhere."""

    def __init__(self, rows: int = 1) -> None:
        self._rows = rows
        self._row = 0
        self._live = sys.stderr.isatty()
        self._began = time.monotonic()

    def row(self) -> None:
        """Count the next row."""
        self._row += 1

    def begin(self, what: str, repeat: int, repeats: int) -> None:
        """Show that a measurement begins."""
        if self._live:
            self._show(f"{self._head()} {what}, {repeat} of {repeats}", end="")

    def finish(self, name: str, medians: Mapping[str, float], unit: str) -> None:
        """Show the result of one figure: `medians` by column, in `unit`."""
        shown = ", ".join(f"{column} {number(value)}" for column, value in medians.items())
        self._show(f"{self._head()} {name} ({unit}): {shown or 'nothing to measure'}", end="\n")

    def _head(self) -> str:
        seconds = int(time.monotonic() - self._began)
        return f"[{self._row}/{self._rows} {seconds // 60}:{seconds % 60:02}]"

    def _show(self, text: str, end: str) -> None:
        before = f"\r{'':{WIDTH}}\r" if self._live else ""
        shown = text[:WIDTH] if self._live and not end else text
        print(before + shown, end=end, file=sys.stderr, flush=True)


def number(value: float) -> str:
    """Format a value with at least three significant digits."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
