"""The outcomes of RL commands that are counted, and the row of the counters for each."""

from __future__ import annotations

from typing import Final

from rlproxy.ratelimit.algorithms import ALGORITHMS

# The outcomes of a hit: offsets into its row.
ADMITTED: Final = 0
REFUSED: Final = 1
REFUSED_LOCALLY: Final = 2  # refused by the denial cache, without Redis
FAILED_OPEN: Final = 3  # admitted because Redis did not reply; see --on-upstream-failure
FAILED_CLOSED: Final = 4  # refused because Redis did not reply; see --on-upstream-failure
FAILED: Final = 5  # error reply to the client
UNSEEN: Final = 6  # outcome unknown: in a transaction, or where replies cannot be matched
SHADOW_REFUSED: Final = 7  # of by_outcome() only: a row of hits in shadow has REFUSED
OUTCOMES: Final = (
    "admitted",
    "refused",
    "refused_locally",
    "failed_open",
    "failed_closed",
    "failed",
    "unseen",
    "shadow_refused",  # would have been refused, and was answered as admitted
)
WIDTH: Final = 7  # length of a row
PAIR: Final = 2 * WIDTH  # length of a pair: the row of enforced hits, then that of shadow hits

# Answered RL commands that are not hits.
PEEK: Final = 0
REFUND: Final = 1
RESET: Final = 2
BLOCK: Final = 3
HELP: Final = 4
STATS: Final = 5
TOP: Final = 6
POLICIES: Final = 7
CALLS: Final = ("peek", "refund", "reset", "block", "help", "stats", "top", "policies")

# How a wait ends, of hits with WAIT that were not admitted at once. It is left when the client
# disconnects, or Redis does not reply.
WAITS: Final = ("admitted", "refused", "left")

# Rows: that of its algorithm for a hit (see ROWS), or that of its policy; OTHERS and below for
# other RL commands.
NO_ROW: Final = -1  # not counted
OTHERS: Final = -2  # row of the first of CALLS; the next ones count down
SHADOW_PEEK: Final = -100  # a hit with COST 0 under shadow: counted as PEEK


def other(call: int) -> int:
    """Return the row of `call`, an index of CALLS."""
    return OTHERS - call


# The index in Counters.hits at which the pair of each algorithm begins.
ROWS: Final = {name: number * PAIR for number, name in enumerate(ALGORITHMS)}


def shadow(row: int) -> bool:
    """Return whether hits that count in `row` are answered as admitted when they are refused."""
    return (row // WIDTH) & 1 == 1 if row >= 0 else row == SHADOW_PEEK


def by_outcome(hits: list[int], row: int) -> list[int]:
    """Return the hits of the pair that begins at `row`, in the order of OUTCOMES."""
    other = row + WIDTH
    found = [hits[row + outcome] + hits[other + outcome] for outcome in range(WIDTH)]
    found[REFUSED] = hits[row + REFUSED]
    found[REFUSED_LOCALLY] = hits[row + REFUSED_LOCALLY]
    return [*found, hits[other + REFUSED] + hits[other + REFUSED_LOCALLY]]
