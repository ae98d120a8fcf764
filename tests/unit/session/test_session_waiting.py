"""session: a hit with WAIT holds its client, and nobody overtakes it; bytes are fed by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rlproxy.fairness.budget import MAX_CLIENT_HITS
from rlproxy.ratelimit.grammar import Rule
from rlproxy.ratelimit.scripts import SOURCE
from rlproxy.ratelimit.wait_queue import MAX_WAITING, WaitQueues
from rlproxy.resp import encoding as r
from rlproxy.resp.encoding import bulks
from rlproxy.resp.requests import COMMAND, EMPTY, RequestFramer
from rlproxy.session import private_stream
from rlproxy.session.call import Call, Caller, Lane
from rlproxy.session.context import ServerFacts
from rlproxy.session.identity import Identity
from rlproxy.session.session import Session
from rlproxy.session.waits import WAIT_HELD, WAIT_NOTHING, WAIT_QUIESCENT

from tests.contexts import worker_context
from tests.unit.ratelimit.test_wait_queue import Clock, refused, rule
from tests.unit.ratelimit.test_wait_queue import script_reply as says
from tests.unit.session.bench import (
    ARITY,
    FIVE,
    GRAMMAR,
    NOAUTH,
    PING,
    PONG,
    PUSH,
    WRONG_HIT,
    FakeLane,
)

WAITING = bulks(b"RL.HIT", b"k", b"10", b"1", b"WAIT", b"5")
RULE = "10 1 WAIT 5"
SHAPED = bulks(b"RL.HIT", b"k", b"10", b"1", b"ALGO", b"LEAKY", b"WAIT", b"5")
SHAPED_RULE = "10 1 ALGO LEAKY WAIT 5"
HIT = bulks(b"RL.HIT", b"k", b"10", b"60")
HIT_RULE = "10 60"
GET = bulks(b"GET", b"x")
NIL = b"$-1\r\n"
OK = b"+OK\r\n"
KEPT = b"*0\r\n"
MULTI, EXEC, DISCARD, QUIT = (bulks(name) for name in (b"MULTI", b"EXEC", b"DISCARD", b"QUIT"))
ERROR = b"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"
QUEUED = b"+QUEUED\r\n"

ADMITTED = says(0, 10, 4, -1, 600_000)
TOLD = r.five(0, 10, 4, -1, 1)  # the same for a client
LATER = refused(2_000_000)
TOLD_LATER = r.five(1, 10, 0, 2, 9)


def as_eval(asked: Rule, key: bytes = b"k") -> bytes:
    return asked.words(SOURCE) + r.bulk(key) + asked.tail


def attempt(text: str = RULE, key: bytes = b"k") -> bytes:
    """The question as it goes over the private connection."""
    return as_eval(rule(text).attempt(), key)


def look(text: str = RULE, key: bytes = b"k") -> bytes:
    return as_eval(rule(text).look(), key)


def final(text: str = RULE, key: bytes = b"k") -> bytes:
    return as_eval(rule(text).final(), key)


def absent(text: str = RULE, key: bytes = b"k") -> bytes:
    """A hit as it goes if its WAIT is left out of account."""
    return as_eval(rule(text), key)


class World:
    """Clients of one process. Only pump() moves bytes, as in Downstream."""

    def __init__(self, base_db: int = 0) -> None:
        self.clock = Clock()
        self.waiting = WaitQueues(self.clock.time, self.clock.call_at)
        self.lanes: dict[object, FakeLane] = {}
        self.allowed = True
        self.settings = worker_context(
            grammar=GRAMMAR,
            server=ServerFacts("redis:1", base_db),
            lane_of=self._lane_of,
            waiting=self.waiting,
        )
        self.settings.server.ignores_empty = (
            False  # (no empty requests, except where they are tested)
        )
        self.base_db = base_db

    def _lane_of(self, identity: Identity) -> Lane | None:
        return self.lanes.setdefault(identity.key(), FakeLane()) if self.allowed else None

    @property
    def lane(self) -> FakeLane:
        """The only one."""
        (lane,) = self.lanes.values()
        return lane

    def client(self) -> Client:
        """One whose private connection is open, and no hit of which was answered."""
        made = Client(self)
        made.send(PING)
        made.session.upstream_opened()
        made.session.flush()
        if self.base_db:
            assert made.up() == r.bulks(b"SELECT", b"%d" % self.base_db)
            made.answer(OK)
        assert made.up() == PING
        assert made.answer(PONG) == PONG
        return made

    def probed(self) -> Client:
        """One whose hits may go by lane."""
        made = self.client()
        made.send(bulks(b"RL.PEEK", b"probe", b"10", b"60"))
        made.up()
        assert made.answer(FIVE) == FIVE
        return made

    def waits(self, wait: bytes = WAITING) -> Client:
        """One that waits for two seconds."""
        made = self.client()
        assert made.send(wait) != b""
        assert made.answer(LATER) == b""
        return made

    def calls(self) -> list[Call]:
        """What the lanes were given."""
        return [call for lane in self.lanes.values() for call in lane.calls]

    def on_lanes(self) -> list[bytes]:
        """The same, each as it would go over a private connection."""
        return [call.rule.words(SOURCE) + call.key + call.rule.tail for call in self.calls()]

    def lane_answers(self, *frames: bytes) -> None:
        """The lane's answers to what it was given first, as SharedLane tells them."""
        touched: list[Caller] = []
        for frame in frames:
            call = self.lane.calls.pop(0)
            call.caller.lane_answered(call, frame)
            if call.caller not in touched:
                touched.append(call.caller)
        self._settle(touched)

    def lane_lost(self, sent: int) -> None:
        """The lane is gone; of what it was given, so many calls had been sent."""
        lane = self.lane
        lane.ready = False
        calls, lane.calls = lane.calls, []
        for call in calls[:sent]:
            call.caller.lane_answered(call, r.LOST)
        for call in calls[sent:]:
            call.caller.lane_returned(call)
        self._settle([call.caller for call in calls])

    def _settle(self, touched: list[Caller]) -> None:
        for session in touched:
            session.now = self.clock.now
            session.resume()
            session.flush()


class Client:
    def __init__(self, world: World) -> None:
        self.world = world
        self.session = Session(world.settings)
        self.session.flush = self._flush
        self._up = b""
        self._down = b""

    def _flush(self) -> None:
        session = self.session
        self._up += b"".join(session.private.out)
        session.private.out.clear()
        self._down += b"".join(session.to_client)
        session.to_client.clear()

    def send(self, *data: bytes) -> bytes:
        """The client sends; what goes upstream."""
        for each in data:
            self.session.now = self.world.clock.now
            self.session.receive(each)
            self._flush()
        return self.up()

    def answer(self, *data: bytes) -> bytes:
        """Redis answers on the private connection; what the client gets."""
        for each in data:
            self.session.now = self.world.clock.now
            self.session.upstream_received(each)
            self._flush()
        return self.down()

    def ends(self) -> None:
        """The client sends no more."""
        self.session.receive_eof()
        self._flush()

    def vanishes(self) -> None:
        """The client's socket is gone, and with it the private connection."""
        self.session.abandon()

    def loses_upstream(self) -> None:
        self.session.upstream_lost()
        self._flush()

    def up(self) -> bytes:
        out, self._up = self._up, b""
        return out

    def down(self) -> bytes:
        out, self._down = self._down, b""
        return out

    def idle(self) -> bool:
        """Nothing is owed to it, and nothing waits."""
        return not self.session.outstanding() and self.session.wait == WAIT_NOTHING


# -- alone -----------------------------------------------------------------------------------------


def test_the_first_hit_of_a_connection_asks_over_that_connection() -> None:
    world = World()
    client = world.client()
    assert client.send(WAITING) == attempt()
    assert client.session.wait == WAIT_HELD
    assert client.session.outstanding()
    assert client.answer(LATER) == b""
    world.clock.advance(1.99)
    assert (client.up(), world.calls()) == (b"", [])
    world.clock.advance(0.02)
    assert client.up() == b""  # Redis has let it pass: the lane it is
    assert world.on_lanes() == [attempt()]
    world.lane_answers(ADMITTED)
    assert client.down() == TOLD
    assert client.idle()
    assert world.waiting.count == 0


def test_admitted_at_once() -> None:
    world = World()
    client = world.client()
    client.send(WAITING)
    assert client.answer(ADMITTED) == TOLD
    assert client.idle()
    assert client.send(HIT) == b""  # it was a probe
    assert len(world.calls()) == 1


def test_by_lane() -> None:
    world = World()
    client = world.probed()
    assert client.send(WAITING) == b""
    assert world.on_lanes() == [attempt()]
    world.lane_answers(LATER)
    assert client.down() == b""
    world.clock.advance(2)
    world.lane_answers(ADMITTED)
    assert client.down() == TOLD
    assert client.idle()
    assert client.send(PING) == PING


def test_no_lane_for_this_identity() -> None:
    world = World()
    client = world.probed()
    world.allowed = False
    assert client.send(WAITING) == attempt()
    client.answer(LATER)
    world.clock.advance(2)
    assert client.up() == attempt()
    assert client.answer(ADMITTED) == TOLD
    assert client.idle()


def test_a_lane_that_is_not_ready_when_asked() -> None:
    world = World()
    client = world.probed()
    client.send(WAITING)
    world.lane_answers(LATER)
    world.lane.ready = False
    world.clock.advance(2)
    assert client.up() == attempt()
    assert world.lane.woken == 1
    assert client.answer(ADMITTED) == TOLD


def test_as_the_first_command_of_all() -> None:
    world = World()
    client = Client(world)
    assert client.send(WAITING) == b""
    assert client.session.private.status == private_stream.OPENING
    assert world.waiting.count == 0
    client.session.upstream_opened()
    client.session.flush()
    assert client.up() == attempt()
    assert client.answer(ADMITTED) == TOLD


def test_no_upstream() -> None:
    world = World()
    client = Client(world)
    client.send(WAITING + WAITING)
    client.session.upstream_failed("refused")
    client.session.flush()
    assert client.down() == r.unreachable("redis:1", "refused") * 2
    assert world.waiting.count == 0


@pytest.mark.parametrize(
    ("text", "frame", "told"),
    [
        (b"5", refused(5_000_001), [1, 10, 0, 6, 9]),
        (b"5 COST 11", says(1, 10, 10, -1, 0), [1, 10, 10, -1, 0]),
        (b"5000 MS", refused(5_000_001), [1, 10, 0, 5001, 9000]),
    ],
)
def test_refused_at_once(text: bytes, frame: bytes, told: list[int]) -> None:
    world = World()
    client = world.client()
    words = text.split()
    client.send(bulks(b"RL.HIT", b"k", b"10", b"1000", b"WAIT", *words))
    assert r.integers(client.answer(frame)) == told
    assert client.idle()


def test_refused_when_its_time_is_over() -> None:
    world = World()
    client = world.client()
    client.send(bulks(b"RL.HIT", b"k", b"10", b"1", b"WAIT", b"3", b"PENALTY", b"9"))
    client.answer(LATER)
    world.clock.advance(2)
    world.lane_answers(LATER)
    assert client.down() == b""
    world.clock.advance(1)
    assert world.on_lanes() == [final("10 1 WAIT 3 PENALTY 9")]
    world.lane_answers(refused(9_000_000))
    assert client.down() == r.five(1, 10, 0, 9, 9)
    assert client.idle()


@pytest.mark.parametrize(
    "written",
    [
        b"RL.HIT k 10 1 WAIT 5\r\n",
        b"rl.hit k 10 1 wait 5\r\n",
        b"rl.Hit \"k\" 10 1 'wait' 5\n",
        bulks(b"rl.hit", b"k", b"10", b"1", b"wAIt", b"5"),
        b"\r\n*0\r\n" + WAITING,
    ],
)
@pytest.mark.parametrize("piecemeal", [True, False])
def test_however_it_is_written(written: bytes, piecemeal: bool) -> None:
    world = World()
    client = world.waits()
    other = world.probed()
    pieces = [written[at : at + 1] for at in range(len(written))] if piecemeal else [written]
    assert other.send(*pieces) == b""
    assert world.on_lanes() == [look()]  # in the same queue, behind the other
    world.lane_answers(LATER)
    client.vanishes()
    assert world.on_lanes() == [attempt()]
    world.lane_answers(ADMITTED)
    assert other.down() == TOLD


@pytest.mark.parametrize("cut", [1, 10, len(WAITING) - 1])
def test_whatever_comes_in_pieces_behind_it(cut: int) -> None:
    world = World()
    client = world.client()
    both = WAITING + WAITING
    client.send(both[: len(WAITING) + cut])
    client.answer(LATER)
    assert client.send(both[len(WAITING) + cut :]) == b""
    world.clock.advance(2)
    world.lane_answers(ADMITTED)
    assert client.down() == TOLD
    world.lane_answers(ADMITTED)
    assert client.down() == TOLD
    assert client.idle()


def test_the_private_connection_of_a_held_hit_is_kept_alive() -> None:
    """More often than the least timeout of Redis (1 s), whether questions go by lane or not."""
    world = World()
    client = world.probed()
    world.settings.server.ignores_empty = True
    client.send(bulks(b"RL.HIT", b"k", b"10", b"1", b"WAIT", b"200"))
    client.up()
    world.lane_answers(refused(700_000))
    last = world.clock.now
    while world.clock.now < last + 1 and world.clock.now < 1100:
        world.clock.advance(0.05)
        if sent := client.up():
            assert sent == KEPT
            last = world.clock.now
        if world.calls():
            world.lane_answers(refused(700_000))
    assert world.clock.now >= 1100
    assert client.session.wait == WAIT_HELD


# -- in a pipeline ---------------------------------------------------------------------------------


def test_between_other_commands() -> None:
    world = World()
    client = world.client()
    assert client.send(GET + WAITING + GET + HIT + PING) == GET
    assert client.session.wait == WAIT_QUIESCENT
    assert world.waiting.count == 0
    assert client.answer(NIL) == NIL
    assert client.up() == attempt()
    assert client.answer(LATER) == b""
    assert client.up() == b""
    world.clock.advance(2)
    world.lane_answers(ADMITTED)
    assert client.down() == TOLD
    assert client.up() == GET + absent(HIT_RULE) + PING
    assert client.answer(NIL + FIVE + PONG) == NIL + FIVE + PONG
    assert client.idle()


def test_replies_in_pieces_before_it() -> None:
    world = World()
    client = world.client()
    client.send(GET + PING + WAITING)
    frames = b"$2\r\nab\r\n+PONG\r\n"
    out = b""
    for at in range(len(frames)):
        assert client.up() == b""
        out += client.answer(frames[at : at + 1])
    assert out == frames
    assert client.up() == attempt()
    assert client.answer(ADMITTED) == TOLD


def test_behind_hits_on_the_lane() -> None:
    world = World()
    client = world.probed()
    assert client.send(HIT + WRONG_HIT + HIT + WAITING + HIT) == b""
    assert len(world.calls()) == 2
    world.lane_answers(FIVE)
    assert client.down() == FIVE + ARITY
    assert len(world.calls()) == 1
    world.lane_answers(FIVE)
    assert client.down() == FIVE
    assert world.on_lanes() == [attempt()]
    world.lane_answers(ADMITTED)
    assert client.down() == TOLD
    assert world.on_lanes() == [absent(HIT_RULE)]
    world.lane_answers(FIVE)
    assert client.down() == FIVE
    assert client.idle()


def test_behind_a_full_window_of_the_lane() -> None:
    world = World()
    client = world.probed()
    client.send(HIT * (MAX_CLIENT_HITS + 3) + WAITING + PING)
    got = b""
    while world.calls():
        assert world.waiting.count == 0
        world.lane_answers(FIVE)
        got += client.down()
        if client.session.wait == WAIT_HELD:
            break
    assert got == FIVE * (MAX_CLIENT_HITS + 3)
    world.lane_answers(ADMITTED)
    assert client.down() == TOLD
    assert client.up() == PING


def test_several_in_one_pipeline() -> None:
    world = World()
    client = world.client()
    assert client.send(WAITING * 3 + PING) == attempt()
    client.answer(LATER)
    world.clock.advance(2)
    world.lane_answers(ADMITTED)
    assert client.down() == TOLD
    assert len(world.calls()) == 1
    world.lane_answers(ADMITTED)
    world.lane_answers(refused(5_000_001))
    assert client.down() == TOLD + r.five(1, 10, 0, 6, 9)
    assert client.up() == PING
    assert client.answer(PONG) == PONG
    assert client.idle()


def test_behind_wrong_hits_and_before_them() -> None:
    world = World()
    client = world.client()
    assert client.send(WRONG_HIT + WAITING + WRONG_HIT + PING) == attempt()
    assert client.down() == ARITY
    assert client.answer(ADMITTED) == TOLD + ARITY
    assert client.up() == PING


def test_a_pipeline_of_two_that_wait_for_each_other_in_turn() -> None:
    world = World()
    one, two = world.client(), world.client()
    one.send(WAITING * 2)
    two.send(WAITING * 2)
    assert (one.up(), two.up()) == (b"", b"")
    one.answer(LATER)
    two.answer(LATER)
    world.clock.advance(2)
    world.lane_answers(ADMITTED)
    assert one.down() == TOLD
    # the second of the first client queues behind the first of the second
    kinds = [(call.caller is one.session, call.rule.reads) for call in world.calls()]
    assert sorted(kinds) == [(False, False), (True, True)]
    for call in list(world.calls()):
        world.lane_answers(LATER if call.caller is one.session else ADMITTED)
    assert (one.down(), two.down()) == (b"", TOLD)
    while world.calls():
        world.lane_answers(ADMITTED)
    assert one.down() + two.down() == TOLD * 2
    assert world.waiting.count == 0


def test_behind_a_select_it_is_in_that_database() -> None:
    world = World()
    client = world.probed()
    select = bulks(b"SELECT", b"3")
    assert client.send(select + WAITING) == select
    client.answer(OK)
    assert world.waiting.count == 1
    client.up()
    zero = world.client()
    zero.send(WAITING)
    assert world.waiting.count == 2
    three = world.client()
    three.send(select)
    three.answer(OK)
    assert three.send(WAITING) == look()  # behind the first one there
    assert zero.up() == b""


def test_queues_are_of_the_base_database_too() -> None:
    world = World(base_db=2)
    client = world.waits()
    assert world.waiting.blocks((2, b"$1\r\nk\r\n"))
    client.vanishes()


def test_malformed_bytes_behind_it_wait() -> None:
    world = World()
    client = world.client()
    client.send(WAITING + b"*x\r\n", b"more")
    assert client.answer(LATER) == b""
    world.clock.advance(2)
    world.lane_answers(ADMITTED)
    assert client.down() == TOLD
    assert client.up() == b"*x\r\nmore"


def test_a_large_value_behind_it_waits() -> None:
    world = World()
    client = world.client()
    value = bulks(b"SET", b"k", b"v" * 100_000)
    client.send(WAITING + value[:50_000])
    client.send(value[50_000:])
    assert client.session.requests.unread() == len(value)
    client.answer(ADMITTED)
    assert client.up() == value
    assert client.session.requests.unread() == 0


def test_a_reply_that_makes_the_rest_uncountable_before_it() -> None:
    world = World()
    client = world.client()
    client.send(PING + WAITING + PING)
    assert client.answer(b"HTTP/1.1 400 no\r\n") == b"HTTP/1.1 400 no\r\n"
    assert client.up() == absent() + PING
    assert client.answer(b"x") == b"x"


@pytest.mark.parametrize("cut", [1, 2, 5])
def test_an_uncountable_reply_in_pieces_before_it(cut: int) -> None:
    world = World()
    client = world.client()
    client.send(PING + WAITING + PING)
    wrong = b"*1\r\nHTTP/1.1 400 no\r\n"
    client.answer(wrong[:cut], wrong[cut:])
    assert client.up() == absent() + PING


def test_nothing_is_asked_behind_quit() -> None:
    world = World()
    client = world.client()
    sent = client.send(QUIT + WAITING)
    out = client.answer(OK)
    sent += client.up()
    client.loses_upstream()
    assert out + client.down() == OK
    assert sent.startswith(QUIT)
    assert client.session.closed
    assert world.waiting.count == 0


# -- where it acts as if absent --------------------------------------------------------------------


def test_in_a_transaction_it_acts_as_if_absent() -> None:
    world = World()
    client = world.client()
    assert client.send(MULTI) == MULTI
    client.answer(OK)
    assert client.send(WAITING + PING) == absent() + PING
    assert client.answer(QUEUED * 2) == QUEUED * 2
    assert client.send(EXEC) == EXEC
    out = b"*2\r\n" + TOLD_LATER + PONG
    assert client.answer(out) == out
    assert world.waiting.count == 0
    assert client.send(WAITING) != b"" or world.calls()
    assert world.waiting.count == 1


def test_a_whole_transaction_in_one_write() -> None:
    world = World()
    client = world.client()
    replies = OK + QUEUED * 2 + b"*2\r\n" + TOLD_LATER * 2 + PONG
    sent = client.send(MULTI + WAITING + SHAPED + EXEC + PING)
    sent += client.up()
    out = b""
    for frame in (OK, QUEUED, QUEUED, b"*2\r\n" + TOLD_LATER * 2, PONG):
        out += client.answer(frame)
        sent += client.up()
    assert sent == MULTI + absent() + absent(SHAPED_RULE) + EXEC + PING
    assert out == replies
    assert client.idle()


@pytest.mark.parametrize(("end", "reply"), [(EXEC, b"*1\r\n+PONG\r\n"), (DISCARD, OK)])
def test_behind_a_transaction_in_one_write_it_waits(end: bytes, reply: bytes) -> None:
    world = World()
    client = world.client()
    assert client.send(MULTI + PING + end + WAITING + PING) == MULTI + PING + end
    assert client.answer(OK + QUEUED) == OK + QUEUED
    assert client.up() == b""
    assert client.answer(reply) == reply
    assert client.up() == attempt()
    assert client.answer(LATER) == b""
    world.clock.advance(2)
    assert client.up() == b""
    world.lane_answers(ADMITTED)
    assert client.down() == TOLD
    assert client.up() == PING


def test_behind_an_exec_that_ended_nothing_it_acts_as_if_absent() -> None:
    world = World()
    client = world.client()
    wrong = bulks(b"EXEC", b"x")
    error = b"-ERR wrong number of arguments for 'exec' command\r\n"
    client.send(MULTI + wrong + WAITING)
    client.answer(OK + error)
    assert client.up() == absent()
    assert client.answer(QUEUED) == QUEUED
    assert world.waiting.count == 0


def test_behind_a_reset_in_one_write_it_waits() -> None:
    world = World()
    client = world.client()
    reset = bulks(b"RESET")
    assert client.send(bulks(b"FOO") + reset + WAITING) == bulks(b"FOO") + reset
    assert client.answer(b"-ERR unknown\r\n+RESET\r\n") == b"-ERR unknown\r\n+RESET\r\n"
    assert client.up() == attempt()
    assert world.waiting.count == 1


UNCOUNTABLE = [
    (bulks(b"SUBSCRIBE", b"c"), b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n"),
    (bulks(b"CLIENT", b"REPLY", b"OFF"), b""),
    (bulks(b"CLIENT", b"REPLY", b"SKIP"), b""),
    (bulks(b"MONITOR"), OK),
    (bulks(b"FOO"), b"-ERR unknown command\r\n"),
    (b"*x\r\n", b"-ERR Protocol error\r\n"),
]


@pytest.mark.parametrize("answered", [True, False])
@pytest.mark.parametrize(("before", "reply"), UNCOUNTABLE)
def test_where_nothing_can_be_held_it_acts_as_if_absent(
    before: bytes, reply: bytes, answered: bool
) -> None:
    world = World()
    waits = world.waits()  # and hits don't mind those who wait either
    client = world.client()
    client.send(before)
    if answered and reply:
        client.answer(reply)
    written = WAITING if before == b"*x\r\n" else absent()
    assert client.send(WAITING) == written
    plain = HIT if before == b"*x\r\n" else absent(HIT_RULE)
    assert client.send(HIT) == plain
    assert world.waiting.count == 1
    waits.vanishes()


@pytest.mark.parametrize("answered", [True, False])
def test_behind_asking_it_acts_as_if_absent(answered: bool) -> None:
    """It is for the next command only: a question that is put would be without it."""
    world = World()
    client = world.probed()
    asking = bulks(b"ASKING")
    if answered:
        assert client.send(asking) == asking
        assert client.answer(OK) == OK
        assert client.send(WAITING + WAITING) == absent()
    else:
        assert client.send(asking + WAITING + WAITING) == asking + absent()
        assert client.answer(OK) == OK
    assert client.answer(TOLD_LATER) == TOLD_LATER
    assert (client.up(), world.on_lanes()) == (b"", [attempt()])


def test_watching_it_waits_on_its_own_connection() -> None:
    world = World()
    client = world.probed()
    client.send(bulks(b"WATCH", b"w"))
    client.answer(OK)
    assert client.send(WAITING) == attempt()
    client.answer(LATER)
    world.clock.advance(2)
    assert client.up() == attempt()
    assert client.answer(ADMITTED) == TOLD


def test_too_many_wait_already() -> None:
    world = World()
    client = world.client()
    hit = rule(RULE)
    others = []

    def nothing(_: object = None) -> None:
        return

    for number in range(MAX_WAITING):
        others.append(
            world.waiting.join((0, b"%d" % number), hit, nothing, nothing, nothing, nothing)
        )
    assert client.send(WAITING + PING) == absent() + PING
    assert client.answer(TOLD_LATER + PONG) == TOLD_LATER + PONG
    waiter = others.pop()
    assert waiter is not None
    waiter.cancel()
    blocking = world.waits()
    assert client.send(WAITING + PING) == look() + PING  # it doesn't overtake either
    assert client.answer(LATER + PONG) == r.five(1, 10, 0, 2, 9) + PONG
    blocking.vanishes()


# -- those who don't wait --------------------------------------------------------------------------

BEHIND = r.five(1, 10, 0, 2, 4)  # what they get: the first one's two seconds
LOOKED = says(0, 10, 3, -1, 4_000_000)


def test_a_hit_does_not_overtake_by_lane() -> None:
    world = World()
    waits = world.waits()
    client = world.probed()
    assert client.send(HIT + bulks(b"RL.HIT", b"other", b"10", b"60")) == b""
    assert world.on_lanes() == [look(HIT_RULE), absent(HIT_RULE, b"other")]
    world.lane_answers(LOOKED, FIVE)
    assert client.down() == BEHIND + FIVE
    world.clock.advance(2)
    assert len(world.calls()) == 1
    world.lane_answers(ADMITTED)
    assert waits.down() == TOLD
    client.send(HIT)
    assert world.on_lanes() == [absent(HIT_RULE)]


def test_a_hit_does_not_overtake_on_its_own_connection() -> None:
    world = World()
    world.waits()
    client = world.client()
    assert client.send(GET + HIT + HIT + GET) == GET + look(HIT_RULE) * 2 + GET
    replies = NIL + LOOKED + LOOKED + NIL
    out = client.answer(*[replies[at : at + 1] for at in range(len(replies))])
    assert out == NIL + BEHIND * 2 + NIL
    assert client.idle()


def test_a_hit_that_was_looked_at_while_its_lane_was_lost() -> None:
    world = World()
    world.waits()
    client = world.probed()
    client.send(HIT * 2)
    world.lane_lost(sent=1)
    assert client.down() == r.LOST
    assert client.up() == look(HIT_RULE)
    assert client.answer(LOOKED) == BEHIND
    assert client.idle()


def test_an_error_for_a_hit_that_was_looked_at() -> None:
    world = World()
    world.waits()
    client = world.client()
    wrong = b"-WRONGTYPE Operation against a key script: x, on @user_script:1.\r\n"
    client.send(HIT)
    assert client.answer(wrong) == r.clean_error(wrong)
    assert client.idle()


def test_the_private_connection_is_lost_with_a_look_on_it() -> None:
    world = World()
    world.waits()
    client = world.client()
    client.send(HIT + WRONG_HIT + HIT)
    client.answer(LOOKED[:9])
    client.loses_upstream()
    assert client.session.closed
    assert b":1\r\n" not in client.down()


def test_in_a_transaction_it_can_overtake() -> None:
    """The reply is inside EXEC's, which is passed on as it came."""
    world = World()
    world.waits()
    client = world.client()
    assert client.send(MULTI + HIT + EXEC) == MULTI + absent(HIT_RULE) + EXEC


@pytest.mark.parametrize(("end", "reply"), [(EXEC, b"*1\r\n+PONG\r\n"), (DISCARD, OK)])
def test_behind_a_transaction_in_one_write_it_does_not(end: bytes, reply: bytes) -> None:
    world = World()
    world.waits()
    client = world.client()
    sent = client.send(MULTI + PING + end + HIT)
    client.answer(OK + QUEUED + reply)
    assert sent + client.up() == MULTI + PING + end + look(HIT_RULE)
    assert client.answer(LOOKED) == BEHIND


def test_another_database_has_another_queue() -> None:
    world = World()
    world.waits()
    client = world.client()
    select = bulks(b"SELECT", b"3")
    client.send(select)
    client.answer(OK)
    assert client.send(HIT) == absent(HIT_RULE)


def test_behind_a_select_in_one_write_it_is_in_that_database() -> None:
    world = World()
    waits = world.waits()
    client = world.client()
    select = bulks(b"SELECT", b"3")
    sent = client.send(select + HIT + GET)
    out = client.answer(OK)
    sent += client.up()
    assert sent == select + absent(HIT_RULE) + GET
    assert out + client.answer(FIVE + NIL) == OK + FIVE + NIL
    # and there, where nobody waits in database 0
    waits.vanishes()
    world.allowed = False
    three = world.client()
    three.send(select)
    three.answer(OK)
    three.send(WAITING)
    three.answer(LATER)
    client.send(bulks(b"SELECT", b"0"))
    client.answer(OK)
    sent = client.send(HIT + select + HIT)
    out = client.answer(FIVE + OK)
    sent += client.up()
    assert sent == absent(HIT_RULE) + select + look(HIT_RULE)
    assert out + client.answer(LOOKED) == FIVE + OK + BEHIND


def test_behind_a_select_that_failed_in_one_write() -> None:
    world = World()
    world.waits()
    client = world.client()
    select = bulks(b"SELECT", b"99")
    error = b"-ERR DB index is out of range\r\n"
    sent = client.send(select + HIT)
    client.answer(error)
    assert sent + client.up() == select + look(HIT_RULE)
    assert client.answer(LOOKED) == BEHIND


LOOKING = [
    bulks(b"RL.PEEK", b"k", b"10", b"60"),
    bulks(b"RL.HIT", b"k", b"10", b"60", b"COST", b"0"),
    bulks(b"RL.HIT", b"k", b"10", b"60", b"COST", b"0", b"WAIT", b"5"),
    bulks(b"RL.REFUND", b"k", b"10", b"60", b"1"),
    bulks(b"RL.RESET", b"k"),
    bulks(b"CL.THROTTLE", b"k", b"9", b"10", b"60", b"0"),
]


@pytest.mark.parametrize("command", LOOKING)
@pytest.mark.parametrize("lane", [True, False])
def test_what_takes_nothing_does_not_mind_the_queue(command: bytes, lane: bool) -> None:
    world = World()
    world.waits()
    client = world.probed() if lane else world.client()
    sent = client.send(command)
    if world.calls():
        assert world.calls()[0].behind is None
        assert world.calls()[0].waiter is None
        world.lane_answers(FIVE)
        assert client.down() == FIVE
    else:
        assert sent
        assert client.answer(FIVE) == FIVE
    assert world.waiting.count == 1


@pytest.mark.parametrize("name", [b"CL.THROTTLE", b"RL.THROTTLE"])
def test_throttles_don_t_overtake(name: bytes) -> None:
    world = World()
    world.waits()
    client = world.client()
    client.send(bulks(name, b"k", b"9", b"10", b"60"))
    assert client.answer(LOOKED) == BEHIND


def test_the_servers_own_throttle_is_none_of_ours() -> None:
    world = World()
    world.settings.server.has_throttle = True
    world.waits()
    client = world.client()
    throttle = bulks(b"CL.THROTTLE", b"k", b"9", b"10", b"60")
    assert client.send(throttle) == throttle


# -- what is given back ----------------------------------------------------------------------------

GIVES = [
    (bulks(b"RL.RESET", b"k"), b":1\r\n", True),
    (bulks(b"RL.RESET", b"a", b"k", b"b"), b":2\r\n", True),
    (b"rl.reset a k\r\n", b":0\r\n", True),
    (bulks(b"RL.REFUND", b"k", b"10", b"60", b"1"), FIVE, True),
    (bulks(b"RL.REFUND", b"k", b"10", b"60", b"1"), b"-NOPERM no\r\n", False),
    (bulks(b"RL.RESET", b"k"), b"-NOPERM no\r\n", False),
    (bulks(b"RL.RESET", b"K"), b":1\r\n", False),
    (bulks(b"RL.PEEK", b"k", b"10", b"60"), FIVE, False),
]


@pytest.mark.parametrize("pushes", [True, False])
@pytest.mark.parametrize(("command", "answer", "wakes"), GIVES)
def test_what_is_given_back_wakes_who_waits(
    command: bytes, answer: bytes, wakes: bool, pushes: bool
) -> None:
    world = World()
    head, other = world.waits(), world.waits()
    client = world.client()
    assert client.send(GET + command + GET) != b""
    stream = NIL + (PUSH if pushes else b"") + answer + NIL
    assert client.answer(*[stream[at : at + 1] for at in range(len(stream))]) == stream
    assert world.on_lanes() == ([attempt()] if wakes else [])
    if wakes:
        world.lane_answers(ADMITTED)
        assert head.down() == TOLD
        assert [call.caller for call in world.calls()] == [other.session]


@pytest.mark.parametrize("command", [GIVES[0][0], GIVES[3][0]])
def test_what_is_given_back_elsewhere_wakes_nobody(command: bytes) -> None:
    world = World()
    world.waits()
    client = world.client()
    client.send(bulks(b"SELECT", b"3"))
    client.answer(OK)
    client.send(command)
    client.answer(b":1\r\n" if b"RESET" in command else FIVE)
    assert world.calls() == []


def test_a_refund_by_lane_wakes_who_waits() -> None:
    world = World()
    head = world.waits()
    client = world.probed()
    assert client.send(GIVES[3][0]) == b""
    world.lane_answers(FIVE)
    assert client.down() == FIVE
    assert [call.caller for call in world.calls()] == [head.session]
    world.lane_answers(ADMITTED)
    assert head.down() == TOLD


def test_what_is_given_back_in_a_transaction_is_passed_on_as_it_comes() -> None:
    world = World()
    world.waits()
    client = world.client()
    client.send(MULTI + GIVES[0][0] + EXEC)
    replies = OK + QUEUED + b"*1\r\n:1\r\n"
    assert client.answer(replies) == replies
    assert world.calls() == []


# -- those who leave -------------------------------------------------------------------------------


def test_who_half_closes_while_it_waits_leaves() -> None:
    world = World()
    one, two = world.waits(), world.waits()
    one.ends()
    assert one.session.closed
    assert one.down() == b""
    (call,) = world.calls()
    assert call.caller is two.session  # the next one tries at once
    world.lane_answers(ADMITTED)
    assert two.down() == TOLD


def test_who_half_closes_before_the_first_answer_gets_it() -> None:
    for frame, told in ((ADMITTED, TOLD), (LATER, TOLD_LATER)):
        world = World()
        client = world.client()
        client.send(WAITING)
        client.ends()
        assert not client.session.closed
        out = client.answer(frame)
        while world.calls():
            world.lane_answers(frame)
        out += client.answer(frame) if client.up() else client.down()
        assert out == told
        assert client.session.wants_eof
        assert world.waiting.count == 0


def test_who_half_closes_before_its_turn_to_be_asked_gets_one_answer() -> None:
    """printf 'GET x\\r\\nRL.HIT k 10 1 WAIT 5\\r\\n' | nc: it gets its answer, and at once."""
    world = World()
    client = world.client()
    assert client.send(GET + WAITING) == GET
    client.ends()  # which has to reach Redis: GET might be a BLPOP
    assert client.up().startswith(b"*6\r\n$4\r\nEVAL\r\n")
    assert client.session.wants_eof
    assert client.answer(NIL) == NIL
    assert client.answer(TOLD_LATER) == TOLD_LATER
    assert world.waiting.count == 0


def test_who_half_closes_while_its_connection_opens_gets_one_answer() -> None:
    world = World()
    client = Client(world)
    client.send(WAITING)
    client.ends()
    client.session.upstream_opened()
    client.session.flush()
    assert client.up() == attempt()
    client.answer(LATER)
    assert world.on_lanes() == [final()]
    world.lane_answers(LATER)
    assert client.down() == TOLD_LATER
    assert client.session.wants_eof


def test_who_half_closes_behind_several_gets_an_answer_to_each() -> None:
    world = World()
    client = world.client()
    client.send(WAITING * 3 + PING)
    client.ends()
    out = client.answer(LATER)
    for _ in range(10):
        if world.calls():
            world.lane_answers(LATER)
    out += client.down()
    assert out == TOLD_LATER * 3
    assert client.up().endswith(PING)
    assert client.answer(PONG) == PONG
    assert client.session.wants_eof


def test_who_half_closes_while_it_is_held_leaves_and_keeps_its_slot() -> None:
    world = World()
    client = world.client()
    client.send(SHAPED)
    client.answer(says(0, 10, 5, -1, 100_000, 3_000_000))
    client.ends()
    assert client.session.closed
    assert world.waiting.count == 0
    assert world.clock.live() == []


def test_a_client_that_is_gone_while_its_question_is_on_the_lane() -> None:
    world = World()
    one = world.probed()
    one.send(WAITING)
    two = world.waits()
    one.vanishes()
    assert [call.caller for call in world.calls()] == [one.session, two.session]
    world.lane_answers(ADMITTED)
    assert (one.down(), one.up(), two.down()) == (b"", b"", b"")
    world.lane_answers(ADMITTED)
    assert two.down() == TOLD
    assert world.waiting.count == 0


def test_a_client_that_is_gone_while_its_question_is_on_its_connection() -> None:
    world = World()
    one = world.client()
    one.send(WAITING)
    one.up()
    two = world.waits()
    one.vanishes()
    assert [call.caller for call in world.calls()] == [two.session]
    assert one.answer(ADMITTED) == b""
    world.lane_answers(ADMITTED)
    assert two.down() == TOLD
    assert world.waiting.count == 0
    assert world.clock.live() == []


def test_who_is_gone_asks_no_more() -> None:
    world = World()
    one = world.waits()
    one.vanishes()
    world.clock.advance(100)
    assert one.up() == b""
    assert world.calls() == []


def test_the_private_connection_is_lost_while_it_waits() -> None:
    world = World()
    one, two = world.waits(), world.waits()
    one.send(PING)
    one.loses_upstream()
    assert one.down() == r.LOST
    assert one.session.closed
    assert [call.caller for call in world.calls()] == [two.session]


@pytest.mark.parametrize("by_lane", [True, False])
def test_the_private_connection_is_lost_with_a_question_under_way(by_lane: bool) -> None:
    world = World()
    one = world.probed() if by_lane else world.client()
    one.send(WAITING)
    if not by_lane:
        one.answer(ADMITTED[:7])
    one.loses_upstream()
    assert one.down() == r.LOST
    assert one.session.closed
    assert world.waiting.count == 0
    if by_lane:
        world.lane_answers(ADMITTED)
    assert one.down() == b""


def test_the_lane_is_lost_with_a_question_sent() -> None:
    world = World()
    one = world.probed()
    one.send(WAITING)
    two = world.waits()
    world.lane_lost(sent=1)
    assert one.down() == r.LOST
    assert one.idle()
    assert not one.session.closed
    assert two.up() == attempt()  # its turn
    assert two.answer(ADMITTED) == TOLD


def test_the_lane_is_lost_with_a_question_not_sent() -> None:
    world = World()
    one = world.probed()
    one.send(WAITING)
    world.lane_lost(sent=0)
    assert one.down() == b""
    assert one.up() == attempt()
    assert one.answer(LATER) == b""
    world.clock.advance(2)
    assert one.up() == attempt()
    assert one.answer(ADMITTED) == TOLD
    assert one.idle()


def test_the_lane_is_lost_with_questions_of_many() -> None:
    world = World()
    clients = [world.probed() for _ in range(4)]
    for client in clients:
        client.send(WAITING)
    assert len(world.calls()) == 4
    world.lane_lost(sent=2)
    # an attempt may have been counted; a look, sent or not, is asked again
    assert [client.down() for client in clients] == [r.LOST, b"", b"", b""]
    assert [client.up() for client in clients] == [b"", look(), look(), look()]
    clients[1].answer(LATER)
    assert clients[1].up() == attempt()
    assert clients[1].answer(ADMITTED) == TOLD
    clients[3].answer(LATER)
    clients[2].answer(LATER)
    assert clients[2].up() == attempt()
    assert clients[2].answer(ADMITTED) == TOLD
    assert clients[3].up() == attempt()
    assert clients[3].answer(ADMITTED) == TOLD
    assert world.waiting.count == 0


def test_the_lane_is_lost_while_it_sleeps() -> None:
    world = World()
    one = world.probed()
    one.send(WAITING)
    world.lane_answers(LATER)
    world.lane_lost(sent=0)
    assert (one.up(), one.down()) == (b"", b"")
    world.clock.advance(2)
    assert one.up() == attempt()


def test_a_missing_right_is_told_to_the_client() -> None:
    world = World()
    one = world.client()
    wrong = b"-NOPERM this user has no permissions script: abc, on @user_script:5.\r\n"
    one.send(WAITING + PING)
    assert one.answer(wrong) == r.clean_error(wrong)
    assert one.up() == PING
    assert world.waiting.count == 0


def test_a_stranger_waits_for_nothing() -> None:
    world = World()
    head = world.waits()
    one = world.client()
    assert one.send(WAITING) == look()
    assert one.answer(NOAUTH) == NOAUTH
    assert one.send(HIT) == look(HIT_RULE)  # it was no probe
    assert one.answer(NOAUTH) == NOAUTH
    assert head.down() == b""
    assert world.waiting.count == 1


# -- pushes ----------------------------------------------------------------------------------------


def test_pushes_come_while_it_waits() -> None:
    world = World()
    client = world.client()
    client.send(WAITING)
    assert client.answer(PUSH + LATER + PUSH) == PUSH * 2
    assert client.answer(PUSH) == PUSH
    world.clock.advance(2)
    out = b""
    for at in range(len(PUSH)):
        out += client.answer(PUSH[at : at + 1])
    assert out == PUSH
    world.lane_answers(ADMITTED)
    assert client.down() == TOLD
    assert client.idle()


@pytest.mark.parametrize("by_lane", [True, False])
def test_half_a_push_is_finished_first(by_lane: bool) -> None:
    world = World()
    world.allowed = by_lane
    client = world.probed()
    client.send(WAITING)
    if by_lane:
        world.lane_answers(LATER)
    else:
        client.answer(LATER)
    world.clock.advance(2)
    out = client.answer(PUSH[:-3])
    if world.calls():
        world.lane_answers(ADMITTED)
        assert TOLD not in client.down()
        out += client.answer(PUSH[-3:])
    else:
        assert client.up() == attempt()
        out += client.answer(PUSH[-3:] + ADMITTED)
    assert out == PUSH + TOLD
    assert client.send(PING) == PING
    assert client.answer(PONG) == PONG
    assert client.idle()


def test_half_a_push_when_its_time_to_ask_comes() -> None:
    """It asks on its own connection then; the push is finished before anything else is read."""
    world = World()
    client = world.waits()
    assert client.answer(PUSH[:4]) == PUSH[:4]
    world.clock.advance(2)
    assert client.up() == attempt()
    assert client.answer(PUSH[4:] + ADMITTED) == PUSH[4:] + TOLD


def test_half_a_push_and_then_nothing() -> None:
    world = World()
    client = world.waits()
    assert client.answer(PUSH[:4]) == PUSH[:4]
    client.loses_upstream()
    assert client.down() == b""
    assert client.session.closed
    assert world.waiting.count == 0


def test_pushes_around_a_look() -> None:
    world = World()
    world.waits()
    client = world.client()
    client.send(HIT + PING)
    stream = PUSH + LOOKED + PUSH + PONG + PUSH
    expected = PUSH + BEHIND + PUSH + PONG + PUSH
    assert client.answer(*[stream[at : at + 1] for at in range(len(stream))]) == expected


# -- LEAKY -----------------------------------------------------------------------------------------


def test_shaped_hits_take_their_places_at_once() -> None:
    world = World()
    clients = [world.client() for _ in range(3)]
    for number, client in enumerate(clients):
        assert client.send(SHAPED) == attempt(SHAPED_RULE)
        assert client.answer(says(0, 10, 5, -1, 100_000, number * 100_000)) == (
            b"" if number else r.five(0, 10, 5, -1, 1)
        )
    other = world.client()
    hit = bulks(b"RL.HIT", b"k", b"10", b"1", b"ALGO", b"LEAKY", b"MS")
    world.clock.now -= 0.00001  # (a float is no exact number of microseconds)
    assert other.send(hit) == look("10 1 ALGO LEAKY MS")
    assert other.answer(says(0, 10, 5, -1, 300_000)) == r.five(1, 10, 0, 101, 300)
    world.clock.advance(0.10001)
    assert clients[1].down() == r.five(0, 10, 5, -1, 1)
    assert clients[2].down() == b""
    world.clock.advance(0.1)
    assert clients[2].down() == r.five(0, 10, 5, -1, 1)
    assert all(client.idle() for client in clients)
    assert world.waiting.count == 0


def test_what_follows_a_held_hit_waits_for_its_reply() -> None:
    world = World()
    client = world.client()
    client.send(SHAPED + PING)
    assert client.answer(says(0, 10, 5, -1, 100_000, 100_000)) == b""
    assert client.up() == b""
    world.clock.advance(0.1)
    assert client.down() == r.five(0, 10, 5, -1, 1)
    assert client.up() == PING


# -- the end ---------------------------------------------------------------------------------------


def test_drain() -> None:
    world = World()
    one, two = world.waits(), world.waits()
    behind = world.client()
    behind.send(GET + WAITING)
    world.waiting.drain()
    assert [call.rule.reads for call in world.calls()] == [False, True]
    world.lane_answers(LATER, LATER)
    assert (one.down(), two.down()) == (TOLD_LATER, TOLD_LATER)
    behind.answer(NIL)
    behind.answer(LATER)
    while world.calls():
        world.lane_answers(LATER)
    assert behind.down() == TOLD_LATER
    assert not any(client.session.outstanding() for client in (one, two, behind))


# -- any traffic -----------------------------------------------------------------------------------


class Server:
    """Answers the private connections and the lane: a limiter admits what it is given to admit."""

    def __init__(self) -> None:
        self.room: dict[bytes, int] = {}
        self.ran: list[tuple[bytes, bytes]] = []  # key and the command's own mark, as admitted

    def script(self, words: list[bytes]) -> bytes:
        """EVAL's words without the script, or a call's: key, then ARGV."""
        key, argv = words[0], words[1:]
        cost = int(argv[3]) if len(argv) > 3 else 1
        room = self.room.get(key, 0)
        micro = argv[2:3] == [b"1"]
        if len(argv) > 4 and argv[4] == b"peek":
            pass
        elif cost <= room:
            self.room[key] = room - cost
            self.ran.append((key, argv[1]))
            return r.five(0, 10, 1, -1, 1)
        retry = 700_000 if micro else 1
        return r.five(1 if cost > room else 0, 10, 0, retry if cost > room else -1, 1)


class Wire:
    """What reaches one private connection."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.framer = RequestFramer()
        self.out = b""

    def take(self, data: bytes) -> None:
        framer = self.framer
        if data:
            framer.feed(data)
        while (code := framer.next()) in (COMMAND, EMPTY):
            if code == EMPTY:
                continue
            words = framer.buf[framer.start : framer.end].split(b"\r\n")[2::2]
            if words[0] == b"EVAL":
                self.out += self.server.script(words[3:])
            else:
                self.out += r.bulk(words[1])


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("send"),
            st.integers(0, 3),
            st.lists(st.sampled_from(["wait", "wait", "hit", "echo", "wrong"]), max_size=6),
        ),
        st.tuples(st.just("redis"), st.integers(0, 3), st.integers(1, 200)),
        st.tuples(st.just("lane"), st.integers(1, 5), st.none()),
        st.tuples(st.just("time"), st.sampled_from([0.01, 0.5, 0.8, 3.0]), st.none()),
        st.tuples(st.just("room"), st.integers(1, 5), st.sampled_from([b"a", b"b"])),
        st.tuples(st.sampled_from(["lost", "ready"]), st.integers(0, 3), st.none()),
        st.tuples(st.sampled_from(["push", "eof", "gone"]), st.integers(0, 3), st.none()),
    ),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_whatever_happens_replies_keep_the_order_of_the_requests(
    steps: list[tuple[str, float, object]],
) -> None:
    world = World()
    server = Server()
    clients = [world.probed() for _ in range(4)]
    wires = [Wire(server) for _ in clients]
    expected: list[list[bytes]] = [[] for _ in clients]
    received = [b"" for _ in clients]
    pushes = [0, 0, 0, 0]
    gone: set[int] = set()
    ended: set[int] = set()
    number = 0

    def move() -> None:
        for index, client in enumerate(clients):
            received[index] += client.down()
            wires[index].take(client.up())

    def lane_answers(count: int) -> None:
        if not world.lanes:
            return
        for call in world.lane.calls[:count]:
            argv = call.rule.tail.split(b"\r\n")[1::2]
            world.lane_answers(server.script([call.key.split(b"\r\n")[1], *argv]))
        move()

    def redis(index: int, count: int) -> None:
        data, wires[index].out = wires[index].out[:count], wires[index].out[count:]
        if data and index not in gone and not clients[index].session.closed:
            received[index] += clients[index].answer(data)
        move()

    for step, what, more in steps:
        index = int(what) % 4
        client = clients[index]
        alive = index not in gone and index not in ended and not client.session.closed
        if step == "send" and alive and isinstance(more, list):
            data = b""
            for kind in more:
                number += 1
                key = b"ab"[number % 2 : number % 2 + 1]
                if kind == "wait":
                    data += bulks(b"RL.HIT", key, b"10", b"60", b"WAIT", b"%d" % (number % 3 + 1))
                    expected[index].append(b"*5")
                elif kind == "hit":
                    data += bulks(b"RL.HIT", key, b"10", b"60", b"COST", b"1")
                    expected[index].append(b"*5")
                elif kind == "wrong":
                    data += WRONG_HIT
                    expected[index].append(ARITY)
                else:
                    data += bulks(b"ECHO", b"%d" % number)
                    expected[index].append(r.bulk(b"%d" % number))
            wires[index].take(client.send(data))
        elif step == "redis" and isinstance(more, int):
            redis(index, more)
        elif step == "lane":
            lane_answers(int(what))
        elif step == "time":
            world.clock.advance(what)
        elif step == "room" and isinstance(more, bytes):
            server.room[more] = server.room.get(more, 0) + int(what)
        elif step == "lost" and world.lanes:
            world.lane_lost(sent=0)
        elif step == "ready" and world.lanes:
            world.lane.ready = True
        elif step == "push" and alive:
            move()
            wires[index].out += PUSH
            pushes[index] += 1
        elif step == "eof" and alive:
            ended.add(index)
            client.ends()
        elif step == "gone":
            gone.add(index)
            client.vanishes()
        move()
    for _ in range(3000):
        if world.waiting.count == 0 and not any(wire.out for wire in wires) and not world.calls():
            break
        if world.lanes:
            world.lane.ready = True
        for index in range(4):
            redis(index, 1 << 20)
        lane_answers(1000)
        world.clock.advance(0.3)
        move()
    assert world.waiting.count == 0
    assert world.calls() == []
    assert world.clock.live() == []
    for index, client in enumerate(clients):
        got = received[index]
        assert got.count(PUSH) <= pushes[index]
        got = got.replace(PUSH, b"").partition(b">")[0]  # (the last one may be broken off)
        cut = index in gone or client.session.closed
        for each in expected[index]:
            size = len(each)
            if each == b"*5":
                size = len(b"".join(got.splitlines(keepends=True)[:6]))
            if cut and (len(got) < size or got.count(b"\r\n") < 2):
                assert got.startswith(each[: len(got)])
                got = b""
                break
            assert got.startswith(each)
            got = got[size:]
        else:
            assert cut or not client.session.outstanding()
        assert got == b""
