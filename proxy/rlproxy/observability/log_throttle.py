"""The log throttle: of an event that clients can cause at will, the first is logged at once, then
a count at most every few seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

EVERY_S: Final = 10.0
MAX_KINDS: Final = 64  # told apart at a time; further ones are counted together
OTHERS: Final = "{} more of other kinds"

Say = Callable[[str, Mapping[str, object]], None]  # a line, and what a machine reads instead of it


class _Kind:
    __slots__ = ("count", "latest", "one", "said_at")

    def __init__(self, said_at: float) -> None:
        self.said_at = said_at
        self.count = 0  # since then
        self.latest = ""
        self.one = ""


class LogThrottle:
    """Says what happened, through `say`, at most once in `every_s` seconds for each kind.

    A kind is the line itself with {} for the count: "turned away {} client(s): no room". With the
    line `say` gets the fields `kind`, `count` and, where somebody is told of, `client`.
    """

    def __init__(self, clock: Callable[[], float], say: Say, every_s: float = EVERY_S) -> None:
        self._clock = clock
        self._say = say
        self._every_s = every_s
        self._kinds: dict[str, _Kind] = {}

    def happened(self, kind: str, latest: str = "", one: str = "") -> None:
        """It happened once (more); `latest` tells to whom, and stands behind the line. `one` is
        the line instead where it is told of this event alone.
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
        """Say what is due. To be called now and then, also when nothing happens any more."""
        now = self._clock()
        for kind, found in list(self._kinds.items()):
            if now - found.said_at < self._every_s:
                continue
            if not found.count:
                del self._kinds[kind]  # the next one is a first one
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
