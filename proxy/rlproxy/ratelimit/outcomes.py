"""The outcomes of RL commands that are counted, and the row of the counters for each."""

from __future__ import annotations

from typing import Final

from rlproxy.ratelimit.algorithms import ALGORITHMS

# What became of a hit.
ADMITTED: Final = 0
REFUSED: Final = 1
REFUSED_LOCALLY: Final = 2  # by the denial cache: Redis was not asked
FAILED_OPEN: Final = 3  # Redis did not answer: admitted, see --on-upstream-failure
FAILED_CLOSED: Final = 4  # likewise, refused
FAILED: Final = 5  # its client got an error
UNSEEN: Final = 6  # in a transaction, or where replies can't be told apart
OUTCOMES: Final = (
    "admitted",
    "refused",
    "refused_locally",
    "failed_open",
    "failed_closed",
    "failed",
    "unseen",
)
WIDTH: Final = 7

# Other commands of the family that were answered.
PEEK: Final = 0
REFUND: Final = 1
RESET: Final = 2
HELP: Final = 3
STATS: Final = 4
TOP: Final = 5
CALLS: Final = ("peek", "refund", "reset", "help", "stats", "top")

# What became of hits with WAIT that had to wait.
WAIT_ADMITTED: Final = 0
WAIT_REFUSED: Final = 1
WAIT_LEFT: Final = 2  # its client went, or Redis did not answer
WAITS: Final = ("admitted", "refused", "left")

# Where a call is counted: in the row of its algorithm if it is a hit (see row_of), or as another
# call of the family.
NO_ROW: Final = -1
OTHERS: Final = -2  # and below: this minus the number in CALLS


def other(call: int) -> int:
    """The row of one of CALLS."""
    return OTHERS - call


ROWS: Final = {name: number * WIDTH for number, name in enumerate(ALGORITHMS)}


def row_of(algorithm: bytes) -> int:
    """Where the outcomes of hits by `algorithm` begin in Counters.hits."""
    return ROWS[algorithm]
