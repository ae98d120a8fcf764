"""The links that clients no longer use: closed after a while, except the home node's."""

from __future__ import annotations

from typing import Final

from rlproxy.upstream.cluster.exchange import Exchange

# A master drops replicas that are silent for 60 s (repl-timeout), so that those which a later WAIT
# counts have received what the closed link wrote.
IDLE_S: Final = 60.0  # seconds without a command after which a link is closed
LOOK_S: Final = 10.0  # seconds between two looks at one client
SHARE: Final = 8  # sweeps that together look at all clients


class IdleLinks:
    """The sweep over the links of the clients of one worker, which are in `exchanges`."""

    __slots__ = ("_exchanges", "_next_at", "_round", "_step")

    def __init__(self, exchanges: set[Exchange]) -> None:
        self._exchanges = exchanges
        self._round: list[Exchange] = []  # clients that the next sweeps look at
        self._step: int = 0  # clients that one sweep looks at
        self._next_at: float = 0.0  # loop time from which the next round may begin

    def sweep(self, now: float) -> None:
        """Close the links that have been idle for IDLE_S. To be called about once a second.

        now: loop time in seconds.
        """
        if not self._round:
            if now < self._next_at:
                return
            self._next_at = now + LOOK_S
            self._round = list(self._exchanges)
            self._step = len(self._round) // SHARE + 1
        rest = max(0, len(self._round) - self._step)
        for exchange in self._round[rest:]:
            close_idle(exchange, now)
        del self._round[rest:]


def close_idle(exchange: Exchange, now: float) -> None:
    """Close the idle links of one client."""
    if len(exchange.links) < 2:
        return
    for link in list(exchange.links.values()):
        if link.used or not link.quiescent():
            link.used = False
            link.used_at = now
            continue
        unused = now - link.used_at >= IDLE_S and not exchange.is_home(link)
        if unused and not exchange.holds_state(link):
            exchange.forget(link)
