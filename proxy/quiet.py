"""What is logged of things that anybody can cause as often as they like: the first one at once, and
then a count at most every few seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

EVERY_S: Final = 10.0
MAX_KINDS: Final = 64  # told apart at a time; further ones are counted together
OTHERS: Final = "{} more of other kinds"


class _Kind:
    __slots__ = ("count", "latest", "one", "said_at")

    def __init__(self, said_at: float) -> None:
        self.said_at = said_at
        self.count = 0  # since then
        self.latest = ""
        self.one = ""


class Repeats:
    """Says what happened, through `say`, at most once in `every_s` seconds for each kind.

    A kind is the line itself with {} for the count: "turned away {} client(s): no room".
    """

    def __init__(
        self, clock: Callable[[], float], say: Callable[[str], None], every_s: float = EVERY_S
    ) -> None:
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
            self._say(one or _line(kind, 1, latest))
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
            alone = found.one if found.count == 1 else ""
            self._say(alone or _line(kind, found.count, found.latest))
            found.said_at = now
            found.count = 0


def _line(kind: str, count: int, latest: str) -> str:
    line = kind.replace("{}", f"{count:,}")
    return f"{line} (the latest: {latest})" if latest else line
