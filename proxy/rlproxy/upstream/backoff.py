"""The pauses between attempts to reach a server: how long they are, and what ends them."""

from __future__ import annotations

import asyncio
import random


class Backoff:
    """Pauses between attempts, doubled each time from `first_s` to `most_s`.

    Each is shortened at random by up to a half. So clients that lost the same server do not all
    come back at once.
    """

    def __init__(self, first_s: float, most_s: float) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._next_s = first_s

    def pause_s(self) -> float:
        """Return the next pause in seconds."""
        pause = self._next_s
        self._next_s = min(2 * pause, self._most_s)
        return pause * (1.0 - random.random() / 2)  # noqa: S311

    def reset(self) -> None:
        """Start again at the first pause, after a success."""
        self._next_s = self._first_s


async def pause(most_s: float, *events: asyncio.Event) -> None:
    """Return when one of `events` is set, at the latest after `most_s` seconds."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=most_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
