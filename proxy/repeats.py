"""Events that strangers may cause as often as they like, told in the log: the first of a kind at
once, the others as a count. Knows no clock: whoever owns it hands in a timer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

EVERY_S: Final = 5.0  # of each kind, one line in this time
MAX_KINDS: Final = 64  # more are told as one


class Repeats:
    """Tells `say` of events; `later(seconds, function)` calls back."""

    def __init__(
        self, say: Callable[[str], object], later: Callable[[float, Callable[[], None]], object]
    ) -> None:
        self._say = say
        self._later = later
        self._kinds: dict[str, tuple[int, str]] = {}  # how many were not told yet, the latest one

    def tell(self, kind: str, text: str) -> None:
        """Something of this kind happened."""
        if kind not in self._kinds and len(self._kinds) >= MAX_KINDS:
            kind = ""
        if kind in self._kinds:
            self._kinds[kind] = (self._kinds[kind][0] + 1, text)
            return
        self._say(text)
        self._wait(kind)

    def _wait(self, kind: str) -> None:
        self._kinds[kind] = (0, "")
        self._later(EVERY_S, lambda: self._over(kind))

    def _over(self, kind: str) -> None:
        count, text = self._kinds.pop(kind)
        if count:
            more = f" ({count} such in the last {EVERY_S:g} s)" if count > 1 else ""
            self._say(f"{text}{more}")
            self._wait(kind)
