"""The outcomes of RL commands that are counted, and the row of the counters for each."""

from __future__ import annotations

from typing import Final

from rlproxy.ratelimit.algorithms import ALGORITHMS

# The outcomes of a hit: offsets into the row of its algorithm.
ADMITTED: Final = 0
REFUSED: Final = 1
REFUSED_LOCALLY: Final = 2  # refused by the denial cache, without Redis
FAILED_OPEN: Final = 3  # admitted because Redis did not reply; see --on-upstream-failure
FAILED_CLOSED: Final = 4  # refused because Redis did not reply; see --on-upstream-failure
FAILED: Final = 5  # error reply to the client
UNSEEN: Final = 6  # outcome unknown: in a transaction, or where replies cannot be matched
OUTCOMES: Final = (
    "admitted",
    "refused",
    "refused_locally",
    "failed_open",
    "failed_closed",
    "failed",
    "unseen",
)
WIDTH: Final = 7  # number of outcomes, the length of a row

# Answered RL commands that are not hits.
PEEK: Final = 0
REFUND: Final = 1
RESET: Final = 2
BLOCK: Final = 3
HELP: Final = 4
STATS: Final = 5
TOP: Final = 6
CALLS: Final = ("peek", "refund", "reset", "block", "help", "stats", "top")

# The ends of a wait, for hits with WAIT that were not admitted at once.
WAIT_ADMITTED: Final = 0
WAIT_REFUSED: Final = 1
WAIT_LEFT: Final = 2  # the client disconnected, or Redis did not reply
WAITS: Final = ("admitted", "refused", "left")

# Rows: that of its algorithm for a hit (see row_of), OTHERS and below for other RL commands.
NO_ROW: Final = -1  # not counted
OTHERS: Final = -2  # row of the first of CALLS; the next ones count down


def other(call: int) -> int:
    """Return the row of `call`, an index of CALLS."""
    return OTHERS - call


ROWS: Final = {name: number * WIDTH for number, name in enumerate(ALGORITHMS)}


def row_of(algorithm: bytes) -> int:
    """Return the index in Counters.hits at which the outcomes of `algorithm` begin."""
    return ROWS[algorithm]
