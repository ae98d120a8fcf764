"""held_hit: a hit with WAIT asks by lane or privately, and ends once with one reply."""

from __future__ import annotations

from math import inf

from rlproxy.ratelimit.hit_replies import integers
from rlproxy.ratelimit.wait_queue import WaitQueues
from rlproxy.resp import encoding
from rlproxy.session.held_hit import HeldHit

from tests.clock import Clock
from tests.unit.ratelimit.test_wait_queue import ADMITTED, refused
from tests.unit.session.bench import PING, call_of
from tests.unit.session.parts import Parts

LATE = encoding.late(inf)


class Held(Parts):
    """A client that holds a hit.

    got: replies that the hit ended with.
    """

    def __init__(self, *, by_lane: bool = True) -> None:
        self.clock = Clock()
        super().__init__(waiting=WaitQueues(self.clock.time, self.clock.call_at))
        self.opened()
        self.allowed = by_lane
        self.got = self.parts.got
        self.held = call_of(self.caller, text=b"10 60 WAIT 50")
        self.lanes.append(self.held)
        self.hit = HeldHit(self.parts, self.held)

    def time(self) -> float:
        return self.clock.now

    def start(self) -> None:
        self.hit.start()

    def reply(self, data: bytes) -> None:
        """Redis replies to the request under way."""
        if self.lane.calls:
            call = self.lane.calls.pop()
            call.caller.lane_answered(call, data)
        else:
            assert self.answer(data) == b""
            self.hit.pass_reply()


def test_after_its_end_of_file_a_client_waits_for_one_reply() -> None:
    held = Held()
    held.requests.eof = True
    held.start()
    held.reply(refused(3_000_000))
    assert len(held.got) <= 1
    if not held.got:
        held.reply(refused(3_000_000))
    assert [integers(reply)[0] for reply in held.got] == [1]


def test_a_late_reply_on_the_private_connection_is_dropped() -> None:
    held = Held(by_lane=False)
    held.start()
    held.hit.fail(LATE, "late")
    assert held.private.slots.settled()  # the client is owed nothing
    assert held.answer(ADMITTED) == b""
    held.hit.pass_reply()
    assert held.got == [LATE]
    held.private.slots.expect_one()
    assert held.answer(PING) == PING


def test_a_call_whose_node_is_down_ends_the_wait_with_that_error() -> None:
    held, error = Held(), encoding.unreachable("redis:2", "refused")
    held.start()
    call = held.lane.calls.pop()
    call.caller.lane_failed(call, error, "unreachable")
    assert held.got == [error]
    assert held.context.stats.errors == {"unreachable": 1}
