"""window: how many hits of long pipelines are on their way, and whose turn it is."""

from __future__ import annotations

from rlproxy.fairness.concurrency_limit import ALONE_S, LATELY_S, LEAST, TURNS, ConcurrencyLimit

MOST = 64
MINE, OTHER = object(), object()
NEAR_S = 0.00006
FAR_S = 0.01


def window(most: int = MOST) -> ConcurrencyLimit:
    """One that others are there for, at the time 0."""
    made = ConcurrencyLimit(most)
    made.latest = OTHER
    made.others_at = 0.0
    return made


def narrow(of: ConcurrencyLimit, trips: int, seconds: float) -> int:
    """What it is after so many round trips of so many seconds."""
    for _ in range(trips):
        of.took(seconds, 0.0)
    return of.hits(MINE, 0.0)


def test_who_is_alone_need_not_share() -> None:
    assert ConcurrencyLimit(MOST).hits(MINE, 1000.0) == MOST
    found = window()
    assert found.hits(MINE, ALONE_S) == LEAST
    assert found.hits(MINE, ALONE_S + 0.001) == MOST
    assert found.hits(OTHER, 0.0) == MOST  # whose own word is the latest
    found.latest = None  # it has gone since
    assert found.hits(MINE, 0.0) == LEAST


def test_it_grows_while_the_queue_is_short_and_shrinks_when_it_is_long() -> None:
    found = window()
    assert narrow(found, 20, NEAR_S) == LEAST + 20
    assert narrow(found, 1, NEAR_S + 0.0002) == int(0.75 * (LEAST + 20))
    assert narrow(found, 100, NEAR_S + 0.0002) == LEAST
    assert narrow(found, 1000, NEAR_S) == MOST


def test_a_far_server_has_more_on_its_way() -> None:
    """What it takes longer is measured by what it takes at the least."""
    found = window()
    narrow(found, 1, FAR_S)
    assert narrow(found, 100, FAR_S * 1.4) == MOST
    assert narrow(found, 1, FAR_S * 1.6) < MOST


def test_the_shortest_one_is_forgotten_in_time() -> None:
    """A server that has moved away is not taken for a busy one for ever."""
    found = window()
    found.took(NEAR_S, 0.0)
    for step in range(1, 4):
        found.took(FAR_S, step * (LATELY_S + 0.1))
    assert found.hits(MINE, 0.0) > LEAST


def test_who_may_have_few_at_all_has_no_more_by_this() -> None:
    found = window(3)
    assert found.hits(MINE, 0.0) == 3
    assert narrow(found, 10, NEAR_S) == 3
    assert narrow(found, 10, FAR_S) == 3


def test_turns_go_round() -> None:
    found = window()
    had: list[int] = []

    def turn(number: int, takes: bool = True) -> bool:
        had.append(number)
        return takes

    assert all(found.enter(lambda: False) for _ in range(TURNS))
    assert not found.crowded()
    for number, takes in enumerate([True, False, True]):
        assert not found.enter(lambda n=number, t=takes: turn(n, t))  # type: ignore[misc]
    assert found.crowded()
    found.leave()
    assert had == [0]
    found.leave()
    assert had == [0, 1, 2]  # (one did not want it any more)
    assert not found.crowded()
    for _ in range(TURNS):
        found.leave()
    assert found.enter(lambda: False)
