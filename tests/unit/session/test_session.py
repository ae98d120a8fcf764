"""session: what goes where and in which order replies leave, with a fake lane and fed bytes."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rlproxy.fairness.budget import (
    CLIENT_WORK,
    LEAST_HITS,
    MAX_CLIENT_HITS,
    SMALL,
    TICK_WORK,
    WORK_OF_OURS,
    WORK_OF_STATUS,
)
from rlproxy.ratelimit import grammar, scripts
from rlproxy.ratelimit.grammar import Grammar
from rlproxy.ratelimit.scripts import LOADED, SOURCE
from rlproxy.resp import commands as c
from rlproxy.resp import encoding as r
from rlproxy.resp.encoding import bulks
from rlproxy.resp.requests import COMMAND, EMPTY, RequestFramer
from rlproxy.session import connection_state, private_stream, reply_slots, wait_cover
from rlproxy.session.call import Call, Lane
from rlproxy.session.context import ServerFacts, WorkerContext
from rlproxy.session.identity import Identity
from rlproxy.session.private_stream import MAX_LANE_CALL, REFRESH_S
from rlproxy.session.session import Session
from rlproxy.session.waits import (
    WAIT_HELD,
    WAIT_IN_PLACE,
    WAIT_LANE,
    WAIT_NOTHING,
    WAIT_PACE,
    WAIT_TICK,
)

from tests.unit.sides import Sides

GRAMMAR = Grammar(scripts.load())

HIT = bulks(b"RL.HIT", b"k", b"10", b"60")
WRONG_HIT = bulks(b"RL.HIT", b"k")
ARITY = b"-ERR wrong number of arguments for 'rl.hit' command\r\n"
UNKNOWN = b"-ERR unknown command 'RL.HIT', with args beginning with: 'k' \r\n"
PING = bulks(b"PING")
PONG = b"+PONG\r\n"
FIVE = r.five(0, 10, 9, -1, 60)
NOAUTH = b"-NOAUTH Authentication required.\r\n"
BASE = bulks(b"SELECT", b"2")


class FakeLane(Lane):
    """Keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.ready = True
        self.calls: list[Call] = []
        self.woken = 0

    def submit(self, call: Call) -> bytes:
        self.calls.append(call)
        return b""

    def wake(self) -> None:
        self.woken += 1


class Bench(Sides):
    """A session, its lane, and what moved."""

    def __init__(
        self,
        base_db: int = 0,
        lane: FakeLane | None = None,
        context: WorkerContext | None = None,
    ) -> None:
        self.lane = lane or FakeLane()
        self.identities: list[Identity] = []
        self.allowed = True
        context = context or WorkerContext(
            grammar=GRAMMAR, server=ServerFacts("redis:1", base_db), lane_of=self.lane_of
        )
        self.session = Session(context)

    def lane_of(self, identity: Identity) -> Lane | None:
        self.identities.append(identity)
        return self.lane if self.allowed else None

    def settle(self, reply: bytes = FIVE) -> bytes:
        """The lane answers all it was given; what goes to the client."""
        calls = self.lane.calls[:]
        self.lane.calls.clear()
        for call in calls:
            self.session.lane_answered(call, reply)
        self.session.resume()
        return self.down()


def context_of(lane: Lane) -> WorkerContext:
    """A context whose clients all use `lane`."""
    return WorkerContext(
        grammar=GRAMMAR, server=ServerFacts("redis:1"), lane_of=lambda _identity: lane
    )


def in_place(key: bytes = b"k") -> bytes:
    """RL.HIT key 10 60 as it goes over the private connection."""
    rule = GRAMMAR.rule(b"in place", b"RL.HIT", [key, b"10", b"60"])
    return rule.words(SOURCE) + r.bulk(key) + rule.tail


def opened(base_db: int = 0, context: WorkerContext | None = None) -> Bench:
    """A client whose private connection is open and has answered a PING."""
    bench = Bench(base_db, context=context)
    bench.session.receive(PING)
    bench.session.upstream_opened()
    if base_db:
        assert bench.up() == BASE
        bench.answer(b"+OK\r\n")
    assert bench.up() == PING
    assert bench.answer(PONG) == PONG
    return bench


def told(*heard: bytes) -> Bench:
    """A client of whose first command, a PING, Redis has said `heard`."""
    bench = Bench()
    bench.send(PING)
    bench.session.upstream_opened()
    assert bench.up() == PING
    for data in heard:
        bench.answer(data)
    return bench


def probed(base_db: int = 0, context: WorkerContext | None = None) -> Bench:
    """One whose hits may take the lane."""
    bench = opened(base_db, context)
    assert bench.send(HIT) == in_place()
    assert bench.answer(FIVE) == FIVE
    return bench


# -- opening ---------------------------------------------------------------------------------------


def test_nothing_is_opened_before_the_first_command() -> None:
    bench = Bench()
    assert bench.send(b"\r\n*0\r\n*1\r\n$4\r\nPI") == b""
    assert bench.session.private.status == private_stream.NONE
    bench.send(b"NG\r\n")
    assert bench.session.private.status == private_stream.OPENING


def test_what_comes_while_it_opens_waits_and_goes_in_one_write() -> None:
    bench = Bench()
    assert bench.send(PING, HIT, PING) == b""
    bench.session.upstream_opened()
    assert bench.up() == PING + in_place() + PING
    assert bench.answer(PONG + FIVE + PONG) == PONG + FIVE + PONG


def test_bytes_that_wait_are_told() -> None:
    bench = Bench()
    bench.send(PING * 3)
    assert bench.session.requests.unread() == 3 * len(PING)
    assert bench.session.outstanding()


# -- routing ---------------------------------------------------------------------------------------


def test_the_first_hit_goes_as_eval_over_the_private_connection() -> None:
    bench = opened()
    assert bench.send(HIT) == in_place()
    assert bench.lane.calls == []
    assert bench.answer(FIVE) == FIVE
    assert bench.send(HIT) == b""
    assert len(bench.lane.calls) == 1
    assert bench.settle() == FIVE


@pytest.mark.parametrize("refusal", [NOAUTH, b"-LOADING x\r\n", b"+QUEUED\r\n"])
def test_a_hit_that_redis_did_not_run_is_no_probe(refusal: bytes) -> None:
    bench = opened()
    bench.send(HIT)
    assert bench.answer(refusal) == refusal
    assert bench.send(HIT) == in_place()


def test_a_second_hit_waits_for_no_probe() -> None:
    bench = opened()
    assert bench.send(HIT, HIT) == in_place() * 2
    assert bench.answer(FIVE + FIVE) == FIVE * 2
    assert bench.send(HIT) == b""


def test_not_quiescent() -> None:
    bench = probed()
    assert bench.send(PING, HIT) == PING + in_place()
    assert bench.answer(PONG) == PONG
    assert bench.send(HIT) == in_place()
    bench.answer(FIVE + FIVE)
    assert bench.send(HIT) == b""


def test_a_mixed_chunk_is_one_private_write() -> None:
    bench = probed()
    bench.session.receive(HIT + PING + HIT + b"PING\r\n" + HIT)
    assert bench.lane.calls == []
    expected = in_place() + PING + in_place() + b"PING\r\n" + in_place()
    assert bench.up() == expected
    replies = FIVE + PONG + FIVE + PONG + FIVE
    assert bench.answer(*[replies[at : at + 1] for at in range(len(replies))]) == replies


NOT_PLAIN = [
    ([bulks(b"MULTI")], b"+OK\r\n"),
    ([bulks(b"WATCH", b"k")], b"+OK\r\n"),
    ([bulks(b"ASKING")], b"+OK\r\n"),
    ([bulks(b"FOO")], b"-ERR unknown command\r\n"),
    ([bulks(b"CLIENT", b"TRACKING", b"ON")], b"+OK\r\n"),
    ([bulks(b"CLIENT", b"REPLY", b"ON")], b"+OK\r\n"),
    ([bulks(b"READONLY")], b"+OK\r\n"),
    ([bulks(b"SUBSCRIBE", b"c")], b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n"),
    ([bulks(b"MONITOR")], b"+OK\r\n"),
    ([bulks(b"REPLCONF", b"CAPA", b"x")], b"+OK\r\n"),
    ([bulks(b"CLIENT", b"MAINT_NOTIFICATIONS", b"ON")], b"+OK\r\n"),
    ([bulks(b"AUTH", b"pw")], b"+OK\r\n"),
    ([bulks(b"HELLO", b"3", b"AUTH", b"bob", b"pw", b"SETNAME", b"a b")], b"-ERR name\r\n"),
]


@pytest.mark.parametrize(("sent", "reply"), NOT_PLAIN)
def test_private_behind_what_leaves_state(sent: list[bytes], reply: bytes) -> None:
    bench = probed()
    assert bench.send(*sent) == b"".join(sent)
    assert bench.answer(reply) == reply
    assert bench.send(HIT) == in_place()
    assert bench.lane.calls == []


PLAIN = [
    (bulks(b"GET", b"k"), b"$-1\r\n"),
    (bulks(b"CLIENT", b"SETINFO", b"LIB-NAME", b"x"), b"+OK\r\n"),
    (bulks(b"CLIENT", b"MAINT_NOTIFICATIONS", b"ON"), b"-ERR unknown subcommand\r\n"),
    (bulks(b"HELLO", b"3"), b"%1\r\n+server\r\n+redis\r\n"),
    (bulks(b"SELECT", b"99"), b"-ERR DB index is out of range\r\n"),
    (bulks(b"AUTH", b"x"), b"-WRONGPASS no\r\n"),
    (bulks(b"SCRIPT", b"LOAD", b"return 1"), b"$1\r\nx\r\n"),
    (bulks(b"MULTI") + bulks(b"EXEC"), b"+OK\r\n*0\r\n"),
    (bulks(b"WATCH", b"k") + bulks(b"UNWATCH"), b"+OK\r\n+OK\r\n"),
    (bulks(b"ASKING") + bulks(b"GET", b"k"), b"+OK\r\n$-1\r\n"),
    (bulks(b"WAIT", b"0", b"0"), b":0\r\n"),
]


@pytest.mark.parametrize(("sent", "reply"), PLAIN)
def test_the_lane_again_behind_what_leaves_none(sent: bytes, reply: bytes) -> None:
    bench = probed()
    assert bench.send(sent) == sent
    assert bench.answer(reply) == reply
    assert bench.send(HIT) == b""
    assert len(bench.lane.calls) == 1


def test_select_is_another_identity() -> None:
    bench = probed()
    bench.send(HIT)
    bench.settle()
    bench.send(bulks(b"SELECT", b"3"))
    bench.answer(b"+OK\r\n")
    bench.send(HIT)
    assert [each.key() for each in bench.identities] == [(None, None, 0), (None, None, 3)]


def test_auth_is_another_identity_and_must_be_probed() -> None:
    bench = probed()
    bench.send(bulks(b"AUTH", b"bob", b"pw"))
    bench.answer(b"+OK\r\n")
    assert bench.send(HIT) == in_place()
    bench.answer(FIVE)
    assert bench.send(HIT) == b""
    assert bench.identities[-1].key() == (b"bob", b"pw", 0)


def test_reset_ends_every_other_state() -> None:
    bench = probed()
    bench.send(bulks(b"FOO"), bulks(b"RESET"))
    bench.answer(b"-ERR unknown\r\n+RESET\r\n")
    assert bench.send(HIT) == in_place()
    bench.answer(FIVE)
    assert bench.send(HIT) == b""


def test_no_lane_for_this_identity() -> None:
    bench = probed()
    bench.allowed = False
    assert bench.send(HIT) == in_place()


def test_a_lane_that_is_not_ready_is_woken_and_the_hit_goes_private() -> None:
    bench = probed()
    bench.lane.ready = False
    assert bench.send(HIT) == in_place()
    assert bench.lane.woken == 1


def test_a_retired_lane_is_replaced() -> None:
    bench = probed()
    bench.send(HIT)
    bench.settle()
    old, bench.lane = bench.lane, FakeLane()
    old.retired = True
    assert bench.send(HIT) == b""
    assert (len(old.calls), len(bench.lane.calls)) == (0, 1)


def test_a_silent_private_connection_gets_an_empty_request() -> None:
    """Beside the hit, which goes by lane all the same: Redis may close what is silent."""
    bench = probed()
    for begin in (0.0, REFRESH_S, 100.0):
        bench.session.now = begin + REFRESH_S - 0.01
        assert bench.send(HIT) == (b"" if begin < 100.0 else b"*0\r\n")
        assert bench.settle() == FIVE
        bench.session.now = begin + REFRESH_S
        assert bench.send(HIT) == (b"*0\r\n" if begin < 100.0 else b"")
        assert len(bench.lane.calls) == 1
        assert bench.settle() == FIVE
    bench.session.context.server.ignores_empty = False
    bench.session.now = 200.0
    assert bench.send(HIT) == b""


@pytest.mark.parametrize("gap_s", [0.05, 0.3, 0.49, 0.5, 0.7, 2.0])
def test_a_client_with_calls_is_never_silent_for_much_longer_than_it_is_itself(
    gap_s: float,
) -> None:
    bench = probed()
    bench.session.now = last = 100.0
    bench.send(PING)
    bench.answer(PONG)
    for _ in range(100):
        bench.session.now += gap_s
        if bench.send(HIT):
            assert bench.session.now - last < REFRESH_S + gap_s
            last = bench.session.now
        assert bench.settle() == FIVE
    assert bench.session.now - last < REFRESH_S


def test_hits_of_a_client_that_does_not_read_go_private() -> None:
    bench = probed()
    bench.session.leaves_unread()
    assert bench.send(HIT) == in_place()
    bench.answer(FIVE)
    bench.session.requests.slow = False
    assert bench.send(HIT) == b""


def test_a_client_that_becomes_slow_waits_for_the_lane_first() -> None:
    bench = probed()
    bench.send(HIT)
    bench.session.leaves_unread()
    assert bench.send(HIT) == b""
    assert len(bench.lane.calls) == 1
    assert bench.settle() == FIVE
    assert bench.up() == in_place()


# -- order on the lane -----------------------------------------------------------------------------


def test_replies_leave_in_the_order_of_the_hits() -> None:
    bench = probed()
    bench.send(HIT * 3)
    first, second, third = bench.lane.calls
    bench.session.lane_answered(third, b":3\r\n")
    bench.session.lane_answered(second, b":2\r\n")
    assert bench.down() == b""
    bench.session.lane_answered(first, b":1\r\n")
    assert bench.down() == b":1\r\n:2\r\n:3\r\n"


def test_local_errors_keep_their_place() -> None:
    bench = probed()
    assert bench.send(WRONG_HIT + HIT + WRONG_HIT + HIT + WRONG_HIT) == b""
    assert bench.down() == ARITY
    assert len(bench.lane.calls) == 2
    bench.session.lane_answered(bench.lane.calls[0], b":1\r\n")
    assert bench.down() == b":1\r\n" + ARITY
    bench.session.lane_answered(bench.lane.calls[1], b":2\r\n")
    assert bench.down() == b":2\r\n" + ARITY
    assert not bench.session.outstanding()


def test_what_is_no_hit_waits_until_the_lane_owes_nothing() -> None:
    bench = probed()
    bench.send(HIT * 2)
    assert bench.send(PING, HIT) == b""
    bench.session.lane_answered(bench.lane.calls[0], FIVE)
    bench.session.resume()
    assert bench.up() == b""
    bench.session.lane_answered(bench.lane.calls[1], FIVE)
    bench.session.resume()
    assert bench.up() == PING + in_place()
    assert bench.down() == FIVE * 2


def test_at_most_so_many_calls_of_one_client_are_on_the_lane() -> None:
    bench = probed()
    bench.send(HIT * 200)
    assert len(bench.lane.calls) == MAX_CLIENT_HITS
    out = b""
    rounds = 0
    while bench.lane.calls:
        out += bench.settle()
        rounds += 1
        assert len(bench.lane.calls) <= MAX_CLIENT_HITS
    assert out == FIVE * 200
    assert rounds == 4
    assert bench.up() == b""


def test_a_long_call_takes_the_private_connection() -> None:
    """So what one client has on the lane is bounded in bytes, too."""
    bench = probed()
    size = MAX_LANE_CALL - len(bulks(b"RL.HIT", b"", b"10", b"60")) - 3
    for longer, on_lane in ((0, True), (1, False)):
        hit = bulks(b"RL.HIT", b"k" * (size + longer), b"10", b"60")
        assert len(hit) == MAX_LANE_CALL + longer
        sent = bench.send(HIT + hit + HIT)
        assert len(bench.lane.calls) == (3 if on_lane else 0)
        assert sent.count(b"EVAL\r\n") == (0 if on_lane else 3)
        bench.settle()


def test_the_window_opens_again_when_half_is_answered() -> None:
    bench = probed()
    bench.send(HIT * 100)
    for call in bench.lane.calls[:31]:
        bench.session.lane_answered(call, FIVE)
    bench.session.resume()
    assert len(bench.lane.calls) == 64
    bench.session.lane_answered(bench.lane.calls[31], FIVE)
    bench.session.resume()
    assert len(bench.lane.calls) == 96


def test_more_than_the_window_and_then_another_command() -> None:
    bench = probed()
    bench.send(HIT * (MAX_CLIENT_HITS + 1), PING + HIT)
    assert bench.settle() == FIVE * MAX_CLIENT_HITS
    assert bench.lane.calls == []
    assert bench.up() == in_place() + PING + in_place()
    assert bench.answer(FIVE + PONG + FIVE) == FIVE + PONG + FIVE


@pytest.mark.parametrize("cut", [1, 5, 20, len(HIT) - 1])
def test_a_hit_cut_behind_the_full_window(cut: int) -> None:
    bench = probed()
    bench.send(HIT * MAX_CLIENT_HITS + HIT[:cut], HIT[cut:] + PING)
    assert bench.settle() == FIVE * MAX_CLIENT_HITS
    assert bench.up() == in_place() + PING


def test_a_hit_in_pieces() -> None:
    bench = probed()
    for at in range(len(HIT)):
        assert bench.send(HIT[at : at + 1]) == b""
    assert len(bench.lane.calls) == 1
    call = bench.lane.calls[0]
    assert call.key == b"$1\r\nk\r\n"
    assert bench.settle() == FIVE


@pytest.mark.parametrize(
    "written",
    [
        b"rl.hit k 10 60\r\n",
        b"*4\rX$6\rXRL.HIT??$1\rXk??$2\rX10??$2\rX60??",
        bulks(b"Rl.hIt", b"k", b"10", b"60"),
    ],
)
def test_hits_in_other_writings_are_the_same_call(written: bytes) -> None:
    bench = probed()
    bench.send(HIT + written)
    one, other = bench.lane.calls
    assert other.key == one.key
    assert other.rule.words(LOADED) == one.rule.words(LOADED)
    assert other.rule.tail == one.rule.tail


def test_reset_of_limiters_is_del_on_the_private_connection() -> None:
    bench = probed()
    assert bench.send(bulks(b"RL.RESET", b"a", b"b")) == bulks(b"DEL", b"a", b"b")
    assert bench.answer(b":1\r\n") == b":1\r\n"
    assert bench.send(PING, bulks(b"rl.reset", b"a")) == PING + bulks(b"DEL", b"a")
    assert bench.answer(PONG, b":0\r\n") == PONG + b":0\r\n"
    bench.send(bulks(b"RL.RESET"))
    assert bench.down() == ARITY.replace(b"rl.hit", b"rl.reset")
    assert bench.send(HIT) == b""


def test_reset_of_limiters_waits_for_the_lane() -> None:
    bench = probed()
    bench.send(HIT)
    assert bench.send(bulks(b"RL.RESET", b"k")) == b""
    assert bench.settle() == FIVE
    assert bench.up() == bulks(b"DEL", b"k")


def test_help() -> None:
    bench = probed()
    assert bench.send(bulks(b"RL.HELP")) == GRAMMAR.help_call
    assert bench.answer(b"*1\r\n+a\r\n") == b"*1\r\n+a\r\n"
    bench.send(bulks(b"RL.HELP", b"x"))
    assert bench.down() == ARITY.replace(b"rl.hit", b"rl.help")


def test_help_is_refused_where_a_hit_would_be() -> None:
    bench = opened()
    assert bench.send(bulks(b"RL.HELP")) == GRAMMAR.help_call
    assert bench.answer(NOAUTH) == NOAUTH


def test_help_inside_multi_aborts_it() -> None:
    bench = opened()
    bench.send(bulks(b"MULTI"))
    bench.answer(b"+OK\r\n")
    assert bench.send(bulks(b"RL.HELP")) == bulks(b"RL.HELP")
    assert bench.answer(UNKNOWN) == b"-ERR RL.HELP is not allowed in transactions\r\n"


# -- errors on the private connection --------------------------------------------------------------


def test_a_wrong_hit_is_answered_here_at_its_place() -> None:
    bench = opened()
    assert bench.send(WRONG_HIT) == b""
    assert bench.down() == ARITY
    assert bench.send(PING, WRONG_HIT, PING) == PING * 2
    assert bench.down() == b""
    assert bench.answer(PONG) == PONG + ARITY
    assert bench.answer(PONG) == PONG


def test_a_wrong_hit_in_multi_is_rejected_by_redis_in_our_words() -> None:
    bench = opened()
    sent = bulks(b"MULTI") + WRONG_HIT + bulks(b"EXEC")
    assert bench.send(sent) == sent
    assert bench.answer(b"+OK\r\n" + UNKNOWN + b"-EXECABORT x\r\n") == (
        b"+OK\r\n" + ARITY + b"-EXECABORT x\r\n"
    )


def test_redis_own_refusal_of_a_wrong_hit_stands() -> None:
    bench = opened()
    bench.send(bulks(b"MULTI") + WRONG_HIT)
    assert bench.answer(b"+OK\r\n-LOADING x\r\n") == b"+OK\r\n-LOADING x\r\n"


def test_a_wrong_hit_of_a_client_that_does_not_read_goes_to_redis() -> None:
    bench = opened()
    bench.session.leaves_unread()
    assert bench.send(WRONG_HIT) == WRONG_HIT
    assert bench.answer(UNKNOWN) == ARITY


def test_errors_of_our_scripts_are_cleaned() -> None:
    sha = b"0" * 40
    bench = opened()
    bench.send(HIT + HIT)
    dirty = b"-OOM no script: " + sha + b", on @user_script:1.\r\n"
    whole = dirty + FIVE
    assert bench.answer(*[whole[at : at + 1] for at in range(len(whole))]) == b"-OOM no\r\n" + FIVE


def test_a_clients_own_script_errors_are_not() -> None:
    bench = opened()
    dirty = b"-ERR x script: " + b"0" * 40 + b", on @user_script:1.\r\n"
    bench.send(bulks(b"EVAL", b"x", b"0"))
    assert bench.answer(dirty) == dirty


HUGE_HIT = bulks(b"RL.HIT", b"k" * 70000, b"10", b"60")


@pytest.mark.parametrize("size", [1 << 20, 5000, 66000])
def test_a_hit_of_more_than_64_kb_is_an_error(size: int) -> None:
    bench = probed()
    pieces = [HUGE_HIT[at : at + size] for at in range(0, len(HUGE_HIT), size)]
    assert bench.send(*pieces) == b""
    assert bench.down() == r.TOO_LONG
    assert bench.session.requests.unread() < 100
    assert bench.send(PING) == PING
    assert bench.answer(PONG) == PONG


def test_a_huge_hit_in_multi_aborts_it() -> None:
    bench = opened()
    bench.send(bulks(b"MULTI"))
    bench.answer(b"+OK\r\n")
    short = bulks(b"RL.HIT")
    assert bench.send(HUGE_HIT[:9000], HUGE_HIT[9000:], PING) == short + PING
    assert bench.answer(UNKNOWN + b"+QUEUED\r\n") == r.TOO_LONG + b"+QUEUED\r\n"


def test_a_huge_hit_behind_the_lane_keeps_its_place() -> None:
    bench = probed()
    bench.send(HIT)
    bench.send(HUGE_HIT[:66000], HUGE_HIT[66000:] + HIT)
    assert bench.down() == b""
    assert bench.settle().startswith(FIVE + r.TOO_LONG)


def test_big_values_stream() -> None:
    bench = opened()
    value = bulks(b"SET", b"k", b"v" * 500000)
    sent = b""
    for at in range(0, len(value), 60000):
        sent += bench.send(value[at : at + 60000])
        assert bench.session.requests.unread() == 0
    assert sent == value
    reply = b"$500000\r\n" + b"v" * 500000 + b"\r\n"
    assert bench.answer(b"+OK\r\n") == b"+OK\r\n"
    bench.send(bulks(b"GET", b"k"))
    for at in range(0, len(reply), 60000):
        assert bench.answer(reply[at : at + 60000]) == reply[at : at + 60000]
    assert bench.send(HIT) == in_place()


# -- WAIT ------------------------------------------------------------------------------------------

WAIT = bulks(b"WAIT", b"1", b"0")


def lane_used() -> Bench:
    bench = probed()
    bench.send(HIT)
    assert bench.settle() == FIVE
    return bench


REWRITE = wait_cover.REWRITE + b"$1\r\nk\r\n"


def test_wait_behind_a_hit_on_the_lane() -> None:
    bench = lane_used()
    assert bench.send(WAIT) == REWRITE + WAIT
    assert bench.answer(b":1\r\n:1\r\n") == b":1\r\n"
    assert bench.send(WAIT) == WAIT
    assert bench.answer(b":1\r\n") == b":1\r\n"


def test_hits_of_a_client_that_waits_go_by_lane_again() -> None:
    bench = lane_used()
    for _ in range(3):
        assert bench.send(WAIT) == REWRITE + WAIT
        bench.answer(b":1\r\n:1\r\n")
        assert bench.send(HIT) == b""
        assert bench.settle() == FIVE


@pytest.mark.parametrize("first", [PING, bulks(b"SET", b"a", b"b" * 100)])
def test_a_private_command_between_does_not_cover_the_hit(first: bytes) -> None:
    bench = lane_used()
    assert bench.send(first + WAIT) == first + REWRITE + WAIT


@pytest.mark.parametrize("failure", [b":0\r\n", b"-NOPERM no\r\n", b"$1\r\n1\r\n"])
def test_an_error_where_the_key_can_not_be_rewritten(failure: bytes) -> None:
    bench = lane_used()
    bench.send(WAIT + WAIT)
    error = bench.answer(failure + b":1\r\n")
    assert error.startswith(b"-ERR WAIT can't cover this connection's earlier writes here")
    assert bench.answer(b":1\r\n:1\r\n") == b":1\r\n"


def test_the_error_of_a_wrong_wait_is_the_servers() -> None:
    bench = lane_used()
    bench.send(bulks(b"WAIT", b"x", b"0"))
    assert bench.answer(b":0\r\n-ERR value\r\n") == b"-ERR value\r\n"


def test_an_error_where_replies_are_not_counted() -> None:
    bench = lane_used()
    bench.send(bulks(b"CLIENT", b"NO-EVICT", b"ON"))
    bench.answer(b"+OK\r\n")
    assert bench.send(WAIT) == bulks(b"RL.DENIED", b"WAIT")
    assert bench.answer(UNKNOWN).startswith(b"-ERR WAIT can't cover")


def test_wait_behind_a_hit_that_was_refused_here() -> None:
    bench = lane_used()
    assert bench.send(WRONG_HIT + WAIT) == REWRITE + WAIT
    assert bench.answer(b":1\r\n", b":1\r\n") == ARITY + b":1\r\n"


def test_wait_rewrites_no_key_that_redis_refused_a_hit_on() -> None:
    bench = lane_used()
    bench.send(bulks(b"RL.HIT", b"foreign", b"10", b"60"))
    assert bench.settle(b"-WRONGTYPE no\r\n") == b"-WRONGTYPE no\r\n"
    assert bench.send(WAIT) == REWRITE + WAIT


def test_a_long_key_is_not_kept() -> None:
    bench = probed()
    assert bench.send(bulks(b"RL.HIT", b"k" * 5000, b"10", b"60"))
    assert bench.session.private.cover.last_hit == b"$1\r\nk\r\n"


def test_wait_behind_a_look_by_lane() -> None:
    bench = probed()
    bench.send(bulks(b"RL.PEEK", b"k", b"10", b"60"))
    assert bench.settle() == FIVE
    assert bench.send(WAIT) == WAIT


def test_waitaof_behind_a_hit_on_the_lane() -> None:
    bench = lane_used()
    wait = bulks(b"WAITAOF", b"0", b"0", b"0")
    assert bench.send(wait) == REWRITE + wait
    assert bench.answer(b":0\r\n*2\r\n:1\r\n:1\r\n").startswith(b"-ERR WAITAOF can't cover")


# -- pushes ----------------------------------------------------------------------------------------

PUSH = b">2\r\n$7\r\nmessage\r\n$1\r\nx\r\n"


def test_pushes_come_any_time() -> None:
    bench = probed()
    assert bench.answer(PUSH) == PUSH
    bench.send(PING)
    assert bench.answer(PUSH + PONG + PUSH) == PUSH + PONG + PUSH


@pytest.mark.parametrize("cut", range(1, len(PUSH)))
def test_a_reply_of_the_lane_never_cuts_a_push(cut: int) -> None:
    bench = probed()
    bench.send(HIT)
    out = bench.answer(PUSH[:cut])
    bench.session.lane_answered(bench.lane.calls[0], FIVE)
    bench.session.resume()
    out += bench.down()
    out += bench.answer(PUSH[cut:])
    assert out in (PUSH + FIVE, FIVE + PUSH)
    assert not bench.session.outstanding()


@pytest.mark.parametrize("cut", range(1, len(PUSH)))
def test_a_local_error_never_cuts_a_push(cut: int) -> None:
    bench = probed()
    out = bench.answer(PUSH[:cut])
    bench.send(WRONG_HIT)
    out += bench.down()
    out += bench.answer(PUSH[cut:])
    assert out in (PUSH + ARITY, ARITY + PUSH)


def test_half_a_push_keeps_hits_off_the_lane() -> None:
    bench = probed()
    bench.answer(PUSH[:-3])
    assert bench.send(HIT) == in_place()


@pytest.mark.parametrize("behind", [PUSH, PUSH[:5], PUSH[:-3]])
def test_a_push_behind_a_replaced_reply_is_kept(behind: bytes) -> None:
    bench = opened()
    bench.send(bulks(b"CLIENT", b"TRACKING", b"ON"))
    bench.answer(b"+OK\r\n")
    assert bench.send(WRONG_HIT) == WRONG_HIT
    out = bench.answer(UNKNOWN + behind) + bench.answer(PUSH[len(behind) :])
    assert out == ARITY + PUSH


def test_a_push_behind_the_reply_to_the_rewrite() -> None:
    bench = lane_used()
    bench.send(WAIT)
    assert bench.answer(b":1\r\n" + PUSH[:8], PUSH[8:] + b":1\r\n") == PUSH + b":1\r\n"


def test_what_nobody_asked_for_is_passed_on_and_nothing_is_trusted_any_more() -> None:
    bench = probed()
    assert bench.answer(b"-ERR max clients\r\n") == b"-ERR max clients\r\n"
    assert bench.send(HIT) == in_place()


# -- subscribed ------------------------------------------------------------------------------------


def test_replies_of_a_subscriber_are_passed_on_as_they_come() -> None:
    bench = opened()
    bench.send(bulks(b"SUBSCRIBE", b"c"))
    bench.answer(b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n")
    assert bench.send(HIT) == in_place()
    message = b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$5\r\nhello\r\n"
    refusal = b"-ERR Can't execute 'eval': only (P|S)SUBSCRIBE are allowed\r\n"
    stream = message + refusal + message[:9]
    assert bench.answer(stream) == stream
    assert bench.answer(message[9:]) == message[9:]


# -- a transaction ---------------------------------------------------------------------------------


def test_hits_inside_multi() -> None:
    bench = probed()
    sent = bench.send(bulks(b"MULTI"), HIT, bulks(b"EXEC"))
    assert sent == bulks(b"MULTI") + in_place() + bulks(b"EXEC")
    replies = b"+OK\r\n+QUEUED\r\n*1\r\n" + FIVE
    assert bench.answer(replies) == replies
    assert bench.send(HIT) == b""


# -- the database of --upstream --------------------------------------------------------------------


def test_the_base_database_is_selected_first() -> None:
    bench = Bench(2)
    bench.send(HIT)
    bench.session.upstream_opened()
    assert bench.up() == BASE
    assert bench.answer(b"+OK\r\n") == b""
    assert bench.up() == in_place()
    assert bench.answer(FIVE) == FIVE
    bench.send(HIT)
    assert bench.identities[-1].key() == (None, None, 2)


def test_the_base_database_refused_and_selected_after_auth() -> None:
    bench = Bench(2)
    bench.send(HIT)
    bench.session.upstream_opened()
    assert bench.up() == BASE
    assert bench.answer(NOAUTH) == b""
    assert bench.up() == in_place()
    assert bench.answer(NOAUTH) == NOAUTH
    auth = bulks(b"AUTH", b"bob", b"pw")
    sent = bench.send(auth)
    out = bench.answer(b"+OK\r\n")
    sent += bench.up()
    assert sent == auth + BASE
    out += bench.answer(b"+OK\r\n")
    assert out == b"+OK\r\n"
    assert bench.send(HIT) == in_place()
    bench.answer(FIVE)
    assert bench.send(HIT) == b""
    assert bench.identities[-1].key() == (b"bob", b"pw", 2)


def answering(bench: Bench, sent: bytes, replies: dict[bytes, list[bytes]]) -> tuple[bytes, bytes]:
    """Plays Redis until nothing more comes: what was sent upstream, and what the client got."""
    up = bench.send(sent)
    all_up = up
    down = bench.down()
    while up:
        framer = RequestFramer()
        framer.feed(up)
        reply_slots = b""
        while framer.next() == COMMAND:
            reply_slots += replies[framer.buf[framer.start : framer.end]].pop(0)
        down += bench.answer(reply_slots)
        up = bench.up()
        all_up += up
    return all_up, down


def test_the_base_database_behind_a_hello_that_errs_and_has_logged_in() -> None:
    bench = Bench(2)
    hello = bulks(b"HELLO", b"3", b"AUTH", b"bob", b"pw", b"SETNAME", b"a b")
    bench.send(hello + PING)
    bench.session.upstream_opened()
    assert bench.up() == BASE
    assert bench.answer(NOAUTH) == b""
    assert bench.up() == hello
    spaces = b"-ERR Client names cannot contain spaces\r\n"
    assert bench.answer(spaces) == spaces
    assert bench.up() == BASE
    assert bench.answer(b"+OK\r\n") == b""
    assert bench.up() == PING
    assert bench.answer(PONG) == PONG


def test_what_decides_about_the_database_can_not_be_told_any_more() -> None:
    bench = probed(2)
    assert bench.send(bulks(b"RESET") + PING) == bulks(b"RESET")
    assert bench.answer(b"%%1\r\nno RESP\r\n") == b"%%1\r\nno RESP\r\n"
    assert bench.session.closed


def test_reset_selects_the_base_database_again() -> None:
    bench = probed(2)
    reset = bulks(b"RESET")
    up, down = answering(
        bench, reset + PING, {reset: [b"+RESET\r\n"], BASE: [b"+OK\r\n"], PING: [PONG]}
    )
    assert up == reset + BASE + PING
    assert down == b"+RESET\r\n" + PONG


def test_reset_in_single_bytes_is_not_torn() -> None:
    bench = probed(2)
    reset = bulks(b"RESET")
    sent = bench.send(*[reset[at : at + 1] for at in range(len(reset))])
    bench.answer(b"+RESET\r\n")
    assert sent + bench.up() == reset + BASE


def test_a_reset_that_redis_refuses_leaves_the_clients_database() -> None:
    bench = probed(2)
    bench.send(bulks(b"SELECT", b"3"))
    bench.answer(b"+OK\r\n")
    wrong = bulks(b"RESET", b"x")
    up, down = answering(bench, wrong, {wrong: [ARITY], BASE: [b"+OK\r\n"]})
    assert up == wrong
    assert down == ARITY


def test_the_clients_own_select_is_not_undone_by_auth() -> None:
    bench = Bench(2)
    bench.send(PING)
    bench.session.upstream_opened()
    bench.answer(NOAUTH)
    bench.answer(NOAUTH)
    bench.up()
    one, two = bulks(b"AUTH", b"a", b"a"), bulks(b"AUTH", b"b", b"b")
    select = bulks(b"SELECT", b"3")
    good = [b"+OK\r\n"] * 3
    replies = {one: good[:], two: good[:], select: good[:], BASE: good[:]}
    up, down = answering(bench, one + select + two, replies)
    assert down == b"+OK\r\n" * 3
    assert BASE not in up[up.index(select) :]
    assert bench.session.private.state.identity.key() == (b"b", b"b", 3)


# -- failures --------------------------------------------------------------------------------------

DOWN = r.unreachable("redis:1", "refused")


def test_upstream_failed_answers_what_waited_and_the_client_stays() -> None:
    bench = Bench()
    bench.send(PING + HIT + b"\r\n" + WRONG_HIT + bulks(b"RL.HELP"))
    bench.session.upstream_failed("refused")
    assert bench.down() == DOWN * 2 + ARITY + DOWN
    assert not bench.session.closed
    assert bench.session.private.status == private_stream.NONE
    bench.send(PING)
    assert bench.session.private.status == private_stream.OPENING
    bench.session.upstream_opened()
    assert bench.up() == PING


def test_upstream_failed_keeps_an_unfinished_command() -> None:
    bench = Bench()
    bench.send(PING + HIT[:-4])
    bench.session.upstream_failed("refused")
    assert bench.down() == DOWN
    bench.send(HIT[-4:])
    bench.session.upstream_opened()
    assert bench.up() == in_place()


def test_upstream_failed_inside_a_big_value() -> None:
    bench = Bench()
    value = bulks(b"SET", b"k", b"FLUSHALL\r\n" * 1000)
    bench.send(value[:100])
    bench.session.upstream_failed("refused")
    assert bench.down() == DOWN
    bench.send(value[100:] + PING)
    assert bench.session.private.status == private_stream.OPENING
    bench.session.upstream_opened()
    assert bench.up() == PING


def test_a_value_is_never_taken_for_commands_after_a_failure() -> None:
    bench = Bench()
    bench.send(b"*4\r\n$3\r\nSET\r\n$1\r\nk\r\n$20\r\nFLUSH")
    bench.session.upstream_failed("refused")
    bench.down()
    bench.send(b"ALL\r\nFLUSHALL\r\nx\r\n" + b"X9\r\nbroken")
    if bench.session.private.status == private_stream.OPENING:
        bench.session.upstream_opened()
    assert b"FLUSHALL" not in bench.up()


def test_quit_is_answered_without_redis() -> None:
    bench = Bench()
    bench.send(PING + bulks(b"QUIT") + PING)
    bench.session.upstream_failed("refused")
    assert bench.down() == DOWN + b"+OK\r\n"
    assert bench.session.closed


VALUE = r.bulk(b"-ERR Protocol error")  # only reads like one

LOSSES = [
    # sent, answered before the loss, what the client gets, behind that
    (HIT + HIT, b"", r.LOST * 2),
    (HIT + HIT, FIVE, FIVE + r.LOST),
    (HIT + PING + HIT, b"", r.LOST),
    (PING + HIT, b"", b""),
    (PING + HIT + WRONG_HIT + HIT + PING, PONG, PONG + r.LOST + ARITY + r.LOST),
    (PING + HIT, b"-ERR Protocol error: x\r\n", b"-ERR Protocol error: x\r\n"),
    (PING + HIT, VALUE, VALUE + r.LOST),
    (PING + HIT, PONG + FIVE[:5], PONG + r.LOST),
    (PING + HIT, PONG[:3], PONG[:3]),
    (bulks(b"MULTI") + HIT, b"+OK\r\n", b"+OK\r\n" + r.LOST),
    (bulks(b"QUIT"), b"+OK\r\n", b"+OK\r\n"),
    (bulks(b"QUIT") + HIT + PING, b"+OK\r\n", b"+OK\r\n"),
    (bulks(b"QUIT") + WRONG_HIT, b"+OK\r\n", b"+OK\r\n"),
]


@pytest.mark.parametrize(("sent", "answered", "expected"), LOSSES)
def test_upstream_lost(sent: bytes, answered: bytes, expected: bytes) -> None:
    bench = opened()
    bench.send(sent)
    out = bench.answer(answered) if answered else b""
    bench.session.upstream_lost()
    assert out + bench.down() == expected
    assert bench.session.closed
    assert bench.session.private.status == private_stream.LOST
    bench.session.receive(PING)
    assert bench.up() == b""


def test_upstream_lost_waits_for_the_lane() -> None:
    bench = probed()
    bench.send(HIT)
    bench.session.upstream_lost()
    assert not bench.session.closed
    assert bench.settle() == FIVE
    assert bench.session.closed


def test_upstream_lost_and_then_the_lane_too() -> None:
    bench = probed()
    bench.send(HIT * 2)
    bench.session.upstream_lost()
    one, two = bench.lane.calls
    bench.session.lane_answered(one, FIVE)
    bench.session.lane_returned(two)
    bench.session.resume()
    assert bench.down() in (FIVE, FIVE + r.LOST)
    assert bench.session.closed


def test_calls_that_were_never_sent_go_private() -> None:
    bench = probed()
    bench.send(HIT + WRONG_HIT + HIT, HIT)
    calls = bench.lane.calls[:]
    bench.session.lane_answered(calls[0], r.LOST)
    for call in calls[1:]:
        bench.session.lane_returned(call)
    bench.session.resume()
    assert bench.up() == in_place() * 2
    assert bench.down() == r.LOST + ARITY
    assert bench.answer(FIVE * 2) == FIVE * 2
    assert not bench.session.outstanding()


def test_calls_that_were_never_sent_go_before_what_waited() -> None:
    bench = probed()
    bench.send(HIT)
    bench.send(PING)
    bench.session.lane_returned(bench.lane.calls[0])
    bench.session.resume()
    assert bench.up() == in_place() + PING


def test_a_call_returned_while_half_a_push_is_out() -> None:
    bench = probed()
    bench.send(HIT)
    out = bench.answer(PUSH[:-3])
    bench.send(HIT)
    first = bench.lane.calls[0]
    bench.session.lane_answered(first, FIVE)
    for call in bench.lane.calls[1:]:
        bench.session.lane_returned(call)
    bench.session.resume()
    out += bench.down() + bench.answer(PUSH[-3:])
    assert out == PUSH + FIVE
    assert bench.up() == in_place()
    assert bench.answer(FIVE) == FIVE


# -- the end ---------------------------------------------------------------------------------------


def test_nothing_is_passed_to_redis_behind_quit_but_bytes() -> None:
    bench = probed()
    assert bench.send(bulks(b"QUIT") + HIT + WRONG_HIT).startswith(bulks(b"QUIT"))
    assert bench.lane.calls == []
    out = bench.answer(b"+OK\r\n")
    bench.session.upstream_lost()
    assert out + bench.down() == b"+OK\r\n"


def test_end_of_file_before_anything() -> None:
    bench = Bench()
    bench.session.receive_eof()
    assert bench.session.closed


def test_end_of_file_is_passed_on() -> None:
    bench = opened()
    bench.send(PING)
    bench.session.receive_eof()
    assert bench.session.wants_eof
    assert bench.answer(PONG) == PONG
    bench.session.upstream_lost()
    assert bench.session.closed


def test_end_of_file_while_it_opens() -> None:
    bench = Bench()
    bench.send(PING)
    bench.session.receive_eof()
    assert not bench.session.wants_eof
    assert not bench.session.closed
    bench.session.upstream_opened()
    assert bench.up() == PING
    assert bench.session.wants_eof


def test_end_of_file_waits_for_the_lane() -> None:
    bench = probed()
    bench.send(HIT)
    bench.session.receive_eof()
    assert not bench.session.wants_eof
    assert bench.settle() == FIVE
    assert bench.session.wants_eof


def test_end_of_file_waits_for_what_waits() -> None:
    bench = probed()
    bench.send(HIT * 100)
    bench.session.receive_eof()
    out = b""
    while bench.lane.calls:
        assert not bench.session.wants_eof
        out += bench.settle()
    assert out == FIVE * 100
    assert bench.session.wants_eof


def test_end_of_file_inside_a_command() -> None:
    bench = Bench()
    bench.send(HIT[:-3])
    bench.session.receive_eof()
    assert bench.session.closed
    assert bench.down() == b""


def test_end_of_file_and_no_upstream() -> None:
    bench = Bench()
    bench.send(PING)
    bench.session.receive_eof()
    bench.session.upstream_failed("refused")
    assert bench.down() == DOWN
    assert bench.session.closed


def test_abandon() -> None:
    bench = probed()
    bench.send(HIT)
    bench.session.abandon()
    assert bench.session.closed
    bench.send(PING)
    bench.settle()
    assert bench.up() == b""


# -- the pipe --------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [b"*x\r\n", b"*1\r\nfoo\r\n", b'GET "a\r\n'])
def test_malformed_input_makes_a_pipe(wrong: bytes) -> None:
    bench = probed()
    assert bench.send(PING + HIT + wrong + PING) == PING + in_place() + wrong + PING
    assert bench.send(HIT + b"\0\xff") == HIT + b"\0\xff"
    replies = PONG + FIVE + b"-ERR Protocol error\r\nanything \r at all"
    assert bench.answer(replies) == replies
    assert bench.answer(b"*9\r\n") == b"*9\r\n"
    bench.session.upstream_lost()
    assert bench.down() == b""
    assert bench.session.closed


def test_malformed_input_waits_for_the_lane() -> None:
    bench = probed()
    bench.send(HIT)
    assert bench.send(b"*x\r\n", b"more") == b""
    assert bench.settle() == FIVE
    assert bench.up() == b"*x\r\nmore"


def test_malformed_input_in_a_hit_that_is_not_forwarded() -> None:
    bench = opened()
    head = b"*4\r\n$6\r\nRL.HIT\r\n$70000\r\n" + b"k" * 70000 + b"\r\n"
    sent = bench.send(head, b"X")
    assert bench.down() == r.TOO_LONG
    assert b"kkk" not in sent
    assert sent  # something for Redis to judge


@pytest.mark.parametrize("name", [b"MONITOR", b"PSYNC", b"SYNC", b"REPLCONF", b"DEBUG"])
def test_streams_are_passed_on(name: bytes) -> None:
    bench = probed()
    bench.send(PING + bulks(name, b"x") + HIT)
    assert bench.answer(PONG + b"$10\r\nnot ten") == PONG + b"$10\r\nnot ten"
    assert bench.answer(b"\xff:::") == b"\xff:::"
    assert bench.send(WRONG_HIT) == WRONG_HIT


def test_malformed_replies_are_passed_on() -> None:
    bench = probed()
    bench.send(PING + PING)
    assert bench.answer(PONG + b"HTTP/1.1 400\r\n") == PONG + b"HTTP/1.1 400\r\n"
    assert bench.send(HIT) == in_place()


# -- the bound on slots ----------------------------------------------------------------------------


def test_too_many_replies_to_follow() -> None:
    bench = opened()
    pair = bulks(b"SELECT", b"0") + PING
    many = reply_slots.MAX_SLOTS // 2 + 10
    assert bench.send(pair * many) == pair * many
    assert bench.answer(b"+OK\r\n+PONG\r\n" * many) == b"+OK\r\n+PONG\r\n" * many
    assert bench.send(HIT) == in_place()
    assert bench.answer(FIVE) == FIVE


def test_no_local_error_is_lost_among_too_many() -> None:
    bench = opened()
    before, many = reply_slots.MAX_SLOTS - 12, 20
    select = bulks(b"SELECT", b"0")
    sent = bench.send(bulks(b"BLPOP", b"k", b"0") + select * before, (WRONG_HIT + PING) * many)
    forwarded = sent.count(WRONG_HIT)
    assert 0 < forwarded < many
    assert sent.count(PING) == many
    replies = b"*-1\r\n" + b"+OK\r\n" * before
    replies += b"+PONG\r\n" * (many - forwarded) + (UNKNOWN + PONG) * forwarded
    out = bench.answer(replies)
    assert out.count(b"-ERR") == many
    assert out.count(PONG) == many


def test_of_a_line_without_an_end_so_much_is_passed_on_as_shows_it() -> None:
    bench = opened()
    assert bench.send(PING + b"a" * 65_536) == PING
    assert bench.send(b"a" * 200_000) == b"a" * 65_537
    assert bench.send(b"a" * 200_000 + b"\r\n" + PING) == b""
    bench = opened()
    assert bench.send(b"*1\r\n$x" + b"a" * 70_000) == b"*1\r\n$x" + b"a" * 70_000  # not a line


# -- others have their turn ------------------------------------------------------------------------

BLPOP = bulks(b"BLPOP", b"k", b"0")
HELD = bulks(b"RL.HIT", b"held", b"10", b"60", b"WAIT", b"60")
REFUSED = r.five(1, 10, 0, 5, 5)
NIL = b"*-1\r\n"


def test_so_many_hits_are_on_their_way_at_once_on_the_private_connection() -> None:
    """What waits behind them goes when half of them are answered."""
    bench = opened()
    sent = bench.send(BLPOP + HIT * 200 + PING)
    assert sent == BLPOP + in_place() * MAX_CLIENT_HITS
    assert bench.session.wait == WAIT_IN_PLACE
    assert bench.answer(NIL + FIVE * 31) == NIL + FIVE * 31
    assert bench.up() == b""
    assert bench.answer(FIVE) == FIVE
    assert bench.up() == in_place() * 32
    assert bench.send(HIT) == b""  # none overtakes


def test_so_many_wrong_ones_wait_for_their_place() -> None:
    bench = opened()
    assert bench.send(BLPOP + (WRONG_HIT + PING) * 200) == BLPOP + PING * MAX_CLIENT_HITS
    out = bench.answer(NIL + PONG * MAX_CLIENT_HITS)
    assert out == NIL + (ARITY + PONG) * MAX_CLIENT_HITS + ARITY  # (the next one's place is here)
    assert bench.up() == PING * (MAX_CLIENT_HITS + 1)


def test_what_waits_for_answers_goes_on_when_these_are_late() -> None:
    bench = opened()
    bench.session.context.timeouts.timeout_s = 1.0
    bench.send(HIT * (MAX_CLIENT_HITS + 1))
    bench.session.overdue(bench.session.now + 1.5)
    assert bench.down().count(b"-UPSTREAMDOWN") == MAX_CLIENT_HITS
    assert bench.up() == in_place()


def test_a_transaction_is_not_cut() -> None:
    bench = opened()
    sent = bench.send(bulks(b"MULTI") + HIT * 200)
    assert sent == bulks(b"MULTI") + in_place() * 200


def test_those_who_have_more_in_hand_share_what_each_may_have_alone() -> None:
    lane = FakeLane()
    shared = context_of(lane)
    benches = [probed(context=shared) for _ in range(3)]
    first, second, third = benches
    first.send(HIT * 200)
    second.send(HIT * 200)
    assert shared.budget.backlogged == 2
    assert len(lane.calls) == 2 * MAX_CLIENT_HITS
    third.send(HIT)  # who has less is not concerned
    assert len(lane.calls) == 2 * MAX_CLIENT_HITS + 1
    calls, lane.calls = lane.calls, []
    for call in calls:
        call.caller.lane_answered(call, FIVE)
    for bench in benches:
        bench.session.resume()
    assert len(lane.calls) == MAX_CLIENT_HITS
    first.session.abandon()
    assert shared.budget.backlogged == 1
    while lane.calls:
        calls, lane.calls = lane.calls, []
        for call in calls:
            call.caller.lane_answered(call, FIVE)
        shared.budget.work = 0
        second.session.resume()
    assert second.down() == FIVE * 200
    assert shared.budget.backlogged == 0


class Crowded:
    """Sessions that share a lane."""

    def __init__(self, count: int) -> None:
        self.lane = FakeLane()
        self.shared = context_of(self.lane)
        self.shared.lane_of = lambda _identity: self.lane
        self.benches = [probed(context=self.shared) for _ in range(count)]
        self.other = self.benches.pop()
        self.got = [b""] * len(self.benches)
        self.line: list[Bench] = []
        for bench in self.benches:
            bench.session.flush = partial(self.line.append, bench)

    def answer(self) -> list[int]:
        """Redis answers what is on its way; how many each has on its way then."""
        calls, self.lane.calls = self.lane.calls, []
        for call in calls:
            call.caller.lane_answered(call, FIVE if call.waiter is None else REFUSED)
        for caller in dict.fromkeys(call.caller for call in calls):
            caller.resume()
        return self.turns()

    def turns(self) -> list[int]:
        """All have the turns of the loop that they wait for; how many each has on its way."""
        for bench in [*self.line, *self.benches]:
            if bench.session.wait == WAIT_TICK:
                self.shared.budget.work = 0
                bench.session.go_on()
        self.line.clear()
        for number, bench in enumerate(self.benches):
            self.got[number] += bench.down()
        return [
            sum(call.caller is bench.session for call in self.lane.calls) for bench in self.benches
        ]


def test_backlogged_clients_share_the_hits_of_one() -> None:
    for count, each in ((1, MAX_CLIENT_HITS), (2, 32), (5, 12), (MAX_CLIENT_HITS, LEAST_HITS)):
        crowded = Crowded(count + 1)
        for bench in crowded.benches:
            bench.send(HIT * 300)
        # A client is backlogged once the first hits leave more buffered.
        assert crowded.turns() == [MAX_CLIENT_HITS] * count
        crowded.other.send(HIT)  # a client without a backlog is not concerned
        assert crowded.other.session.wait == WAIT_NOTHING
        assert crowded.answer() == [each] * count
        while any(crowded.answer()):
            pass
        assert crowded.got == [FIVE * 300] * count
        assert crowded.shared.budget.backlogged == 0


LEAVES = ["goes", "is lost", "is closed", "holds a hit", "sends something else", "is slow"]


@pytest.mark.parametrize("how", LEAVES)
def test_the_share_of_a_client_that_leaves_is_free_again(how: str) -> None:
    crowded = Crowded(3)
    rest = HELD if how == "holds a hit" else PING * 3
    leaver, stayer = crowded.benches
    leaver.send(HIT * (MAX_CLIENT_HITS + 40) + rest)
    stayer.send(HIT * 1000)
    assert crowded.answer() == [32, 32]
    session = leaver.session
    if how == "is lost":
        session.upstream_lost()
    elif how in ("goes", "is closed"):
        # Its replies may stay unread for long: only "goes" is followed by let_go().
        session.abandon()
        if how == "goes":
            session.let_go()
    elif how == "is slow":
        session.leaves_unread()
    crowded.answer()
    crowded.answer()
    if how == "holds a hit":
        assert session.wait == WAIT_HELD
    assert crowded.shared.budget.backlogged == 1
    assert sum(crowded.answer()) == MAX_CLIENT_HITS


def test_refusals_that_are_remembered_are_answered_in_turns() -> None:
    """An endless pipeline of them does not delay other clients."""
    crowded = Crowded(2)
    crowded.lane = KnowingLane(known=REFUSED)
    bench = crowded.benches[0]
    bench.session.fenced = False
    bench.send(HIT * MAX_CLIENT_HITS + numbered(b"known") * 1000)
    crowded.other.send(HIT)
    for _ in range(6):
        crowded.answer()
        assert bench.session.wait == WAIT_TICK
    while bench.session.outstanding():
        crowded.turns()
    assert crowded.got[0] == FIVE * MAX_CLIENT_HITS + REFUSED * 1000


@settings(max_examples=20, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(2, 7))
def test_all_hits_of_all_backlogged_clients_are_answered(random: Random, count: int) -> None:
    crowded = Crowded(count + 1)
    asked = [0] * count
    for _ in range(random.randint(5, 60)):
        number = random.randrange(count)
        match random.randrange(5):
            case 0 | 1:
                many = random.choice([1, 3, 70, 200])
                asked[number] += many
                crowded.benches[number].send(HIT * many)
            case 2:
                crowded.other.send(HIT)
            case _:
                crowded.answer()
        crowded.turns()
    rounds = 0
    while any(crowded.answer()) or any(bench.session.outstanding() for bench in crowded.benches):
        rounds += 1
        assert rounds < 5000, "a client waits for ever"
    assert [len(got) for got in crowded.got] == [many * len(FIVE) for many in asked]
    assert crowded.shared.budget.backlogged == 0


def test_who_leaves_replies_unread_goes_on_slowly() -> None:
    """Not never: a client may read when all is written, and Redis would take all of it."""
    bench = opened()
    shared = bench.session.context
    bench.send(HIT * 100)
    assert bench.session.wait == WAIT_IN_PLACE
    bench.session.leaves_unread()  # whose answers are not read from now on
    assert bench.session.wait == WAIT_PACE
    for _ in range(3):
        shared.budget.slow_hits = 8
        bench.session.go_on()
        out = b"".join(bench.session.private.out)
        bench.session.private.out.clear()
        assert out == in_place() * 8
    bench.session.go_on()
    assert not bench.session.private.out
    assert bench.up() == in_place() * (100 - MAX_CLIENT_HITS - 24)
    assert bench.send(PING * 100) == PING * 100  # what is Redis' own is its own matter


def test_who_sends_much_waits_for_a_turn_where_much_was_done() -> None:
    bench = opened()
    shared = bench.session.context
    shared.budget.work = TICK_WORK
    much = PING * (SMALL // len(PING) + 1)
    assert bench.send(PING) == PING
    bench.session.receive(much)
    assert bench.session.wait == WAIT_TICK
    assert not bench.session.private.out
    shared.budget.work = 0
    bench.session.receive(PING)  # behind what waits
    bench.session.go_on()
    assert bench.up() == much + PING
    shared.budget.work = 0
    bench.session.receive(much)
    assert bench.up() == much
    assert shared.budget.work > SMALL // len(PING)
    for opens in (True, False):  # likewise when many get what they waited for at once
        bench = Bench()
        bench.session.receive(much)
        bench.session.context.budget.work = TICK_WORK
        if opens:
            bench.session.upstream_opened()
        else:
            bench.session.upstream_failed("refused")
        assert bench.session.wait == WAIT_TICK
        assert not bench.session.private.out
        assert not bench.session.to_client
        assert bench.up() == (much if opens else b"")
        assert opens == (not bench.down())


def test_long_input_is_left_for_the_next_turn_on_every_way() -> None:
    """Wrong hits of one who uses a lane, blank lines, and hits that are answered without Redis."""
    wrong = 3 * CLIENT_WORK // WORK_OF_OURS
    bench = probed()
    bench.session.receive(WRONG_HIT * wrong)
    assert CLIENT_WORK // 20 < len(bench.session.to_client) < wrong // 2
    bench.up()
    assert bench.down() == ARITY * wrong

    bench = probed()
    bench.session.receive(b"\r\n" * (2 * CLIENT_WORK))
    assert bench.session.wait == WAIT_TICK
    bench.up()
    assert not bench.session.outstanding()

    bench = Bench()
    circuit = bench.session.context.circuit
    circuit.open = True
    assert circuit.tries(0.0)  # (one hit asks all the same)
    bench.session.receive(HIT * wrong)
    assert len(bench.session.to_client) < wrong // 2
    bench.up()
    assert bench.down().count(b"-") == wrong


def test_a_command_that_is_not_whole_is_read_on() -> None:
    """However little may wait of a client: what would make it a command is to come."""
    for heard in ([], [NOAUTH], [PONG]):
        bench = told(*heard)
        bench.send(b"echo " + b"a" * 60_000)
        assert not bench.session.full()


@pytest.mark.parametrize("slow", [False, True])
def test_a_session_that_is_abandoned_waits_for_no_turn(slow: bool) -> None:
    """Else its owner would give it turns that it does not take."""
    bench = opened()
    if slow:
        bench.session.leaves_unread()
        bench.session.context.budget.slow_hits = 0
        bench.session.receive(HIT)
    else:
        bench.session.receive(PING * 2 * CLIENT_WORK)
    assert bench.session.wait == (WAIT_PACE if slow else WAIT_TICK)
    bench.session.abandon()
    assert bench.session.wait == WAIT_NOTHING


def test_upstream_failed_answers_in_turns_and_remembers_multi() -> None:
    bench = Bench()
    bench.session.context.failure.reconfigure("allow", 0)
    bench.send(bulks(b"MULTI") + HIT * 300 + bulks(b"EXEC") + HIT)
    bench.session.upstream_failed("refused")
    first = len(bench.session.to_client)
    assert first < 150
    bench.session.receive(PING)  # for the next connection
    assert len(bench.session.to_client) == first
    bench.session.go_on()
    bench.session.go_on()
    down = bench.down()
    assert down.count(b"-UPSTREAMDOWN") >= 302
    assert down.count(b"*5\r\n") == 1  # the hit behind the transaction
    bench.session.go_on()
    assert bench.session.wait == WAIT_NOTHING


def test_what_came_after_a_failure_is_for_the_next_connection() -> None:
    bench = Bench()
    many = 5 * CLIENT_WORK // WORK_OF_OURS
    bench.send(PING * many)
    bench.session.upstream_failed("refused")
    while bench.session._fail_open.failing():
        bench.session.receive(PING * 200)
        bench.session.go_on()
    assert many <= len(bench.session.to_client) < many + 200
    bench.session.go_on()
    assert bench.session.private.status == private_stream.OPENING


# -- names the tests above rely on -----------------------------------------------------------------


def test_nothing_is_answered_behind_quit() -> None:
    bench = opened()
    bench.send(bulks(b"QUIT") + WRONG_HIT * (MAX_CLIENT_HITS + 6))
    out = bench.answer(b"+OK\r\n")
    bench.up()
    assert out + bench.down() == b"+OK\r\n"


def test_what_the_proxy_tells_of_itself_is_much_work() -> None:
    bench = opened()
    bench.session.receive(bulks(b"RL.STATS") * 20)
    assert bench.session.wait == WAIT_TICK
    told = len(bench.session.private.out)
    assert 1 <= told <= CLIENT_WORK // WORK_OF_STATUS + 1
    assert bench.up().count(b"EVAL") == 20


def test_the_family_is_what_is_tested_here() -> None:
    assert set(c.FAMILY) == {
        *(b"RL.HIT", b"RL.PEEK", b"RL.REFUND", b"RL.RESET", b"RL.HELP"),
        *(b"CL.THROTTLE", b"RL.THROTTLE", b"RL.STATS", b"RL.TOP"),
    }
    assert set(grammar.OPTIONS) == {b"RL.HIT", b"RL.PEEK", b"RL.REFUND"}
    assert connection_state.PLAIN > connection_state.COUNTED > connection_state.RAW


# -- any traffic -----------------------------------------------------------------------------------


class Redis:
    """Answers what reaches the private connection, in order, each with what names the request."""

    def __init__(self) -> None:
        self.framer = RequestFramer()
        self.executed: list[bytes] = []
        self.out = b""

    def take(self, data: bytes) -> None:
        framer = self.framer
        if data:
            framer.feed(data)
        while (code := framer.next()) in (COMMAND, EMPTY):
            if code == EMPTY:
                continue
            words = framer.buf[framer.start : framer.end].split(b"\r\n")[2::2]
            if words[0] == b"EVAL" and len(words) == 4:
                self.out += b":1\r\n"  # (of REWRITE)
            elif words[0] == b"EVAL":
                self.executed.append(words[3])
                self.out += r.five(0, int(words[3]), 1, -1, 1)
            elif words[0] == b"WAIT" and words[1] == b"0":
                self.out += b":0\r\n"
            elif words[0] == b"RL.HIT":
                self.out += UNKNOWN
            else:
                self.executed.append(words[1])
                self.out += b"$%d\r\n%b\r\n" % (len(words[1]), words[1])


KINDS = ["hit", "hit", "hit", "echo", "wrong", "wait", "blank"]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.lists(st.sampled_from(KINDS), min_size=1, max_size=90)),
        st.tuples(st.just("cut"), st.integers(1, 60)),
        st.tuples(st.just("lane"), st.integers(1, 70)),
        st.tuples(st.just("redis"), st.integers(1, 300)),
        st.tuples(st.sampled_from(["push", "slow", "fast", "lost", "ready"]), st.none()),
    ),
    max_size=25,
)


@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_whatever_happens_replies_keep_the_order_of_the_requests(
    steps: list[tuple[str, object]],
) -> None:
    bench = probed()
    redis = Redis()
    number = 0
    expected: list[bytes] = []
    unsent = b""
    down = b""
    pushes = 0

    def move() -> None:
        nonlocal down
        down += bench.down()
        redis.take(bench.up())

    def lane_answers(count: int) -> None:
        for call in bench.lane.calls[:count]:
            key = call.key.split(b"\r\n")[1]
            redis.executed.append(key)
            bench.session.lane_answered(call, r.five(0, int(key), 1, -1, 1))
        del bench.lane.calls[:count]
        bench.session.resume()

    ends: list[tuple[str, object]] = [("fast", None), ("ready", None), ("flush", None)]
    for step, what in [*steps, *ends]:
        if step == "send" and isinstance(what, list):
            for kind in what:
                number += 1
                name = b"%d" % number
                if kind == "hit":
                    unsent += bulks(b"RL.HIT", name, b"10", b"60")
                    expected.append(r.five(0, number, 1, -1, 1))
                elif kind == "wrong":
                    unsent += WRONG_HIT
                    expected.append(ARITY)
                elif kind == "blank":
                    unsent += b"\r\n"
                else:
                    unsent += bulks(b"ECHO" if kind == "echo" else b"WAIT", name)
                    expected.append(r.bulk(name))
            bench.session.receive(unsent)
            unsent = b""
        elif step == "cut" and isinstance(what, int):
            number += 1
            data = bulks(b"RL.HIT", b"%d" % number, b"10", b"60")
            expected.append(r.five(0, number, 1, -1, 1))
            bench.session.receive(unsent + data[:what])
            unsent = data[what:]
        elif step == "lane" and isinstance(what, int):
            lane_answers(what)
        elif step == "redis" and isinstance(what, int):
            move()
            if redis.out:
                bench.session.upstream_received(redis.out[:what])
            redis.out = redis.out[what:]
        elif step == "push":
            move()
            redis.out += PUSH
            pushes += 1
        elif step in ("slow", "fast"):
            bench.session.requests.slow = step == "slow"
        elif step in ("lost", "ready"):
            bench.lane.ready = step == "ready"
            if step == "lost":
                for call in bench.lane.calls:
                    bench.session.lane_returned(call)
                bench.lane.calls.clear()
                bench.session.resume()
        else:
            if unsent:
                bench.session.receive(unsent)
            for _ in range(1000):
                move()
                if not redis.out and not bench.lane.calls:
                    break
                if redis.out:
                    bench.session.upstream_received(redis.out)
                redis.out = b""
                lane_answers(100)
        move()
    assert down.count(PUSH) == pushes
    assert down.replace(PUSH, b"") == b"".join(expected)
    assert not bench.session.outstanding()
    numbers = [int(each) for each in redis.executed]
    assert len(set(numbers)) == len(numbers)  # nothing is counted twice


# -- the fence: who has written on its own connection ----------------------------------------------


class KnowingLane(FakeLane):
    """Knows some replies without asking."""

    def __init__(self, **known: bytes) -> None:
        super().__init__()
        self.known = {r.bulk(key.encode()): reply for key, reply in known.items()}

    def submit(self, call: Call) -> bytes:
        return self.known.get(call.key, b"") or super().submit(call)


def unfenced(lane: FakeLane | None = None) -> Bench:
    """A client whose hits may take the lane, and whom a lane has answered."""
    bench = probed()
    bench.lane = lane or bench.lane
    bench.session.fenced = False
    return bench


def numbered(key: bytes) -> bytes:
    return bulks(b"RL.HIT", key, b"10", b"60")


@pytest.mark.parametrize("name", sorted(c.READS.split()))
def test_what_reads_sets_no_fence(name: bytes) -> None:
    bench = unfenced()
    assert bench.send(bulks(name, b"k")) == bulks(name, b"k")
    assert not bench.session.fenced
    bench.answer(b":1\r\n")
    assert not bench.session.fenced
    bench.send(HIT)
    assert len(bench.lane.calls) == 1


WRITE = [
    *[bulks(name, b"k") for name in sorted(c.WRITES.split())],
    bulks(b"get", b"k") + bulks(b"del", b"k") + bulks(b"get", b"k"),
    b"set k v\r\n",
    b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$100000\r\nv",
    bulks(b"FOO"),
    bulks(b"AUTH", b"pw"),
    bulks(b"HELLO", b"3"),
    bulks(b"SELECT", b"1"),
    bulks(b"RESET"),
    bulks(b"MULTI"),
    bulks(b"MULTI") + bulks(b"EXEC"),
    bulks(b"CLIENT", b"KILL", b"x"),
    bulks(b"SCRIPT", b"FLUSH"),
    bulks(b"SHUTDOWN"),
    bulks(b"RL.RESET", b"k"),
    bulks(b"RL.RESET", b"k", b"l"),
]


@pytest.mark.parametrize("sent", WRITE, ids=lambda data: repr(data[:40]))
def test_what_may_write_sets_the_fence(sent: bytes) -> None:
    bench = unfenced()
    assert bench.send(sent) != b""
    assert bench.session.fenced


def test_a_hit_in_place_sets_the_fence() -> None:
    bench = unfenced()
    assert bench.send(bulks(b"GET", b"k") + HIT) == bulks(b"GET", b"k") + in_place()
    assert bench.session.fenced


def test_a_hit_that_the_lane_gives_back_sets_the_fence() -> None:
    bench = unfenced()
    bench.send(HIT)
    bench.session.lane_returned(bench.lane.calls.pop())
    assert bench.up() == in_place()
    assert bench.session.fenced


def test_hits_by_lane_leave_the_fence_alone() -> None:
    bench = unfenced()
    for fenced in (False, True):
        bench.session.fenced = fenced
        bench.send(HIT, bulks(b"RL.PEEK", b"k", b"10", b"60"))
        assert bench.settle() == FIVE * 2
        assert bench.session.fenced == fenced  # it is the lane that lifts it


def test_what_waits_for_the_lane_has_not_written_yet() -> None:
    bench = unfenced()
    bench.send(HIT, bulks(b"DEL", b"k"))
    assert not bench.session.fenced
    bench.settle()
    assert bench.up() == bulks(b"DEL", b"k")
    assert bench.session.fenced


# -- a lane whose scripts may be missing one by one ------------------------------------------------


def fixed(key: bytes) -> bytes:
    return bulks(b"RL.HIT", key, b"10", b"60", b"ALGO", b"FIXED")


def test_calls_of_different_scripts_go_to_such_a_lane_one_after_the_other() -> None:
    bench = probed()
    bench.lane.mixes = False
    assert bench.send(numbered(b"1"), numbered(b"2") + fixed(b"3"), numbered(b"4")) == b""
    assert [call.key for call in bench.lane.calls] == [r.bulk(b"1"), r.bulk(b"2")]
    assert bench.settle() == FIVE * 2
    assert [call.key for call in bench.lane.calls] == [r.bulk(b"3")]
    assert bench.settle() == FIVE
    assert [call.key for call in bench.lane.calls] == [r.bulk(b"4")]
    assert bench.settle() == FIVE
    assert bench.up() == b""


def test_hits_and_peeks_go_one_after_the_other_until_both_commands_have_run() -> None:
    bench = probed()
    bench.lane.mixes_ro = False
    peek = bulks(b"RL.PEEK", b"2", b"10", b"60")
    assert bench.send(numbered(b"1") + peek * 2, numbered(b"3")) == b""
    assert [call.key for call in bench.lane.calls] == [r.bulk(b"1")]
    assert bench.settle() == FIVE
    assert [call.key for call in bench.lane.calls] == [r.bulk(b"2")] * 2
    bench.lane.mixes_ro = True
    assert bench.settle() == FIVE * 2
    bench.send(peek + numbered(b"4"))
    assert len(bench.lane.calls) == 3
    assert bench.up() == b""


def test_and_together_to_any_other() -> None:
    bench = probed()
    bench.send(numbered(b"1") + fixed(b"2"), numbered(b"3"))
    assert len(bench.lane.calls) == 3
    assert bench.settle() == FIVE * 3


# -- replies that a lane knows ---------------------------------------------------------------------

DENIED = r.five(1, 10, 0, 42, 60)


def test_a_known_reply_is_passed_on_at_once() -> None:
    bench = unfenced(KnowingLane(full=DENIED))
    assert bench.send(numbered(b"full")) == b""
    assert bench.lane.calls == []
    assert bench.down() == DENIED
    assert not bench.session.outstanding()
    assert not bench.session.fenced


def test_a_known_reply_keeps_its_place_behind_unknown_ones() -> None:
    bench = unfenced(KnowingLane(full=DENIED))
    bench.send(numbered(b"1"), numbered(b"full"), numbered(b"2"), numbered(b"full"))
    assert bench.down() == b""
    first, second = bench.lane.calls
    bench.session.lane_answered(second, FIVE)
    assert bench.down() == b""
    bench.session.lane_answered(first, r.five(0, 10, 1, -1, 60))
    assert bench.down() == r.five(0, 10, 1, -1, 60) + DENIED + FIVE + DENIED
    assert not bench.session.outstanding()


def test_known_replies_and_wrong_hits_in_one_chunk() -> None:
    bench = unfenced(KnowingLane(full=DENIED))
    full = numbered(b"full")
    bench.send(full + WRONG_HIT + full + numbered(b"1") + WRONG_HIT + full)
    assert bench.down() == DENIED + ARITY + DENIED
    assert bench.settle() == FIVE + ARITY + DENIED


def test_any_number_of_known_replies_goes_at_once() -> None:
    bench = unfenced(KnowingLane(full=DENIED))
    many = 3 * MAX_CLIENT_HITS + 1
    bench.send(numbered(b"full") * many)
    assert bench.down() == DENIED * many
    assert not bench.session.outstanding()
    assert bench.session.requests.unread() == 0
    assert bench.send(PING) == PING


def test_known_replies_behind_unknown_ones_take_room() -> None:
    bench = unfenced(KnowingLane(full=DENIED))
    bench.send(numbered(b"1") + numbered(b"full") * 2 * MAX_CLIENT_HITS)
    assert bench.session.wait == WAIT_LANE
    assert bench.down() == b""
    assert bench.settle() == FIVE + DENIED * 2 * MAX_CLIENT_HITS
    assert not bench.session.outstanding()


def test_a_known_reply_waits_for_the_end_of_a_push() -> None:
    bench = unfenced(KnowingLane(full=DENIED))
    bench.send(numbered(b"1"))
    assert bench.answer(PUSH[:9]) == PUSH[:9]
    bench.send(numbered(b"full"))
    assert bench.settle() == b""
    bench.send(numbered(b"full"))
    assert bench.down() == b""
    assert bench.answer(PUSH[9:]) == PUSH[9:] + FIVE + DENIED * 2


def test_what_no_lane_was_asked_is_no_write_that_wait_speaks_of() -> None:
    bench = unfenced(KnowingLane(full=DENIED))
    wait = bulks(b"WAIT", b"1", b"0")
    bench.send(numbered(b"full"))
    assert bench.send(wait) == wait
    bench.answer(b":0\r\n")


def test_known_replies_behind_what_a_lane_gives_back() -> None:
    bench = unfenced(KnowingLane(full=DENIED))
    bench.send(numbered(b"1") + numbered(b"full") + numbered(b"2"))
    for call in bench.lane.calls:
        bench.session.lane_returned(call)
    assert bench.up() == in_place(b"1") + in_place(b"2")
    other = r.five(0, 10, 1, -1, 60)
    assert bench.answer(FIVE + other) == FIVE + DENIED + other


def test_a_client_that_ends_with_known_replies() -> None:
    bench = unfenced(KnowingLane(full=DENIED))
    bench.send(numbered(b"full"))
    bench.session.receive_eof()
    assert bench.session.wants_eof
    bench = unfenced(KnowingLane(full=DENIED))
    bench.send(numbered(b"1"), numbered(b"full"))
    bench.session.receive_eof()
    assert not bench.session.wants_eof
    assert bench.settle() == FIVE + DENIED
    assert bench.session.wants_eof
