"""The progress of a run, on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping


class Progress:
    """A line for each figure that is done, with the number of its row and the time so far."""

    def __init__(self, rows: int = 1) -> None:
        self._rows = rows
        self._row = 0
        self._began = time.monotonic()

    def row(self) -> None:
        """Count the next row."""
        self._row += 1

    def finish(self, name: str, medians: Mapping[str, float], unit: str) -> None:
        """Show the result of one figure: `medians` by column, in `unit`."""
        seconds = int(time.monotonic() - self._began)
        at = f"[{self._row}/{self._rows} {seconds // 60}:{seconds % 60:02}]"
        shown = ", ".join(f"{column} {number(value)}" for column, value in medians.items())
        print(f"{at} {name} ({unit}): {shown or 'nothing to measure'}", file=sys.stderr, flush=True)


def number(value: float) -> str:
    """Format a value with at least three significant digits."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
