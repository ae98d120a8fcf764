"""The waits of a client's unread requests: each wait, what ends it, which part sets it.

    wait         ends when                                                   set by
    NOTHING      (nothing is waited for)                                     all of them
    ROOM         half of this client's unanswered hits are answered          router
    EMPTY        lanes owe nothing, nor does the private connection if it    router, session
                 matters: for a hit with WAIT, RL.STATS and the like, an
                 AUTH, a command WAIT behind EXEC, a request that a hit by
                 EVALSHA must not meet
    OPEN         the private connection is open, or has failed               router
    TICK         its turn in the next tick: the budget is spent              router, session
    HELD         the held hit is answered                                    router
    READ         the client reads its replies again                          session
    HANDSHAKE    Redis has accepted the deferred handshake                   private stream

An event of the left column may end the waits of the right one. Those named with a condition above
stay while it does not hold.

    lane or private replied, hits late   ENDED_BY_REPLIES
    private replied                      HANDSHAKE
    private opened or failed             OPEN
    client's bytes, the circuit is open  OPEN
    tick                                 TICK
    client reads its replies again       READ
    held hit answered                    HELD
    client's end of file                 ENDED_BY_REPLIES, HELD
    private lost                         all: the session closes

CLOSE never ends: no further request of the client is taken.
"""

from __future__ import annotations

from typing import Final

NOTHING: Final = 0
ROOM: Final = 1
EMPTY: Final = 2
OPEN: Final = 4
TICK: Final = 8
HELD: Final = 16
READ: Final = 32
HANDSHAKE: Final = 64
CLOSE: Final = 128

ENDED_BY_REPLIES: Final = ROOM | EMPTY
# Waits that have no bound: the hits behind them are answered after the hit timeout.
TIMED: Final = OPEN | HANDSHAKE
