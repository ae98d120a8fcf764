"""lane_hits: which unread hits are submitted to the lane, and what is left unread."""

from __future__ import annotations

import pytest
from rlproxy.fairness.budget import CLIENT_WORK, WORK_OF_OURS
from rlproxy.ratelimit.outcomes import NO_ROW
from rlproxy.resp.encoding import bulks
from rlproxy.session import command_policy
from rlproxy.session.lane_hits import DONE, FULL, OTHER, LaneHits
from rlproxy.session.private_stream import MAX_LANE_CALL, REFRESH_S

from tests.unit.session.bench import ARITY, DENIED, HIT, PING, WRONG_HIT
from tests.unit.session.parts import Parts

FIXED = bulks(b"RL.HIT", b"k", b"10", b"60", b"ALGO", b"FIXED")
PEEK = bulks(b"RL.PEEK", b"k", b"10", b"60")
WAITS = bulks(b"RL.HIT", b"k", b"10", b"60", b"WAIT", b"5")
RESET = bulks(b"RL.RESET", b"k")
_KEY = MAX_LANE_CALL - len(bulks(b"RL.HIT", b"", b"10", b"60")) - 3
LONGEST = bulks(b"RL.HIT", b"k" * _KEY, b"10", b"60")
TOO_LONG = bulks(b"RL.HIT", b"k" * (_KEY + 1), b"10", b"60")


class Sending(Parts):
    """The parts of a client whose hits may take the lane."""

    def __init__(self) -> None:
        super().__init__()
        self.opened()
        self.hits = LaneHits(self.parts)

    def send(self, data: bytes, most: int = 64) -> int:
        self.requests.feed(data)
        return self.hits.send_hits(self.lane, most)


@pytest.mark.parametrize(
    ("sent", "most", "found", "calls", "left"),
    [
        (HIT * 3, 64, DONE, 3, b""),
        (b"\r\n" + HIT + b"\r\n", 64, DONE, 1, b""),
        (HIT + HIT[:9], 64, DONE, 1, HIT[:9]),
        (b"", 64, DONE, 0, b""),
        (HIT * 3, 2, FULL, 2, HIT),
        (HIT * 2, 2, FULL, 2, b""),
        (PING, 64, OTHER, 0, PING),
        (HIT + PING, 64, OTHER, 0, HIT + PING),
        (HIT * 2 + PING, 2, FULL, 2, PING),
        (HIT + RESET, 64, OTHER, 0, HIT + RESET),
        (bulks(b"RL.HELP"), 64, OTHER, 0, bulks(b"RL.HELP")),
        (HIT + TOO_LONG, 64, OTHER, 0, HIT + TOO_LONG),
        (LONGEST, 64, DONE, 1, b""),
        (HIT + WAITS + HIT, 64, OTHER, 1, WAITS + HIT),
        (WAITS, 64, OTHER, 0, WAITS),
        (b"\r\n" * CLIENT_WORK + HIT, 64, FULL, 0, HIT),
    ],
)
def test_unread_hits_go_to_the_lane(
    sent: bytes, most: int, found: int, calls: int, left: bytes
) -> None:
    sending = Sending()
    assert sending.send(sent, most) == found
    assert (len(sending.lane.calls), sending.lanes.count) == (calls, calls)
    assert sending.requests.unread() == len(left)


def test_a_denied_hit_is_not_for_the_lane() -> None:
    sending = Sending()
    sending.requests.use(command_policy.table(("rl.hit",), False))
    assert sending.send(HIT) == OTHER


def test_each_hit_is_work() -> None:
    sending = Sending()
    sending.send(HIT * 3 + b"\r\n")
    assert sending.context.budget.work == 3 * (WORK_OF_OURS + 1) + 1


def test_errors_and_known_replies_keep_their_places() -> None:
    sending = Sending()
    sending.lane.known[b"$4\r\nfull\r\n"] = DENIED
    full = bulks(b"RL.HIT", b"full", b"10", b"60")
    sending.send(full + WRONG_HIT + HIT + full + WRONG_HIT)
    assert sending.down() == DENIED + ARITY
    assert len(sending.lane.calls) == 1
    assert sending.settle() == b"*5\r\n:0\r\n:10\r\n:9\r\n:-1\r\n:60\r\n" + DENIED + ARITY


def test_a_known_reply_is_counted_by_the_denial_cache() -> None:
    sending = Sending()
    sending.lane.known[b"$1\r\nk\r\n"] = DENIED
    sending.send(HIT)
    assert sum(sending.context.stats.hits) == 0
    sending = Sending()
    sending.lane.known[b"$4\r\nfull\r\n"] = DENIED
    sending.send(HIT + bulks(b"RL.HIT", b"full", b"10", b"60"))
    tail = sending.lanes.tail
    assert tail is not None
    assert tail.row == NO_ROW


@pytest.mark.parametrize(("sent", "wrote"), [(HIT, True), (PEEK, False), (WRONG_HIT, False)])
def test_only_hits_are_writes(sent: bytes, wrote: bool) -> None:
    sending = Sending()
    sending.send(sent)
    assert sending.private.cover.lane_wrote == wrote


def test_the_private_connection_is_kept_alive() -> None:
    sending = Sending()
    sending.now = REFRESH_S
    sending.send(HIT)
    assert sending.up() == b"*0\r\n"
