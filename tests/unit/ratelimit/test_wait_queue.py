"""Wait queue: the time of each call and each reply, with the clock, timers and Redis under the
test's control.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rlproxy.ratelimit import scripts
from rlproxy.ratelimit.grammar import Grammar, Rule
from rlproxy.ratelimit.hit_replies import integers
from rlproxy.ratelimit.wait_queue import (
    KEEP_S,
    LONGEST_PAUSE_S,
    MAX_WAITING,
    WAKE_S,
    Waiter,
    WaitQueues,
    Where,
)

from tests.clock import Clock

GRAMMAR = Grammar(scripts.load())
KEY: Where = (0, b"$1\r\nk\r\n")
ERRORS = [
    b"-NOPERM no\r\n",
    b"-UPSTREAMDOWN the connection to Redis was lost before it answered\r\n",
    b"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n",
    b"-LOADING Redis is loading the dataset in memory\r\n",
]


def rule(text: str) -> Rule:
    """RL.HIT k `text`."""
    made = GRAMMAR.rule(text.encode(), b"RL.HIT", [b"k", *text.encode().split()])
    assert not made.error, made.error
    return made


def script_reply(*numbers: int) -> bytes:
    """A script's reply."""
    return b"*%d\r\n" % len(numbers) + b"".join(b":%d\r\n" % number for number in numbers)


ADMITTED = script_reply(0, 10, 4, -1, 1_000_000)


def refused(retry_us: int, reset_us: int = 9_000_000) -> bytes:
    return script_reply(1, 10, 0, retry_us, reset_us)


def _nothing(_: object = None) -> None:
    return


class Bench:
    def __init__(self) -> None:
        self.clock = Clock()
        self.waiting = WaitQueues(self.clock.time, self.clock.call_at)
        self.clients: list[Client] = []

    def wait(self, text: str, where: Where = KEY) -> Client:
        """RL.HIT k `text` of a new client."""
        made = Client(self, rule(text), where)
        self.clients.append(made)
        return made

    def calling(self) -> list[Client]:
        return [client for client in self.clients if client.call]

    def needs_us(self) -> int:
        return self.waiting.queue(KEY).needs_us(self.clock.now)

    def empty(self) -> bool:
        """Whether the queue holds nothing."""
        return self.waiting.count == 0 and not self.clock.live() and not self.waiting.blocks(KEY)


@pytest.fixture
def bench() -> Bench:
    return Bench()


class Client:
    """A waiting client: records its calls and its replies."""

    def __init__(self, bench: Bench, made: Rule, where: Where) -> None:
        self.rule = made
        self.where = where
        self.call = ""  # in flight
        self.calls: list[str] = []
        self.left_us = 0  # WAIT of its latest call, where it is less than that of its rule
        self.replies: list[bytes] = []
        self.events_at_flush = 0  # the number of calls and replies at its last flush
        self.kept: list[float] = []  # the times at which its connection was kept alive
        keep = lambda: self.kept.append(bench.clock.now)  # noqa: E731
        end, flush = self.replies.append, self._flush
        self.waiter = Waiter(bench.waiting, where, made, self._call, end, flush, keep)
        self.waiter.start()

    def _call(self, asked: Rule) -> None:
        assert not self.call, "one question at a time"
        ways = {"peek": Rule.peek, "attempt": Rule.attempt, "final": Rule.in_microseconds}
        for name, way in ways.items():
            if asked is way(self.rule):
                self.call = name
        limiter, whole = asked.limiter, self.rule.limiter
        assert limiter is not None and whole is not None
        if not self.call:  # a shaped hit that has waited
            assert limiter.wait_us <= whole.wait_us
            self.left_us = limiter.wait_us
            self.call = "final" if limiter.penalty_us else "attempt" if asked.takes else "peek"
        assert limiter.unit_us == 1
        self.calls.append(self.call)

    def _flush(self) -> None:
        self.events_at_flush = len(self.calls) + len(self.replies)

    def answer(self, frame: bytes) -> None:
        """Deliver Redis' reply to its call."""
        assert self.call
        self.call = ""
        self.waiter.answered(frame)

    def lose(self) -> None:
        """Report that its call was never sent."""
        assert self.call
        self.call = ""
        self.waiter.unsent()

    def flush_all(self) -> bool:
        return self.events_at_flush == len(self.calls) + len(self.replies)


def reply(client: Client) -> list[int]:
    """Return a client's only reply."""
    assert len(client.replies) == 1, client.replies
    return integers(client.replies[0])


# -- alone -----------------------------------------------------------------------------------------


def test_waiting_hit_sleeps_for_retry_after_and_calls_again(bench: Bench) -> None:
    one = bench.wait("10 1 WAIT 5")
    bench.clock.advance(0.3)  # in transit: the wait counts from the arrival of the reply
    one.answer(refused(400_000))
    assert bench.waiting.blocks(KEY)
    bench.clock.advance(0.399)
    assert one.calls == ["attempt"]
    bench.clock.advance(0.001)
    assert one.calls == ["attempt", "attempt"]
    assert one.flush_all()
    one.answer(refused(200_000))  # another proxy was faster
    bench.clock.advance(0.2)
    one.answer(ADMITTED)
    assert one.calls == ["attempt"] * 3
    assert reply(one)[0] == 0
    assert bench.empty()


@pytest.mark.parametrize(
    ("text", "retry_us", "expected"),
    [
        ("10 9 WAIT 5", 5_000_001, 6),
        ("10 9 WAIT 5 MS", 5_001, 6),
        ("10 9 WAIT 0.001", 1_001, 1),
        ("10 9 WAIT 3600", 3_600_000_001, 3601),
    ],
)
def test_hit_is_refused_at_once_if_retry_after_exceeds_its_wait(
    bench: Bench, text: str, retry_us: int, expected: int
) -> None:
    one = bench.wait(text)
    one.answer(refused(retry_us))
    assert reply(one) == [1, 10, 0, expected, 9 if "MS" not in text else 9000]
    assert one.calls == ["attempt"]
    assert bench.empty()


def test_hit_is_refused_when_its_time_is_over(bench: Bench) -> None:
    one = bench.wait("10 1 WAIT 5")
    one.answer(refused(4_000_000))
    bench.clock.advance(4)
    one.answer(refused(2_500_000))  # the wait has become longer: that is no reason to refuse it
    assert one.replies == []
    bench.clock.advance(0.999)
    assert one.calls == ["attempt"] * 2
    bench.clock.advance(0.001)
    assert one.call == "final"
    one.answer(refused(1_500_000))
    assert reply(one) == [1, 10, 0, 2, 9]
    assert bench.empty()


@pytest.mark.parametrize("frame", ERRORS)
def test_error_is_the_reply_at_any_call(bench: Bench, frame: bytes) -> None:
    one = bench.wait("10 1 WAIT 5")
    one.answer(frame)
    assert one.replies == [frame]
    assert bench.empty()
    one = bench.wait("10 1 WAIT 5 STRICT PENALTY 3")
    one.answer(refused(1_000_000))
    bench.clock.advance(1)
    one.answer(frame)
    assert one.replies == [frame]
    assert bench.empty()
    one = bench.wait("10 1 WAIT 5")
    one.answer(refused(5_000_000))
    bench.clock.advance(5)
    assert one.call == "final"
    one.answer(frame)
    assert one.replies == [frame]
    assert bench.empty()


def test_unsent_call_is_repeated(bench: Bench) -> None:
    one = bench.wait("10 1 WAIT 5 PENALTY 1")
    one.lose()
    assert one.calls == ["attempt"] * 2
    one.answer(refused(3_000_000))
    two = bench.wait("10 1 WAIT 1")
    two.lose()
    assert two.calls == ["peek"] * 2
    two.answer(refused(1_000_000))
    bench.clock.advance(1)
    assert two.calls == ["peek"] * 3  # its last call
    two.lose()
    assert two.calls == ["peek"] * 4
    two.answer(refused(3_000_000))
    assert reply(two) == [1, 10, 0, 3, 9]
    bench.clock.advance(2)
    one.answer(refused(3_000_000))
    bench.clock.advance(2)
    assert one.call == "final"
    one.lose()
    assert one.calls == ["attempt", "attempt", "attempt", "final", "final"]
    one.answer(ADMITTED)
    assert bench.empty()


def test_unsent_call_of_a_departed_client_is_ignored(bench: Bench) -> None:
    one = bench.wait("10 1 WAIT 5")
    one.waiter.leave(b"")
    one.lose()
    assert one.calls == ["attempt"]
    assert bench.empty()


@pytest.mark.parametrize("early_s", [0.000001, 0.001, 0.3])
def test_early_timer_is_set_again(bench: Bench, early_s: float) -> None:
    one = bench.wait("10 1 WAIT 0.5 PENALTY 1")
    one.answer(refused(400_000))
    due = bench.clock.now + 0.4
    bench.clock.now = due - early_s
    for _ in range(10):
        bench.clock.fire()  # each time it only sets its timer again
        assert one.calls == ["attempt"]
        assert bench.clock.live()[0].at == pytest.approx(due)
    bench.clock.until(due)
    assert one.calls == ["attempt"] * 2
    assert one.flush_all()
    one.answer(refused(50_000))
    bench.clock.now = due + 0.04
    bench.clock.fire()
    assert one.calls == ["attempt"] * 2
    bench.clock.advance(0.02)
    one.answer(refused(200_000))
    bench.clock.fire()
    assert one.call == ""
    bench.clock.advance(0.041)
    assert one.call == "final"


def test_late_timer_overtakes_no_client(bench: Bench) -> None:
    """A process that was stopped, and continues."""
    one, two = bench.wait("10 1 WAIT 9"), bench.wait("10 1 WAIT 1")
    one.answer(refused(3_000_000))
    two.answer(refused(900_000))
    bench.clock.now += 100
    bench.clock.advance(0)
    assert one.call == "final"
    assert two.call == "peek"
    one.answer(ADMITTED)
    two.answer(ADMITTED)  # it is the head by now, so no client is overtaken
    assert two.calls == ["peek", "peek", "final"]
    two.answer(ADMITTED)
    assert reply(one)[0] == reply(two)[0] == 0
    assert bench.empty()


# -- STRICT and PENALTY ----------------------------------------------------------------------------


@pytest.mark.parametrize("mark", ["STRICT", "PENALTY 7", "STRICT PENALTY 7"])
def test_only_the_final_refusal_is_recorded(bench: Bench, mark: str) -> None:
    one = bench.wait(f"10 1 WAIT 5 {mark}")
    made = one.rule
    for asked in (made.attempt(), made.peek()):
        assert asked.limiter is not None
        assert not asked.limiter.strict
        assert not asked.limiter.penalty_us
    final = made.in_microseconds().limiter
    assert final is not None
    assert (final.strict, final.penalty_us > 0) == ("STRICT" in mark, "PENALTY" in mark)
    one.answer(refused(4_000_000))
    bench.clock.advance(4)
    one.answer(refused(4_000_000))
    bench.clock.advance(1)
    assert one.calls == ["attempt", "attempt", "final"]
    one.answer(refused(7_000_000))
    assert reply(one) == [1, 10, 0, 7, 9]
    assert bench.empty()


@pytest.mark.parametrize("mark", ["STRICT", "PENALTY 7", "STRICT PENALTY 7"])
def test_immediate_refusal_is_recorded(bench: Bench, mark: str) -> None:
    one = bench.wait(f"10 1 WAIT 5 {mark}")
    two = bench.wait(f"10 1 WAIT 5 {mark}")
    for client, first in ((one, "attempt"), (two, "peek")):
        client.answer(refused(6_000_000))
        assert client.calls == [first, "final"]
        client.answer(refused(7_500_000))
        assert reply(client) == [1, 10, 0, 8, 9]
    assert bench.empty()


# -- the queue -------------------------------------------------------------------------------------


def test_refusal_behind_the_head_reports_the_heads_remaining_time(bench: Bench) -> None:
    one, two = bench.wait("10 1 WAIT 20"), bench.wait("10 1 WAIT 1.5")
    one.answer(refused(9_500_000))
    two.answer(refused(1_000_000))
    bench.clock.advance(1.5)
    assert two.call == "peek"
    two.answer(refused(500_000, 7_000_001))
    assert reply(two) == [1, 10, 0, 8, 8]  # the head needs 8, this one 0.5
    assert bench.waiting.count == 1


def test_hit_that_becomes_the_head_during_its_final_peek(bench: Bench) -> None:
    one, two = bench.wait("10 1 WAIT 9"), bench.wait("10 1 WAIT 2")
    one.answer(refused(8_000_000))
    two.answer(refused(1_000_000))
    bench.clock.advance(2)
    assert two.call == "peek"
    one.waiter.leave(b"")
    two.answer(refused(1_000_000))
    assert reply(two) == [1, 10, 0, 1, 9]
    assert bench.empty()


def test_later_refusal_without_retry_after_is_repeated_with_a_pause(bench: Bench) -> None:
    one = bench.wait("10 1 WAIT 2")
    one.answer(refused(1_850_000))
    bench.clock.advance(1.85)
    never = script_reply(1, 10, 0, -1, 1_000_000)
    one.answer(never)
    bench.clock.advance(0.99 * WAKE_S)
    assert one.call == ""
    bench.clock.advance(0.02 * WAKE_S)
    assert one.call == "attempt"
    one.answer(never)
    bench.clock.advance(0.05)
    assert one.call == "final"
    one.answer(never)
    assert reply(one)[:4] == [1, 10, 0, -1]
    assert bench.empty()


# -- clients that leave ----------------------------------------------------------------------------


def test_half_closed_client_is_answered_if_its_first_call_is_in_flight(bench: Bench) -> None:
    one, two = bench.wait("10 1 WAIT 9"), bench.wait("10 1 WAIT 9")
    bench.clock.advance(0.001)
    assert one.waiter.end_of_file()
    assert two.waiter.end_of_file()
    one.answer(refused(1_000_000))
    assert one.calls == ["attempt", "final"]
    one.answer(refused(999_999))
    assert reply(one) == [1, 10, 0, 1, 9]
    two.answer(refused(1_000_000))
    assert two.call in ("peek", "final")
    two.answer(refused(999_999))
    assert reply(two) == [1, 10, 0, 1, 9]
    assert bench.empty()
    three = bench.wait("10 1 WAIT 9")
    assert three.waiter.end_of_file()
    three.answer(ADMITTED)
    assert reply(three)[0] == 0
    four = bench.wait("10 1 WAIT 9")
    four.answer(refused(1_000_000))
    assert not four.waiter.end_of_file()


# -- hits without WAIT -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "peeked", "expected"),
    [
        ("10 9", [0, 10, 3, -1, 4_000_000], [1, 10, 0, 3, 4]),  # it would be admitted
        ("10 9 MS", [0, 10, 3, -1, 4_000_001], [1, 10, 0, 2500, 4001]),
        ("10 9", [1, 10, 0, 1, 0], [1, 10, 0, 3, 0]),  # the head needs longer
        # it needs longer itself
        ("10 9 COST 9", [1, 10, 2, 6_000_001, 8_000_000], [1, 10, 0, 7, 8]),
        ("10 9 COST 11", [1, 10, 4, -1, 8_000_000], [1, 10, 0, -1, 8]),  # it never fits
        ("10 9 MS", [1, 10, 0, 2_500_001, 1], [1, 10, 0, 2501, 1]),
    ],
)
def test_overtaking_hit_is_refused(
    bench: Bench, text: str, peeked: list[int], expected: list[int]
) -> None:
    one = bench.wait("10 1 WAIT 9")
    one.answer(refused(2_500_000))
    assert integers(bench.waiting.overtaking(KEY, rule(text), peeked)) == expected


def test_hit_after_the_head_has_left_is_not_refused(bench: Bench) -> None:
    peeked = [0, 10, 3, -1, 4_000_000]
    assert integers(bench.waiting.overtaking(KEY, rule("10 9"), peeked)) == [1, 10, 0, 1, 4]


def test_heads_remaining_time_is_never_reported_as_zero(bench: Bench) -> None:
    one, two = bench.wait("10 1 WAIT 9"), bench.wait("10 1 WAIT 9")
    assert bench.needs_us() == 1
    two.answer(refused(1_000_000))
    assert bench.waiting.blocks(KEY)  # one waits for the time reported to the first
    one.answer(ADMITTED)
    assert bench.needs_us() == 1
    assert bench.waiting.blocks(KEY)


def test_waiting_hits_without_a_refusal_block_no_client(bench: Bench) -> None:
    """Callers that are all admitted at their first call."""
    one, two = bench.wait("10 1 WAIT 9"), bench.wait("10 1 WAIT 9")
    two.answer(script_reply(0, 10, 5, -1, 1_000_000))
    assert not bench.waiting.blocks(KEY)
    one.answer(ADMITTED)
    assert not bench.waiting.blocks(KEY)
    two.answer(ADMITTED)
    assert bench.empty()


def test_refund_wakes_the_head(bench: Bench) -> None:
    bench.waiting.freed(KEY)  # no client waits
    one, two = bench.wait("10 90 WAIT 99"), bench.wait("10 90 WAIT 99")
    bench.waiting.freed(KEY)  # one call at a time
    one.answer(refused(60_000_000))  # maybe from before the refund
    assert one.calls == ["attempt", "attempt"]
    one.answer(refused(60_000_000))
    two.answer(refused(60_000_000))
    bench.waiting.freed((1, KEY[1]))
    assert bench.calling() == []
    bench.waiting.freed(KEY)
    assert bench.calling() == [one]
    assert one.flush_all()
    assert bench.needs_us() == 1
    one.answer(refused(50_000_000))  # it was not enough
    assert abs(bench.needs_us() - 50_000_000) <= 1
    assert len(bench.clock.live()) == 2
    bench.waiting.freed(KEY)
    one.answer(ADMITTED)
    assert two.calls == ["peek", "attempt"]
    two.answer(ADMITTED)
    assert bench.empty()


def test_refund_does_not_wake_held_hits(bench: Bench) -> None:
    one = bench.wait("10 1 ALGO LEAKY WAIT 5")
    one.answer(script_reply(0, 10, 5, -1, 100_000, 3_000_000))
    bench.waiting.freed(KEY)
    assert abs(bench.needs_us() - 3_000_000) <= 1
    assert one.calls == ["attempt"]
    bench.clock.advance(3)
    assert reply(one)[0] == 0
    assert bench.empty()


def test_hit_that_finds_room_wakes_the_head_at_intervals(bench: Bench) -> None:
    """Another proxy may have refunded hits. Or the hit may need more: so not every such hit causes
    a call.
    """
    one = bench.wait("10 90 WAIT 99 COST 5")
    one.answer(refused(60_000_000))
    bench.clock.advance(1)
    hit, room, none = rule("10 90"), [0, 10, 3, -1, 4_000_000], [1, 10, 0, 1, 4_000_000]
    assert integers(bench.waiting.overtaking(KEY, hit, none[:]))[3] == 59
    assert bench.calling() == []
    for turn in range(5):
        for _ in range(10):
            assert integers(bench.waiting.overtaking(KEY, hit, room[:]))[:3] == [1, 10, 0]
            if one.call:
                one.answer(refused(round((1060 - bench.clock.now) * 1e6)))
        assert len(one.calls) == 2 + turn
        bench.clock.advance(WAKE_S + 0.001)
    assert bench.waiting.count == 1
    assert len(bench.clock.live()) == 1


# -- bounds ----------------------------------------------------------------------------------------


def test_number_of_waiting_hits_is_bounded(bench: Bench) -> None:
    hit = rule("10 1 WAIT 9")
    joined = []
    for number in range(MAX_WAITING):
        where = (0, b"%d" % (number % 100))
        assert not bench.waiting.full()
        waiter = Waiter(bench.waiting, where, hit, _nothing, _nothing, _nothing, _nothing)
        waiter.start()
        joined.append(waiter)
    assert bench.waiting.full()
    assert bench.waiting.count == MAX_WAITING
    assert not bench.waiting.blocks(KEY)
    joined.pop(5).leave(b"")
    assert not bench.waiting.full()
    one = bench.wait("10 1 WAIT 9")
    assert bench.waiting.full()
    for waiter in joined:
        waiter.leave(b"")
    one.waiter.leave(b"")
    assert bench.empty()


# -- keep-alive of connections ---------------------------------------------------------------------


@pytest.mark.parametrize("text", ["10 1 WAIT 100", "10 1 ALGO LEAKY WAIT 100"])
def test_sleeping_hit_keeps_its_connection_alive(bench: Bench, text: str) -> None:
    """Within the shortest timeout that Redis can have; no script is called for it."""
    head, other = bench.wait(text), bench.wait(text)
    shaped = script_reply(0, 10, 4, -1, 600_000, 95_000_000)
    for client in (head, other):
        client.answer(shaped if "LEAKY" in text else refused(95_000_000))
    begin = bench.clock.now
    bench.clock.advance(20)
    for client in (head, other):
        gaps = [now - before for before, now in pairwise([begin, *client.kept, begin + 20])]
        assert max(gaps) == KEEP_S
        assert len(client.calls) == 1
        assert client.replies == []
        assert client.flush_all()
    assert len(bench.clock.live()) == 2


def test_head_calls_again_at_intervals(bench: Bench) -> None:
    """Another proxy may have refunded hits."""
    head, other = bench.wait("10 1 WAIT 100"), bench.wait("10 1 WAIT 100")
    head.answer(refused(95_000_000))
    other.answer(refused(95_000_000))
    for _ in range(3):
        bench.clock.advance(LONGEST_PAUSE_S - 0.01)
        assert bench.calling() == []
        bench.clock.advance(0.01)
        assert bench.calling() == [head]
        assert head.flush_all()
        head.answer(refused(round((1095 - bench.clock.now) * 1e6)))
    bench.clock.advance(5)
    assert bench.calling() == [head]
    head.answer(ADMITTED)
    other.answer(refused(1_000_000))
    bench.clock.advance(1)
    other.answer(ADMITTED)
    assert head.calls == ["attempt"] * 5
    assert other.calls == ["peek"] + ["attempt"] * 2
    assert bench.empty()


# -- LEAKY: the script returns the time to hold ----------------------------------------------------

SHAPED = "10 1 ALGO LEAKY WAIT 5"


def test_departed_client_keeps_its_slot(bench: Bench) -> None:
    clients = [bench.wait(SHAPED) for _ in range(3)]
    for number, client in enumerate(clients, 1):
        client.answer(script_reply(0, 10, 5, -1, 100_000, number * 100_000))
    clients[0].waiter.leave(b"")
    assert bench.calling() == []
    bench.clock.advance(0.1)
    assert clients[1].replies == []
    clients[1].waiter.leave(b"")
    bench.clock.advance(0.1)
    assert clients[2].replies == []
    bench.clock.advance(0.1)
    assert reply(clients[2])[0] == 0
    assert bench.empty()
    assert clients[0].replies == clients[1].replies == []


def test_shaped_hit_with_too_long_a_hold_is_refused_at_once(bench: Bench) -> None:
    one, two = bench.wait(SHAPED), bench.wait(SHAPED)
    one.answer(script_reply(0, 10, 0, -1, 100_000, 5_000_000))
    two.answer(script_reply(1, 10, 0, 100_000, 5_100_000, 0))
    assert reply(two) == [1, 10, 0, 1, 6]
    assert two.calls == ["attempt"]
    assert one.replies == []
    bench.clock.advance(5)
    assert reply(one) == [0, 10, 0, -1, 1]
    assert bench.empty()


def test_a_hit_is_held_no_longer_than_its_wait(bench: Bench) -> None:
    one = bench.wait(SHAPED)
    one.answer(script_reply(0, 10, 0, -1, 100_000, 60_000_000))  # no reply of the script
    bench.clock.advance(4.999)
    assert one.replies == []
    bench.clock.advance(0.001)
    assert reply(one)[0] == 0
    assert bench.empty()


def test_a_refused_hit_that_has_left_blocks_no_other(bench: Bench) -> None:
    one, two = bench.wait("10 1 WAIT 5"), bench.wait("10 1 WAIT 5")
    for _ in range(2):
        one.answer(refused(400_000))
        bench.clock.advance(0.4)
    assert bench.waiting.blocks(KEY)
    one.waiter.leave(b"")
    assert not bench.waiting.blocks(KEY)  # Redis has not answered the other one yet
    two.waiter.leave(b"")
    assert bench.empty()


@pytest.mark.parametrize(
    ("text", "replies", "ended"),
    [
        ("10 1 WAIT 5", [ADMITTED], [0, 0, 0]),  # it has not waited
        ("10 1 WAIT 5", [refused(400_000), ADMITTED], [1, 0, 0]),
        (SHAPED, [script_reply(0, 10, 0, -1, 100_000, 400_000)], [1, 0, 0]),
        ("10 1 WAIT 1", [refused(400_000), refused(9_000_000)], [0, 1, 0]),
        ("10 1 WAIT 5", [refused(400_000), b"-OOM\r\n"], [0, 0, 1]),
    ],
)
def test_waits_are_counted_by_their_end(
    bench: Bench, text: str, replies: list[bytes], ended: list[int]
) -> None:
    one = bench.wait(text)
    for frame in replies:
        bench.clock.advance(1)
        one.answer(frame)
    bench.clock.advance(1)
    assert bench.empty()
    assert list(bench.waiting.ended.values()) == ended


def test_shaped_refusal_is_recorded(bench: Bench) -> None:
    one = bench.wait(SHAPED + " PENALTY 9")
    two = bench.wait(SHAPED + " PENALTY 9")
    for client in (one, two):
        client.answer(script_reply(1, 10, 0, 100_000, 5_100_000, 0))
        assert client.calls == ["attempt", "final"]
    one.answer(script_reply(1, 10, 0, 9_000_000, 9_000_000, 0))
    two.answer(script_reply(0, 10, 0, -1, 100_000, 4_000_000))  # there was room after all
    assert reply(one) == [1, 10, 0, 9, 9]
    assert two.replies == []
    bench.clock.advance(4)
    assert reply(two)[0] == 0
    assert bench.empty()


def penalised(left_us: int) -> bytes:
    """The refusal of a shaped hit that a penalty alone refuses, for `left_us` microseconds."""
    return script_reply(1, 10, 0, left_us, left_us, left_us)


def test_shaped_hit_waits_for_the_end_of_a_penalty(bench: Bench) -> None:
    one = bench.wait(SHAPED)
    one.answer(penalised(2_000_000))
    assert bench.waiting.blocks(KEY)
    assert bench.needs_us() == 2_000_000
    bench.clock.advance(1.999)
    assert one.calls == ["attempt"]
    bench.clock.advance(0.001)
    assert one.calls == ["attempt", "attempt"]
    assert one.left_us == 3_000_000  # of its five seconds
    one.answer(script_reply(0, 10, 0, -1, 100_000, 1_000_000))
    bench.clock.advance(0.999)
    assert one.replies == []
    bench.clock.advance(0.001)
    assert reply(one)[0] == 0
    assert bench.empty()


def test_shaped_hit_is_refused_once_it_can_not_be_admitted_in_time(bench: Bench) -> None:
    one, two, three = (bench.wait(SHAPED) for _ in range(3))
    one.answer(penalised(5_000_001))
    assert reply(one) == [1, 10, 0, 6, 6]
    two.answer(penalised(4_000_000))
    three.answer(script_reply(1, 10, 0, 4_000_000, 9_000_000, 0))  # its slot would be too late, too
    assert reply(three)[3] == 4
    bench.clock.advance(4)
    assert (two.call, two.left_us) == ("attempt", 1_000_000)
    two.answer(penalised(1_500_000))  # another penalty
    assert reply(two) == [1, 10, 0, 2, 2]
    assert bench.empty()


def test_shaped_hits_keep_their_order_through_a_penalty(bench: Bench) -> None:
    clients = [bench.wait(SHAPED) for _ in range(2)]
    for client in clients:
        client.answer(penalised(1_000_000))
    clients.append(bench.wait(SHAPED))  # behind those that wait
    assert clients[2].call == "peek"
    clients[2].answer(refused(1_000_000))
    bench.clock.advance(1)
    for number, client in enumerate(clients):
        assert bench.calling() == [client]
        client.answer(script_reply(0, 10, 5, -1, 100_000, number * 100_000))
    assert bench.calling() == []
    newcomer = bench.wait(SHAPED)  # behind held ones only
    assert newcomer.call == "attempt"
    newcomer.answer(script_reply(0, 10, 5, -1, 100_000, 300_000))
    for client in clients[1:]:
        assert client.replies == []
        bench.clock.advance(0.1)
        assert reply(client)[0] == 0
        assert client.flush_all()
    bench.clock.advance(0.1)
    assert reply(newcomer)[0] == 0
    assert bench.empty()


def test_reset_ends_the_penalty_of_a_shaped_hit(bench: Bench) -> None:
    one, two = bench.wait(SHAPED), bench.wait(SHAPED)
    one.answer(penalised(3_000_000))
    two.answer(penalised(3_000_000))
    bench.waiting.freed(KEY)
    one.answer(script_reply(0, 10, 5, -1, 100_000, 0))
    assert (reply(one)[0], two.call) == (0, "attempt")
    two.answer(script_reply(0, 10, 5, -1, 100_000, 100_000))
    bench.clock.advance(0.1)
    assert reply(two)[0] == 0
    assert bench.empty()


# -- the end of the process ------------------------------------------------------------------------


def test_drain_refuses_waiting_hits(bench: Bench) -> None:
    other: Where = (0, b"other")
    head, second, third = (bench.wait("10 1 WAIT 9 PENALTY 3") for _ in range(3))
    head.answer(refused(3_000_000))
    second.answer(refused(3_000_000))
    held = bench.wait(SHAPED, other)
    held.answer(script_reply(0, 10, 5, -1, 100_000, 1_000_000))
    bench.clock.advance(0.001)
    bench.waiting.drain()
    assert [each.call for each in bench.clients] == ["final", "peek", "peek", ""]
    assert head.flush_all() and second.flush_all()
    third.answer(refused(3_000_000))  # the reply to its earlier call
    assert third.call == "peek"
    third.answer(refused(3_000_000))
    assert third.call == "final"
    third.answer(refused(3_000_000))
    second.answer(ADMITTED)  # it would only overtake
    assert reply(second)[:2] == [1, 10]
    head.answer(refused(3_000_000))
    assert [reply(client)[3] for client in (head, second, third)] == [3, 3, 3]
    late = bench.wait("10 1 WAIT 9")
    assert late.call == "attempt"
    late.answer(refused(3_000_000))
    assert late.call == "final"
    late.answer(refused(3_000_000))
    assert reply(late)[0] == 1
    assert held.replies == []
    bench.clock.advance(1)
    assert reply(held)[0] == 0
    assert bench.empty()


# -- random traffic with a model of Redis ----------------------------------------------------------


class Redis:
    """LOG and shaping LEAKY as in their scripts, in microseconds."""

    def __init__(self) -> None:
        self.stamps: dict[Where, list[int]] = {}
        self.ends: dict[Where, int] = {}
        self.free_us: dict[Where, int] = {}
        self.admitted: list[tuple[Where, int, int]] = []  # where, when, cost

    def run(self, where: Where, asked: Rule, now_us: int) -> list[int]:
        limiter = asked.limiter
        assert limiter is not None
        if limiter.algorithm.name == b"LEAKY":
            return self._shape(where, asked, now_us)
        most, window, cost = limiter.max, limiter.window_us, limiter.cost
        stamps = [stamp for stamp in self.stamps.get(where, []) if stamp > now_us - window]
        self.stamps[where] = stamps
        ends = self.ends.get(where, 0)
        left = max(0, most - len(stamps))
        if cost > most:
            return [1, most, left, -1, window]
        retry_us = 0
        if len(stamps) + cost > most:
            retry_us = stamps[len(stamps) + cost - most - 1] + window - now_us
        if ends > now_us:
            return [1, most, 0, max(retry_us, ends - now_us), window]
        takes = limiter.mode != b"peek"
        if retry_us == 0:
            if takes:
                stamps += [now_us] * cost
                self.admitted.append((where, now_us, cost))
                left -= cost
            return [0, most, left, -1, window]
        if takes and limiter.strict:
            stamps += [now_us] * cost
            del stamps[:-most]
            retry_us = stamps[len(stamps) + cost - most - 1] + window - now_us
        if takes and limiter.penalty_us:
            self.ends[where] = now_us + max(retry_us, limiter.penalty_us)
            retry_us = self.ends[where] - now_us
        return [1, most, 0, retry_us, window]

    def _shape(self, where: Where, asked: Rule, now_us: int) -> list[int]:
        limiter = asked.limiter
        assert limiter is not None
        held_us = max(0, self.free_us.get(where, 0) - now_us)
        emission_us = limiter.window_us // limiter.max
        left_us = self.ends.get(where, 0) - now_us
        if limiter.mode == b"peek" or not asked.shapes:
            full = max(held_us + (limiter.cost - limiter.max) * emission_us, left_us)
            return [1, limiter.max, 0, full, held_us] if full > 0 else [0, 1, 0, -1, held_us]
        if held_us > limiter.wait_us:
            retry_us = max(held_us - limiter.wait_us, left_us)
            return [1, limiter.max, 0, retry_us, held_us, 0]
        if left_us > 0:
            return [1, limiter.max, 0, left_us, max(held_us, left_us), left_us]
        self.free_us[where] = now_us + held_us + limiter.cost * emission_us
        self.admitted.append((where, now_us, limiter.cost))
        return [0, limiter.max, 0, -1, emission_us, held_us]


class Visitor:
    """A client of the simulation."""

    def __init__(self, sim: Simulation, number: int, where: Where, made: Rule) -> None:
        assert made.limiter is not None
        self.number = number
        self.where = where
        self.rule = made
        self.came = sim.clock.now
        self.wait_us = made.limiter.wait_us
        self.cost = made.limiter.cost
        self.gone = False
        self.asked = 0
        self.waits = made.waits
        self.replies: list[list[int]] = []
        self.told_at = 0.0
        self.first: list[int] = []
        self.waiter: Waiter | None = None


class Simulation:
    """Visitors, a Redis and the delays between them. Each event has a time."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.waiting = WaitQueues(self.clock.time, self.clock.call_at)
        self.redis = Redis()
        self.visitors: list[Visitor] = []
        self.served: list[Visitor] = []  # in the order in which Redis admitted them
        self.delays = [0.001]
        self.asked = 0

    def _later(self, seconds: float, function: Callable[[], None]) -> None:
        self.clock.call_at(self.clock.now + seconds, function)

    def _delay(self) -> float:
        self.asked += 1
        return self.delays[self.asked % len(self.delays)]

    def _run(self, visitor: Visitor, asked: Rule, then: Callable[[list[int]], None]) -> None:
        delay = self._delay()

        def arrived() -> None:
            before = len(self.redis.admitted)
            found = self.redis.run(visitor.where, asked, round(self.clock.now * 1_000_000))
            if len(self.redis.admitted) > before:
                self.served.append(visitor)
            self._later(delay / 2, lambda: then(found))

        self._later(delay / 2, arrived)

    def hit(self, where: Where, text: str) -> None:
        """RL.HIT, as a session sends it."""
        made = rule(text)
        visitor = Visitor(self, len(self.visitors), where, made)
        self.visitors.append(visitor)
        if visitor.waits:
            self._wait(visitor)
            return
        behind = self.waiting.blocks(where)

        def answered(found: list[int]) -> None:
            if behind:
                found = integers(self.waiting.overtaking(where, made, found))
                assert found[0] == 1 and found[2] == 0 and (found[3] > 0 or found[3] == -1)
            visitor.replies.append(found)

        self._run(visitor, made.peek() if behind else made, answered)

    def _wait(self, visitor: Visitor) -> None:
        busy = False

        def ask(asked: Rule) -> None:
            nonlocal busy
            assert not busy, "one question at a time"
            assert not visitor.gone
            busy = True
            visitor.asked += 1
            self._run(visitor, asked, answered)

        def answered(found: list[int]) -> None:
            nonlocal busy
            busy = False
            if not visitor.first:
                visitor.first = found
            assert visitor.waiter is not None
            visitor.waiter.answered(script_reply(*found))

        def finish(frame: bytes) -> None:
            assert not visitor.gone
            visitor.replies.append(integers(frame))
            visitor.told_at = self.clock.now

        visitor.waiter = Waiter(
            self.waiting, visitor.where, visitor.rule, ask, finish, _nothing, _nothing
        )
        visitor.waiter.start()

    def leave(self, visitor: Visitor) -> None:
        if visitor.waiter is not None and not visitor.replies and not visitor.gone:
            visitor.gone = True
            visitor.waiter.leave(b"")


def in_any_window(stamps: list[tuple[int, int]], most: int, window_us: int) -> bool:
    """Whether each half-open window holds at most `most`."""
    for end, _ in stamps:
        if sum(cost for at, cost in stamps if end - window_us < at <= end) > most:
            return False
    return True


MOST = 3
WINDOW_S = 0.5
PLACES: list[Where] = [(0, b"a"), (0, b"b"), (1, b"a")]
WAITS = st.sampled_from([0.001, 0.02, 0.3, 0.5, 1, 1.7, 5, 60])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.integers(0, 2), st.integers(1, 4), WAITS),
        st.tuples(st.just("wait"), st.just(0), st.just(1), WAITS),
        st.tuples(st.just("hit"), st.integers(0, 2), st.integers(1, 4), st.just(0.0)),
        st.tuples(st.just("leave"), st.integers(0, 30), st.just(0), st.just(0.0)),
        st.tuples(st.just("pass"), st.just(0), st.just(0), st.floats(0.0001, 0.7)),
    ),
    min_size=5,
    max_size=60,
)
DELAYS = st.lists(st.sampled_from([0.00002, 0.0003, 0.001, 0.004, 0.03]), min_size=1, max_size=5)


@settings(max_examples=120, deadline=None)
@given(STEPS, DELAYS, st.sampled_from(["", "STRICT", "PENALTY 0.2"]))
def test_random_traffic_keeps_order_and_limit(
    steps: list[tuple[str, int, int, float]], delays: list[float], mark: str
) -> None:
    sim = Simulation()
    sim.delays = delays
    for what, which, cost, seconds in steps:
        options = f"{MOST} {WINDOW_S} COST {cost} {mark}"
        if what == "wait":
            sim.hit(PLACES[which], f"{options} WAIT {seconds:g}")
        elif what == "hit":
            sim.hit(PLACES[which], options)
        elif what == "leave":
            if which < len(sim.visitors):
                sim.leave(sim.visitors[which])
        else:
            sim.clock.advance(seconds)
    sim.clock.advance(200)

    assert sim.waiting.count == 0
    assert sim.clock.live() == []
    assert not any(sim.waiting.blocks(where) for where in PLACES)
    longest = max(delays)
    window_us = round(WINDOW_S * 1_000_000)
    for where in PLACES:
        stamps = [(at, cost) for place, at, cost in sim.redis.admitted if place == where]
        assert in_any_window(stamps, MOST, window_us)
        if not mark:  # a final refusal is sent as a hit, and may be admitted
            order = [
                visitor.number
                for visitor in sim.served
                if visitor.where == where and visitor.waits and not visitor.gone
            ]
            assert order == sorted(order)
    assert len(set(sim.served)) == len(sim.served)  # no visitor is admitted twice
    for visitor in sim.visitors:
        if visitor.gone:
            assert visitor.replies == []
            continue
        assert len(visitor.replies) == 1
        found = visitor.replies[0]
        if found[0] == 0:
            assert visitor in sim.served
        else:
            assert visitor not in sim.served
            assert found[3] > 0 or (found[3] == -1 and visitor.cost > MOST)
        if not visitor.waits:
            continue
        took = visitor.told_at - visitor.came
        assert took <= visitor.wait_us / 1_000_000 + 3 * longest + 1e-6
        if found[0] == 1 and took < visitor.wait_us / 1_000_000 - 1e-6:
            first = visitor.first  # refused before its time: it could not be admitted in time
            assert first[0] == 1 and (first[3] == -1 or first[3] > visitor.wait_us)
        # One call on arrival, two or three as the head, two at the end, and the keep-alives.
        assert visitor.asked <= 6 + (2 if mark else 0) + ceil(took / LONGEST_PAUSE_S) * 2, (
            visitor.asked
        )


@settings(max_examples=100, deadline=None)
@given(STEPS, DELAYS, st.sampled_from([0.0, 0.0, 0.1, 0.9, 20.0]))
def test_random_traffic_of_shaped_hits_leaves_evenly(
    steps: list[tuple[str, int, int, float]], delays: list[float], blocked_s: float
) -> None:
    sim = Simulation()
    sim.delays = delays[:1]  # otherwise their places are not in order of arrival
    emission_s = 0.05
    sim.redis.ends = {where: round((sim.clock.now + blocked_s) * 1_000_000) for where in PLACES}
    for what, which, cost, seconds in steps:
        options = f"1 {emission_s:g} ALGO LEAKY BURST 9 COST {cost}"
        if what in ("wait", "hit"):
            sim.hit(PLACES[which], f"{options} WAIT {seconds or 1:g}")
        elif what == "leave":
            if which < len(sim.visitors):
                sim.leave(sim.visitors[which])
        else:
            sim.clock.advance(seconds)
    sim.clock.advance(200)
    assert sim.waiting.count == 0
    assert sim.clock.live() == []
    for where in PLACES:
        here = [visitor for visitor in sim.visitors if visitor.where == where]
        left = [visitor for visitor in here if not visitor.gone and visitor.replies[0][0] == 0]
        times = [visitor.told_at for visitor in left]
        assert times == sorted(times)
        for before, after in pairwise(left):
            assert after.told_at - before.told_at >= before.cost * emission_s - 1e-5
        for visitor in here:
            assert visitor.asked == 1 or (blocked_s and visitor.asked <= 4)
            assert len(visitor.replies) == (0 if visitor.gone else 1)
            if visitor in left:
                took = visitor.told_at - visitor.came
                assert took <= visitor.wait_us / 1_000_000 + delays[0] + 1e-5


def test_fifty_waiting_hits_use_the_full_rate() -> None:
    """No client is served late: the fiftieth leaves when the limit permits, not a round trip
    later.
    """
    sim = Simulation()
    for _ in range(50):
        sim.hit(PLACES[0], "10 1 WAIT 10")
    sim.clock.advance(20)
    assert [visitor.number for visitor in sim.served] == list(range(50))
    assert all(visitor.replies[0][0] == 0 for visitor in sim.visitors)
    first, last = sim.redis.admitted[0][1], sim.redis.admitted[-1][1]
    assert 4_000_000 <= last - first <= 4_000_000 + 50 * 2_000
    # Each one peeks and tries; where it has to wait, it tries again.
    assert sim.asked <= 50 * 3
