"""The waits of a client's unread requests: each wait, what ends it, which part sets it.

    wait         ends when                                                   set by
    NOTHING      (nothing is waited for)                                     all of them
    ROOM         half of this client's unanswered hits are answered          router
    EMPTY        lanes owe nothing, nor does the private connection if it    router, session
                 matters: for a hit with WAIT, RL.STATS and the like, an
                 AUTH, a command WAIT behind EXEC, a request that a hit by
                 EVALSHA must not meet
    OPEN         the private connection is open and has logged in, or has    fail open
                 failed
    TICK         its turn in the next tick: the budget is spent              router, session
    HELD         the held hit is answered                                    router
    READ         the client reads its replies again                          session

An event of the left column may end the waits of the right one. Those named with a condition above
stay while it does not hold.

    lane or private replied, hits late   ENDED_BY_REPLIES
    private logged in or failed          OPEN
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
CLOSE: Final = 64

ENDED_BY_REPLIES: Final = ROOM | EMPTY
