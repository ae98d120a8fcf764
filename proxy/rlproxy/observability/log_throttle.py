"""The log throttle: of an event that clients can cause at will, the first is logged at once, then
a count at most every few seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

EVERY_S: Final = 10.0  # shortest time between two lines of one kind, seconds
MAX_KINDS: Final = 64  # kinds that are counted apart; further ones are counted as OTHERS
OTHERS: Final = "{} more of other kinds"

Say = Callable[[str, Mapping[str, object]], None]  # logs a line with its fields


class _Kind:
    __slots__ = ("count", "latest", "one", "said_at")

    def __init__(self, said_at: float) -> None:
        self.said_at = said_at
        self.count = 0  # events since `said_at`
        self.latest = ""
        self.one = ""


class LogThrottle:
    """The throttle of repeated log lines: for each kind, one line per `every_s`.

    clock: returns seconds.
    say: logs a line with the fields `kind`, `count` and, if known, `client`.
    every_s: shortest time between two lines of one kind, seconds.

    A kind is the line itself with {} for the count: "turned away {} client(s): no room".
    """

    def __init__(self, clock: Callable[[], float], say: Say, every_s: float = EVERY_S) -> None:
        self._clock = clock
        self._say = say
        self._every_s = every_s
        self._kinds: dict[str, _Kind] = {}

    def happened(self, kind: str, latest: str = "", one: str = "") -> None:
        """Count one event, and log it if it is the first of its kind.

        kind: line with {} for the count.
        latest: client concerned; it is appended to the line.
        one: line to log instead if the count is 1.
        """
        found = self._kinds.get(kind)
        if found is None and len(self._kinds) >= MAX_KINDS:
            kind = OTHERS
            found = self._kinds.get(kind)
        if found is None:
            self._kinds[kind] = _Kind(self._clock())
            self._tell(kind, 1, latest, one)
            return
        found.count += 1
        found.latest = latest
        found.one = one

    def sweep(self) -> None:
        """Log the counts that are due. The caller calls it regularly, also without new events."""
        now = self._clock()
        for kind, found in list(self._kinds.items()):
            if now - found.said_at < self._every_s:
                continue
            if not found.count:
                del self._kinds[kind]  # the next event of this kind is logged at once
                continue
            self._tell(kind, found.count, found.latest, found.one)
            found.said_at = now
            found.count = 0

    def _tell(self, kind: str, count: int, latest: str, one: str) -> None:
        line = kind.replace("{}", f"{count:,}")
        if latest:
            line += f" (the latest: {latest})"
        if one and count == 1:
            line = one
        fields: dict[str, object] = {"kind": kind, "count": count}
        if latest:
            fields["client"] = latest
        self._say(line, fields)
