"""The waits of a client's unread requests: each wait, what ends it, which part sets it.

    wait             ends when                                                   set by
    WAIT_NOTHING     (nothing is waited for)                                     all of them
    WAIT_ROOM        half of this client's unanswered hits are answered          router
    WAIT_EMPTY       lanes owe nothing, nor does the private connection if it    router, session
                     matters: for a hit with WAIT, RL.STATS and the like, an
                     AUTH, a command WAIT behind EXEC, a request that a hit by
                     EVALSHA must not meet
    WAIT_OPEN        the private connection is open, or has failed               router
    WAIT_TICK        its turn in the next tick: the budget is spent              router, session
    WAIT_HELD        the held hit is answered                                    router
    WAIT_READ        the client reads its replies again                          session
    WAIT_HANDSHAKE   Redis has accepted the deferred handshake                   private stream

An event of the left column may end the waits of the right one. Those named with a condition above
stay while it does not hold.

    lane or private replied, hits late   ENDED_BY_REPLIES
    private replied                      WAIT_HANDSHAKE
    private opened or failed             WAIT_OPEN
    client's bytes, the circuit is open  WAIT_OPEN
    tick                                 WAIT_TICK
    client reads its replies again       WAIT_READ
    held hit answered                    WAIT_HELD
    client's end of file                 ENDED_BY_REPLIES, WAIT_HELD
    private lost                         all: the session closes

CLOSE never ends: no further request of the client is taken.
"""

from __future__ import annotations

from typing import Final

WAIT_NOTHING: Final = 0
WAIT_ROOM: Final = 1
WAIT_EMPTY: Final = 2
WAIT_OPEN: Final = 4
WAIT_TICK: Final = 8
WAIT_HELD: Final = 16
WAIT_READ: Final = 32
WAIT_HANDSHAKE: Final = 64
CLOSE: Final = 128

ENDED_BY_REPLIES: Final = WAIT_ROOM | WAIT_EMPTY
# Waits that have no bound: the hits behind them are answered after the hit timeout.
TIMED: Final = WAIT_OPEN | WAIT_HANDSHAKE
