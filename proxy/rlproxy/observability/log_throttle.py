"""The log throttles: of events that repeat, and of a state that changes.

The first event of a kind is logged at once, further ones as a count every few seconds. A state is
logged when it is another one, not before the same time has passed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Final

EVERY_S: Final = 10.0  # shortest time between two lines of one kind, or state, in seconds
MAX_KINDS: Final = 64  # kinds that are counted apart; further ones are counted together
_OTHERS: Final = "more_repeats"

Write = Callable[..., object]  # logs an event, a text and fields; see logs.log


@dataclass(slots=True)
class _Kind:
    event: str
    text: str
    fields: dict[str, object]
    logged_at: float
    count: int = 0  # events since `logged_at`
    client: str = ""


class LogThrottle:
    """The throttle of repeated events: for each kind, one line per EVERY_S.

    clock: returns seconds.
    write: logs a line, with the fields `count` and, if known, `client` before the event's own.

    Events with the same name, text and fields are of one kind.
    """

    def __init__(self, clock: Callable[[], float], write: Write) -> None:
        self._clock = clock
        self._write = write
        self._kinds: dict[tuple[object, ...], _Kind] = {}

    def happened(self, event: str, text: str, *, client: str = "", **fields: object) -> None:
        """Count one event, and log it if it is the first of its kind.

        event: stable name.
        text: sentence, in the form of str.format(), with {count}.
        client: client concerned; it is appended to the sentence.
        """
        key = (event, text, *fields.values())
        kind = self._kinds.get(key)
        first = kind is None
        if kind is None:
            if len(self._kinds) >= MAX_KINDS and event != _OTHERS:
                self.happened(_OTHERS, "{count:,} more of other kinds", client=client)
                return
            kind = self._kinds[key] = _Kind(event, text, fields, self._clock())
        kind.count += 1
        kind.client = client
        if first:
            self._log(kind)

    def sweep(self) -> None:
        """Log the counts that are due. The caller calls it regularly, also without new events."""
        now = self._clock()
        for key, kind in list(self._kinds.items()):
            if now - kind.logged_at < EVERY_S:
                continue
            if not kind.count:
                del self._kinds[key]  # the next event of this kind is logged at once
                continue
            kind.logged_at = now
            self._log(kind)

    def _log(self, kind: _Kind) -> None:
        text = kind.text
        fields: dict[str, object] = {"count": kind.count}
        if kind.client:
            fields["client"] = kind.client
            text += " (the latest: {client})"
        self._write(kind.event, text, **fields, **kind.fields)
        kind.count = 0


class StateThrottle:
    """The throttle of a state, which a text describes; empty at first. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._logged = ""
        self._logged_at = -inf

    def due(self, state: str) -> bool:
        """Return whether to log `state` now, and record it as logged if so.

        That is due if another one was logged last, at least EVERY_S ago.
        """
        now = self._clock()
        if state == self._logged or now - self._logged_at < EVERY_S:
            return False
        self._logged = state
        self._logged_at = now
        return True
