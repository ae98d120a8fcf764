"""budget: the share of each backlogged client, and the work of one tick."""

from __future__ import annotations

import pytest
from rlproxy.fairness.budget import LEAST_HITS, TICK_WORK, Budget


@pytest.mark.parametrize("others", [0, 1, 7, 1000])
def test_a_client_without_a_backlog_has_the_hits_of_one_client(others: int) -> None:
    budget = Budget(64)
    budget.backlogged = others
    assert budget.hits(False) == 64


@pytest.mark.parametrize(
    ("max_client_hits", "backlogged", "hits"),
    [
        (64, 1, 64),  # no client to share with
        (64, 2, 32),
        (64, 3, 21),
        (64, 31, 2),
        (64, 33, LEAST_HITS),
        (64, 10_000, LEAST_HITS),
        (3, 2, LEAST_HITS),
        (1, 1, 1),
        (1, 2, 1),  # never more than --max-client-hits
        (1000, 4, 250),
    ],
)
def test_backlogged_clients_share_the_hits_of_one(
    max_client_hits: int, backlogged: int, hits: int
) -> None:
    budget = Budget(max_client_hits)
    budget.backlogged = backlogged
    assert budget.hits(True) == hits


def test_the_shares_of_all_backlogged_clients_are_at_most_the_hits_of_one() -> None:
    budget = Budget(64)
    for count in range(1, 64 // LEAST_HITS + 1):
        budget.backlogged = count
        assert 64 - count < count * budget.hits(True) <= 64


def test_the_work_of_a_tick_is_spent() -> None:
    budget = Budget(64)
    assert not budget.spent()
    budget.work = TICK_WORK - 1
    assert not budget.spent()
    budget.work += 1
    assert budget.spent()
    budget.work = 0
    assert not budget.spent()
