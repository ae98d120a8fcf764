"""The password probe: whether Redis' default user needs a password."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import hiredis

from rlproxy.upstream.backoff import pause
from rlproxy.upstream.connector import Target
from rlproxy.upstream.query_connection import opened

PROBE_S: Final = 2.0  # seconds between checks
REPLY_S: Final = 5.0  # limit for the reply to a check, in seconds
# The reply, and first words of errors, that Redis sends only after it has checked the password.
_LET_IN: Final = (b"PONG", "NOPERM", "LOADING", "BUSY", "MASTERDOWN", "MISCONF")


class Probe:
    """Checks every PROBE_S seconds whether Redis' default user needs a password.

    wanted: whether to check at all, called before each check.
    judged: called with the result. It is not called after a check without a clear result.
    """

    def __init__(
        self, target: Target, wanted: Callable[[], bool], judged: Callable[[bool], None]
    ) -> None:
        self._target = target
        self._wanted = wanted
        self._judged = judged
        self._soon = asyncio.Event()
        self.settled = asyncio.Event()  # set after the first check, whatever its result

    def soon(self) -> None:
        """Check again now rather than at the next regular time."""
        self._soon.set()

    async def run(self) -> None:
        """Check at regular times, until cancelled."""
        while True:
            self._soon.clear()
            needs = await self._check() if self._wanted() else None
            if needs is not None:
                self._judged(needs)
            self.settled.set()
            await pause(PROBE_S, self._soon)

    async def _check(self) -> bool | None:
        """Send a PING without AUTH. Returns None if the reply allows no conclusion."""
        try:
            async with opened(self._target, REPLY_S) as connection:
                reply = await connection.query(b"PING")
        except OSError:  # includes TimeoutError
            return None
        word = str(reply).partition(" ")[0] if isinstance(reply, hiredis.ReplyError) else reply
        if word == "NOAUTH":
            return True
        return False if word in _LET_IN else None
