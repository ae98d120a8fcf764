"""overtaking: hits without WAIT do not overtake those that wait on their key."""

from __future__ import annotations

import pytest
from rlproxy.ratelimit.grammar import Rule
from rlproxy.ratelimit.hit_replies import integers
from rlproxy.ratelimit.wait_queue import WaitQueues
from rlproxy.session import overtaking
from rlproxy.session.call import Call, Caller

from tests.unit.ratelimit.test_wait_queue import Clock, script_reply
from tests.unit.session.parts import call_of, rule

KEY = b"$1\r\nk\r\n"
ROOM = script_reply(0, 10, 4, -1, 1_000_000)  # a peek that found room
FULL = script_reply(1, 10, 0, 2_500_000, 9_000_000)


class Queue:
    """The wait queues with one hit that waits on k in database 0.

    asked: rules that it has sent.
    """

    def __init__(self, refused: bool = True) -> None:
        self.clock = Clock()
        self.waiting = WaitQueues(self.clock.time, self.clock.call_at)
        self.asked: list[Rule] = []
        waiter = self.waiting.join(
            (0, KEY), rule(b"10 60 WAIT 50"), self.asked.append, self._end, _nothing, _nothing
        )
        waiter.start()
        if refused:
            waiter.answered(script_reply(1, 10, 0, 5_000_000, 9_000_000))

    def _end(self, reply: bytes) -> None:
        raise AssertionError(reply)


def _nothing() -> None:
    return


def reset_of(caller: Caller, key: bytes = KEY) -> Call:
    """Return the call of RL.RESET on `key`."""
    freeing = Rule()
    freeing.frees = True
    return Call(caller, freeing, key)


@pytest.mark.parametrize(
    ("refused", "key", "db", "peeks"),
    [
        (True, b"k", 0, True),
        (True, b"other", 0, False),
        (True, b"k", 1, False),
        (False, b"k", 0, False),  # Redis has not refused the waiting hit
    ],
)
def test_a_hit_behind_a_refused_one_of_its_key_peeks(
    refused: bool, key: bytes, db: int, peeks: bool
) -> None:
    queue = Queue(refused)
    call = call_of(Caller(), key)
    before = call.rule
    overtaking.fall_in(call, queue.waiting, db)
    assert overtaking.concerns(call, queue.waiting) == peeks
    if peeks:
        assert call.behind is before
        assert call.rule is before.peek()
        assert not call.rule.takes
    else:
        assert call.behind is None
        assert call.rule is before


def test_a_call_that_frees_concerns_those_that_wait() -> None:
    queue = Queue()
    assert overtaking.concerns(reset_of(Caller()), queue.waiting)
    nobody = WaitQueues(queue.clock.time, queue.clock.call_at)
    assert not overtaking.concerns(reset_of(Caller()), nobody)


def behind(queue: Queue) -> Call:
    call = call_of(Caller())
    overtaking.fall_in(call, queue.waiting, 0)
    assert call.behind is not None
    return call


def test_a_peek_with_room_is_refused_with_the_time_of_those_before_it() -> None:
    queue = Queue()
    reply = overtaking.edited(behind(queue), ROOM, queue.waiting, 0)
    assert integers(reply) == [1, 10, 0, 5, 1]


def test_a_peek_without_room_is_refused_with_the_longer_time() -> None:
    queue = Queue()
    long = script_reply(1, 10, 0, 30_000_000, 9_000_000)
    assert integers(overtaking.edited(behind(queue), FULL, queue.waiting, 0))[3] == 5
    assert integers(overtaking.edited(behind(queue), long, queue.waiting, 0))[3] == 30


def test_an_error_is_passed_on_without_the_name_of_the_script() -> None:
    queue = Queue()
    dirty = b"-OOM no script: " + b"0" * 40 + b", on @user_script:1.\r\n"
    assert overtaking.edited(behind(queue), dirty, queue.waiting, 0) == b"-OOM no\r\n"


def test_a_reset_lets_those_that_wait_try_again() -> None:
    queue = Queue()
    queue.clock.now += 1
    attempts = len(queue.asked)
    assert overtaking.edited(reset_of(Caller()), b":1\r\n", queue.waiting, 0) == b":1\r\n"
    assert len(queue.asked) == attempts + 1


@pytest.mark.parametrize(("db", "reply", "tries"), [(1, b":1\r\n", 0), (0, b"-NOPERM no\r\n", 0)])
def test_a_reset_elsewhere_or_refused_frees_nothing(db: int, reply: bytes, tries: int) -> None:
    queue = Queue()
    queue.clock.now += 1
    attempts = len(queue.asked)
    overtaking.edited(reset_of(Caller()), reply, queue.waiting, db)
    assert len(queue.asked) == attempts + tries


def test_a_reset_of_several_keys_frees_each() -> None:
    queue = Queue()
    queue.clock.now += 1
    call = reset_of(Caller(), b"$5\r\nother\r\n")
    call.others = [KEY]
    attempts = len(queue.asked)
    overtaking.edited(call, b":2\r\n", queue.waiting, 0)
    assert len(queue.asked) == attempts + 1
