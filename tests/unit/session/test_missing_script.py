"""missing_script: hits by EVALSHA among other commands, also while their script is missing."""

from __future__ import annotations

import pytest
from rlproxy.ratelimit.grammar import Rule
from rlproxy.ratelimit.hit_replies import five
from rlproxy.ratelimit.scripts import LOADED
from rlproxy.ratelimit.wait_queue import Waiter
from rlproxy.resp import encoding
from rlproxy.resp.encoding import bulks
from rlproxy.session import command_policy, wait_cover
from rlproxy.session.call import nothing
from rlproxy.session.missing_script import MAX_BY_SHA

from tests.unit.ratelimit.test_wait_queue import refused
from tests.unit.session.bench import (
    FIVE,
    GRAMMAR,
    HIT,
    PING,
    PONG,
    REWRITE,
    WAIT,
    Bench,
    FakeLane,
    in_place,
    numbered,
    probed,
)

NOSCRIPT = b"-NOSCRIPT No matching script. Please use EVAL.\r\n"
MULTI = bulks(b"MULTI")
GET = bulks(b"GET", b"other")
OK = b"+OK\r\n"
NO_KEYS = b"-NOPERM command 'keys' is denied by rlproxy (--deny-command)\r\n"


class ShaLane(FakeLane):
    """A lane that is sure of its scripts."""

    sure = True

    def by_sha(self, rule: Rule) -> bool:
        return self.sure


def by_sha(key: bytes = b"k", name: bytes = b"RL.HIT") -> bytes:
    """RL.HIT key 10 60 as EVALSHA."""
    rule = GRAMMAR.rule(name, name, [key, b"10", b"60"])
    return rule.words(LOADED) + encoding.bulk(key) + rule.tail


@pytest.fixture
def bench() -> Bench:
    made = probed()
    made.lane = ShaLane()
    made.send(HIT)
    assert made.settle() == FIVE
    return made


def test_hits_among_other_commands_go_by_sha(bench: Bench) -> None:
    assert bench.send(PING + HIT + PING) == PING + by_sha() + PING
    assert bench.answer(PONG + FIVE + PONG) == PONG + FIVE + PONG
    assert bench.send(PING + bulks(b"RL.PEEK", b"k", b"10", b"60")) == PING + by_sha(
        name=b"RL.PEEK"
    )


def test_a_client_that_has_sent_hits_beside_other_commands_sends_no_lane_the_next_ones(
    bench: Bench,
) -> None:
    for sent in (HIT + PING, HIT + PING, HIT):  # hits alone end that
        expected = by_sha() + PING * (sent != HIT)
        assert bench.send(sent) == expected
        bench.answer(FIVE + PONG * (sent != HIT))
    assert bench.send(HIT) == b""
    assert bench.settle() == FIVE


@pytest.mark.parametrize("apart", [False, True])
def test_a_missing_hit_is_sent_again_by_lane_and_keeps_its_place(bench: Bench, apart: bool) -> None:
    bench.send(PING + HIT + PING + PING)
    data = PONG + NOSCRIPT + PONG
    pieces = [data[at : at + 1] for at in range(len(data))] if apart else [data]
    assert b"".join(bench.answer(piece) for piece in pieces) == PONG
    assert bench.session.private.slots.awaits_lane()
    assert bench.answer(PONG) == b""
    assert [call.key for call in bench.lane.calls] == [b"$1\r\nk\r\n"]
    assert bench.settle() == FIVE + PONG + PONG
    assert bench.session.private.slots.quiescent()
    assert bench.session.context.stats.noscript == 1


def test_replies_behind_a_missing_hit_come_although_redis_has_closed(bench: Bench) -> None:
    bench.send(PING + HIT + PING + b"*x\r\n")
    refused = b"-ERR Protocol error: invalid multibulk length\r\n"
    assert bench.answer(PONG + NOSCRIPT + PONG + refused) == PONG
    assert bench.settle() == FIVE + PONG + refused
    bench.session.upstream_lost()
    assert bench.session.closed


def test_missing_hits_are_sent_again_one_after_the_other(bench: Bench) -> None:
    bench.send(PING + numbered(b"a") + PING + numbered(b"b"))
    assert bench.answer(PONG + NOSCRIPT + PONG + NOSCRIPT) == PONG
    assert [call.key for call in bench.lane.calls] == [b"$1\r\na\r\n"]
    assert bench.settle() == FIVE + PONG
    assert [call.key for call in bench.lane.calls] == [b"$1\r\nb\r\n"]
    assert bench.settle() == FIVE


def test_further_requests_wait_for_a_missing_hit(bench: Bench) -> None:
    bench.send(PING + HIT + PING)
    bench.answer(PONG + NOSCRIPT)
    assert bench.send(PING + numbered(b"other")) == b""
    assert bench.settle() == FIVE
    assert bench.answer(PONG) == PONG
    assert bench.up() == PING + by_sha(b"other")


@pytest.mark.parametrize(
    "error",
    [
        b"-NOPERM No permissions to access a key\r\n",
        b"-NOPERM User bob has no permissions to run the 'rpush' command\r\n",
        b"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n",
    ],
)
def test_other_errors_are_replies(bench: Bench, error: bytes) -> None:
    bench.send(PING + HIT)
    assert bench.answer(PONG + error) == PONG + error
    assert not bench.lane.calls


STATEFUL = {
    "MULTI": MULTI,
    "SELECT": bulks(b"SELECT", b"5"),
    "AUTH": bulks(b"AUTH", b"pw"),
    "HELLO": bulks(b"HELLO", b"3"),
    "RESET": bulks(b"RESET"),
    "QUIT": bulks(b"QUIT"),
    "WATCH": bulks(b"WATCH", b"k"),
    "SUBSCRIBE": bulks(b"SUBSCRIBE", b"a"),
    "CLIENT REPLY": bulks(b"CLIENT", b"REPLY", b"SKIP"),
    "an unknown command": bulks(b"FUTURE", b"a"),
    "DEL of its key": bulks(b"DEL", b"a", b"k"),
    "a command that blocks": bulks(b"BLPOP", b"q", b"0"),
    "an inline command": b"DEL k\r\n",
    "TTL of its key": bulks(b"TTL", b"k"),
}


@pytest.mark.parametrize("name", STATEFUL)
def test_what_might_meet_a_missing_hit_waits_for_it(bench: Bench, name: str) -> None:
    data = STATEFUL[name]
    assert bench.send(PING + HIT + GET + data) == PING + by_sha() + GET
    assert bench.answer(PONG) == PONG
    assert bench.up() == b""
    assert bench.answer(FIVE) == FIVE
    sent = bench.up()
    assert sent == (b"" if name == "AUTH" else data)  # AUTH waits for all replies
    assert bench.answer(b"$-1\r\n") == b"$-1\r\n"
    assert sent + bench.up() == data


def test_a_denied_command_gets_its_error_behind_a_missing_hit(bench: Bench) -> None:
    bench.session.requests.commands = command_policy.table(("keys",), False)
    assert bench.send(PING + HIT + bulks(b"KEYS", b"*") + GET) == PING + by_sha() + GET
    assert bench.answer(PONG + NOSCRIPT + b"$-1\r\n") == PONG
    assert bench.settle() == FIVE + NO_KEYS + b"$-1\r\n"


def test_what_might_meet_a_missing_hit_waits_after_the_end_of_file_too(bench: Bench) -> None:
    delete = bulks(b"DEL", b"k")
    assert bench.send(PING + HIT + delete) == PING + by_sha()
    bench.session.receive_eof()
    assert bench.up() == b""
    assert bench.answer(PONG + NOSCRIPT) == PONG
    assert not bench.session.wants_eof
    assert bench.settle() == FIVE
    assert bench.up() == delete
    assert bench.session.wants_eof


@pytest.mark.parametrize("blocks", [bulks(b"BLPOP", b"q", b"0"), bulks(b"WAIT", b"1", b"0")])
def test_no_end_of_file_waits_behind_a_command_that_blocks(bench: Bench, blocks: bytes) -> None:
    assert bench.send(blocks + HIT).endswith(blocks + in_place())
    bench.session.receive_eof()
    assert bench.session.wants_eof


def test_once_nothing_is_owed_hits_go_by_sha_again(bench: Bench) -> None:
    blocks = bulks(b"BLPOP", b"q", b"0")
    assert bench.send(blocks + HIT) == blocks + in_place()
    bench.answer(b"*-1\r\n" + FIVE)
    assert bench.send(PING + HIT) == PING + by_sha()


def test_few_hits_by_sha_are_unanswered(bench: Bench) -> None:
    assert bench.send(PING + HIT * (MAX_BY_SHA + 1)) == PING + by_sha() * MAX_BY_SHA
    assert bench.answer(PONG + FIVE * MAX_BY_SHA) == PONG + FIVE * MAX_BY_SHA
    bench.session.resume()
    assert bench.settle() == FIVE


def test_hits_go_as_eval_where_a_lane_could_not_send_them_again(bench: Bench) -> None:
    assert bench.send(MULTI + HIT) == MULTI + in_place()
    bench.answer(OK + b"+QUEUED\r\n")
    assert bench.send(bulks(b"EXEC")) == bulks(b"EXEC")
    bench.answer(b"*1\r\n" + FIVE)
    assert isinstance(bench.lane, ShaLane)
    bench.lane.sure = False
    assert bench.send(PING + HIT) == PING + in_place()
    bench.answer(PONG + FIVE)
    bench.lane.sure, bench.lane.ready = True, False
    assert bench.send(PING + HIT) == PING + in_place()


def test_a_hit_as_eval_does_not_overtake_one_by_sha(bench: Bench) -> None:
    assert bench.send(PING + HIT) == PING + by_sha()
    bench.lane.ready = False
    assert bench.send(HIT) == b""
    assert bench.answer(PONG + FIVE) == PONG + FIVE
    assert bench.up() == in_place()


@pytest.mark.parametrize("name", ["SELECT", "AUTH", "HELLO", "HELLO AUTH", "RESET"])
def test_a_hit_goes_as_eval_where_its_lane_is_open(bench: Bench, name: str) -> None:
    data = STATEFUL.get(name, bulks(b"HELLO", b"3", b"AUTH", b"bob", b"pw"))
    assert bench.send(data + HIT) == data + in_place()
    reply = {"RESET": b"+RESET\r\n", "SELECT": OK, "AUTH": OK}.get(name, b"%0\r\n")
    assert bench.answer(reply + FIVE) == reply + FIVE
    assert bench.send(PING + HIT) == PING + by_sha()


def test_the_lane_is_that_of_the_identity(bench: Bench) -> None:
    assert bench.send(bulks(b"SELECT", b"5") + PING) == bulks(b"SELECT", b"5") + PING
    assert bench.answer(OK + PONG) == OK + PONG
    bench.send(HIT)
    bench.settle()
    bench.send(PING + HIT)
    assert bench.answer(PONG + NOSCRIPT) == PONG
    assert bench.identities[-1].db == 5
    assert bench.settle() == FIVE


@pytest.mark.parametrize("event", ["lane_answered", "lane_returned", "lane_failed"])
def test_an_error_where_the_lane_has_no_reply(bench: Bench, event: str) -> None:
    bench.send(PING + HIT + PING)
    bench.answer(PONG + NOSCRIPT + PONG)
    (call,) = bench.lane.calls
    more = {"lane_answered": (encoding.LOST,), "lane_failed": (encoding.late(1.0), "late")}
    getattr(call.caller, event)(call, *more.get(event, ()))
    call.caller.resume()
    found = bench.down()
    assert found.startswith(b"-UPSTREAMDOWN ") and found.endswith(b"\r\n" + PONG)
    call.caller.lane_answered(call, FIVE)
    assert bench.down() == b""


def test_an_error_where_no_lane_is_ready(bench: Bench) -> None:
    bench.send(PING + HIT + PING)
    bench.lane.ready = False
    assert bench.answer(PONG + NOSCRIPT + PONG) == PONG + encoding.LOST + PONG


@pytest.mark.parametrize("ready", [True, False])
def test_the_failure_policy_applies_where_the_lane_has_not_sent_it(
    bench: Bench, ready: bool
) -> None:
    bench.session.context.failure.mode = "allow"
    bench.send(PING + HIT + PING)
    bench.lane.ready = ready
    found = bench.answer(PONG + NOSCRIPT + PONG)
    for call in bench.lane.calls:
        call.caller.lane_returned(call)
    assert found + bench.down() == PONG + five(0, 10, 10, -1, 0) + PONG


def test_a_missing_hit_whose_node_is_down_counts_once(bench: Bench) -> None:
    context, error = bench.session.context, encoding.unreachable("redis:2", "refused")
    bench.send(PING + HIT)
    assert bench.answer(PONG + NOSCRIPT) == PONG
    (call,) = bench.lane.calls
    call.caller.lane_failed(call, error, "unreachable")
    assert bench.down() == error
    assert context.stats.errors == {"unreachable": 1}
    assert context.circuit.counts.without == 1


def test_no_remembered_refusal_is_taken_for_a_missing_hit(bench: Bench) -> None:
    bench.send(PING + HIT)
    bench.answer(PONG + NOSCRIPT)
    (call,) = bench.lane.calls
    assert call.caller.fenced  # the client may have written the key
    bench.settle()
    assert bench.session.fenced


def test_a_late_hit_is_not_sent_again(bench: Bench) -> None:
    context = bench.session.context
    context.timeouts.timeout_s = 1.0
    bench.send(PING + HIT)
    bench.answer(PONG)
    bench.session.overdue(1.5)
    assert bench.down().startswith(b"-UPSTREAMDOWN ")
    assert bench.answer(NOSCRIPT) == b""
    assert not bench.lane.calls


def late(bench: Bench, hits: int) -> None:
    """Redis does not answer: the client's `hits` are late. It answers others."""
    bench.session.context.circuit.replied(1.5)
    bench.session.overdue(1.5)
    assert bench.down().count(b"-UPSTREAMDOWN ") == hits


def test_nothing_waits_for_a_late_hit(bench: Bench) -> None:
    """It is not sent again, and its reply may never come."""
    bench.session.context.timeouts.timeout_s = 1.0
    assert bench.send(PING + HIT) == PING + by_sha()
    bench.answer(PONG)
    bench.lane.ready = False
    assert bench.send(HIT) == b""
    late(bench, 1)
    assert bench.up() == in_place()
    assert bench.send(STATEFUL["DEL of its key"]) == STATEFUL["DEL of its key"]
    assert bench.answer(NOSCRIPT + FIVE + b":1\r\n") == FIVE + b":1\r\n"
    assert bench.send(HIT) == in_place()
    late(bench, 1)


def test_hits_beyond_the_bound_are_late_in_their_turn(bench: Bench) -> None:
    bench.session.context.timeouts.timeout_s = 1.0
    assert bench.send(PING + HIT * (MAX_BY_SHA + 1)) == PING + by_sha() * MAX_BY_SHA
    bench.answer(PONG)
    late(bench, MAX_BY_SHA)
    assert bench.up() == by_sha()
    late(bench, 1)
    assert bench.answer(FIVE * (MAX_BY_SHA + 1)) == b""
    assert bench.send(PING + HIT * (MAX_BY_SHA + 1)) == PING + by_sha() * MAX_BY_SHA


@pytest.mark.parametrize("event", ["lane_answered", "lane_returned"])
def test_a_session_that_ended_is_left_alone(bench: Bench, event: str) -> None:
    bench.send(PING + HIT)
    bench.answer(PONG + NOSCRIPT)
    (call,) = bench.lane.calls
    bench.session.abandon()
    bench.session.let_go()
    reply = (FIVE,) if event == "lane_answered" else ()
    getattr(call.caller, event)(call, *reply)
    call.caller.resume()
    assert bench.down() == b""


def test_wait_covers_a_hit_that_was_sent_again(bench: Bench) -> None:
    assert bench.send(WAIT) == REWRITE + WAIT
    bench.answer(b":1\r\n:1\r\n")
    bench.send(PING + numbered(b"b"))
    assert bench.answer(PONG + NOSCRIPT) == PONG
    assert bench.settle() == FIVE
    assert bench.send(WAIT) == wait_cover.REWRITE + b"$1\r\nb\r\n" + WAIT


def test_a_refund_that_is_sent_again_wakes_waiting_hits(bench: Bench) -> None:
    waits = GRAMMAR.rule(b"waits", b"RL.HIT", [b"k", b"10", b"60", b"WAIT", b"5"])
    attempts: list[Rule] = []
    queues, where = bench.session.context.waiting, (0, b"$1\r\nk\r\n")
    waiter = Waiter(queues, where, waits, attempts.append, lambda _: None, nothing, nothing)
    waiter.start()
    waiter.answered(refused(2_000_000))
    refund = bulks(b"RL.REFUND", b"k", b"10", b"60", b"1")
    rule = GRAMMAR.rule(b"refund", b"RL.REFUND", [b"k", b"10", b"60", b"1"])
    sent = rule.words(LOADED) + encoding.bulk(b"k") + rule.tail
    assert bench.send(PING + numbered(b"a") + refund) == PING + by_sha(b"a") + sent
    assert bench.answer(PONG + FIVE + NOSCRIPT) == PONG + FIVE
    assert len(attempts) == 1
    assert bench.settle() == FIVE
    assert len(attempts) == 2


@pytest.mark.parametrize("sent", [b"DEL k\r\n", b"*2\r\n$3\r\nDEL\r\n"], ids=["inline", "in parts"])
def test_commands_whose_keys_cannot_be_found_wait_for_a_hit_by_sha(
    bench: Bench, sent: bytes
) -> None:
    assert bench.send(PING + HIT + sent) == PING + by_sha()
    assert bench.answer(PONG + FIVE) == PONG + FIVE
    rest = b"" if sent.startswith(b"DEL") else encoding.bulk(b"k")
    assert bench.send(rest + PING) == sent + rest + PING
