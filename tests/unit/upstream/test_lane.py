"""lane: one shared connection, with fed bytes: no socket, no server, a clock that is handed in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rlproxy.config.urls import Address
from rlproxy.observability.counters import Counters
from rlproxy.ratelimit import scripts
from rlproxy.ratelimit.denial_cache import MAX_LIFE_S, DenialCache
from rlproxy.ratelimit.grammar import Grammar, Rule
from rlproxy.ratelimit.hit_replies import five
from rlproxy.ratelimit.scripts import LOADED, MAX_GROUP, SOURCE
from rlproxy.resp import commands
from rlproxy.resp import encoding as r
from rlproxy.resp.encoding import bulks
from rlproxy.resp.key_slot import key_slot
from rlproxy.session import context
from rlproxy.session.call import MAX_LANE_HITS, Call, Caller, Lane
from rlproxy.session.context import ServerFacts
from rlproxy.session.identity import Identity
from rlproxy.session.session import Session
from rlproxy.upstream import hit_lane, lane
from rlproxy.upstream.connector import Target
from rlproxy.upstream.hit_lane import MAX_UNSENT
from rlproxy.upstream.lane import LaneContext, ServerLane
from rlproxy.upstream.lane_pool import MAX_LANES, MAX_LANES_PER_USER, LanePool

from tests.contexts import hit_timeouts, worker_context

GRAMMAR = Grammar(scripts.load())
ANONYMOUS = Identity(None, None, 0)

HELLO = bulks(b"HELLO", b"3", b"SETNAME", b"rlproxy-lane")
TRACK = bulks(b"CLIENT", b"TRACKING", b"ON", b"OPTIN")
CACHING = bulks(b"CLIENT", b"CACHING", b"YES")
ANY_KEYS = bulks(*hit_lane.ANY_KEYS)
OK = b"+OK\r\n"
ONE = b":1\r\n"
WELCOME = b"%1\r\n$6\r\nserver\r\n$5\r\nredis\r\n"
BUSY = b"-BUSY Redis is busy running a script.\r\n"
NOSCRIPT = b"-NOSCRIPT No matching script. Please use EVAL.\r\n"
READONLY = b"-READONLY You can't write against a read only replica.\r\n"
NO_EVALSHA = b"-NOPERM this user has no permissions to run the 'evalsha' command\r\n"
ALL_TOUCHED = b">2\r\n$10\r\ninvalidate\r\n_\r\n"

ADMITTED = five(0, 1, 0, -1, 60)
REFUSED = five(1, 1, 0, 42, 60)
STAYS = five(1, 1, 0, 41_000_001, 59_500_000)  # in microseconds


def touched(key: bytes) -> bytes:
    """Redis' word that `key` was touched."""
    return b">2\r\n$10\r\ninvalidate\r\n*1\r\n" + r.bulk(key)


def rule(*words: bytes, name: bytes = b"RL.HIT") -> Rule:
    """The rule of a command; the same words give the same one."""
    written = name + b" " + b" ".join(words)
    return GRAMMAR.known(written) or GRAMMAR.rule(written, name, [b"k", *words])


HIT = rule(b"1", b"60")
IN_MS = rule(b"1", b"60000", b"MS")
OTHER = rule(b"2", b"60")
PEEK = rule(b"1", b"60", name=b"RL.PEEK")
COST_0 = rule(b"1", b"60", b"COST", b"0")  # writes nothing, too
REFUND = rule(b"1", b"60", b"1", name=b"RL.REFUND")
ZHIT = rule(b"1", b"60", b"ALGO", b"ZLOG")


def by_sha(of: Rule, key: bytes = b"k") -> bytes:
    return of.words(LOADED) + r.bulk(key) + of.tail


def by_source(of: Rule, key: bytes = b"k") -> bytes:
    return of.words(SOURCE) + r.bulk(key) + of.tail


def by_group(of: Rule, *keys: bytes) -> bytes:
    """One request for a hit of each key."""
    assert of.script is not None and of.script.group is not None
    assert of.limiter is not None
    words = [b"%d" % of.limiter.max, b"%d" % of.limiter.window_us, b"%d" % of.unit_us]
    head = (b"EVALSHA", of.script.group.sha, b"%d" % len(keys))
    return bulks(*head, *keys, *words * len(keys))


def listed(*replies: bytes) -> bytes:
    """The reply to a group."""
    return b"*%d\r\n%b" % (len(replies), b"".join(replies))


def opener(of: Rule, key: bytes = b"k") -> bytes:
    """A hit whose key Redis is to track. Its reply is in microseconds."""
    return CACHING + by_sha(of.in_microseconds(), key)


class Wire(asyncio.Transport):
    """What the lane writes. Its end is the lane's, in the next turn of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.loop = loop
        self.protocol = protocol
        self.writes: list[bytes] = []
        self.aborted = False
        protocol.connection_made(self)

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol)
        self.protocol = protocol

    def abort(self) -> None:
        if not self.aborted:
            self.aborted = True
            self.loop.call_soon(self.protocol.connection_lost, None)


class Loop(asyncio.SelectorEventLoop):
    """A loop whose connections are Wires, and whose time stands still."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.wires: list[Wire] = []
        self.reachable = True

    def time(self) -> float:
        return self.now

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.Protocol], *_: object, **__: object
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        if not self.reachable:
            raise ConnectionRefusedError
        wire = Wire(self, protocol_factory())
        self.wires.append(wire)
        return wire, wire.protocol

    def end(self) -> None:
        """End the lanes that are being opened, and close."""
        for task in asyncio.all_tasks(self):
            task.cancel()
        self.turns()
        self.close()

    def turns(self) -> None:
        """All that is due now."""
        for _ in range(3):
            self.call_soon(self.stop)
            self.run_forever()


class Bench:
    """A pool, and one lane of it that is ready."""

    def __init__(
        self,
        loop: Loop,
        remembers: int = 100,
        tracks: bytes = OK,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.loop = loop
        self.denial_cache = DenialCache(remembers, clock or loop.time)
        target = Target(Address("10.0.0.1", 1), 5.0)
        timeouts = hit_timeouts()
        self.server = ServerFacts("redis:1")
        self.server.loaded = True
        self.counters = Counters()
        context = LaneContext(
            loop,
            target,
            self.server,
            self.denial_cache,
            timeouts,
            MAX_LANE_HITS,
            self.counters,
        )
        self.pool = LanePool(context)
        lane = self.pool.lane_of(ANONYMOUS, commands.HIT, 3)
        assert lane is not None
        self.lane: Lane = lane
        self.lane.wake()
        loop.turns()
        assert self.sent() == HELLO + (TRACK if remembers else b"") + ANY_KEYS
        self.greet(WELCOME + (tracks if remembers else b"") + ONE)
        assert self.lane.ready

    def loads(self) -> None:
        """The control connection loads the scripts."""
        assert self.pool.drained()
        self.server.loaded = True

    def lane_of_bob(self, db: int = 0) -> ServerLane:
        """The lane of another user, which connects in the next turn."""
        lane = self.pool.lane_of(Identity(b"bob", b"pw", db), commands.HIT, 3)
        assert lane is not None
        lane.wake()
        return lane

    @property
    def wire(self) -> Wire:
        return self.loop.wires[-1]

    def sent(self) -> bytes:
        """What was written since."""
        self.loop.turns()
        sent = b"".join(self.wire.writes)
        self.wire.writes.clear()
        return sent

    def answer(self, *pieces: bytes) -> None:
        """Redis' bytes, in these pieces."""
        for piece in pieces:
            self.wire.protocol.data_received(piece)

    def greet(self, replies: bytes) -> None:
        """Redis' replies to the handshake of the latest lane."""
        self.answer(replies)
        self.loop.turns()

    def hit(self, of: Rule = HIT, key: bytes = b"k", caller: Session | None = None) -> Call:
        """A call that is submitted; `reply` is its reply once there is one."""
        call = Call(caller or client(), of, r.bulk(key))
        call.reply = self.lane.submit(call)
        return call

    def ask(self, reply: bytes, of: Rule = HIT, key: bytes = b"k") -> bytes:
        """A hit's reply, Redis' reply to it being `reply`."""
        call = self.hit(of, key)
        assert call.reply == b""
        assert self.sent() == by_sha(of, key)
        self.answer(reply)
        return call.reply

    def open(self, of: Rule = HIT, key: bytes = b"k", found: bytes = STAYS) -> bytes:
        """Mark the key and open its entry; the opener's reply."""
        self.ask(REFUSED, of, key)
        call = self.hit(of, key)
        assert call.reply == b""
        assert self.sent() == opener(of, key)
        self.answer(OK + found)
        return call.reply

    def known(self, of: Rule = HIT, key: bytes = b"k", caller: Session | None = None) -> bool:
        """Whether such a hit's reply is known; if not, Redis refuses it."""
        call = self.hit(of, key, caller)
        sent = self.sent()
        if call.reply:
            assert sent == b""
            return True
        self.answer(OK + STAYS if sent.startswith(CACHING) else REFUSED)
        return False


class Returned(Caller):
    """Notes what became of its calls on a lane that was lost."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, Call]] = []

    def lane_answered(self, call: Call, reply: bytes) -> None:
        assert reply == r.LOST
        self.seen.append(("lost", call))

    def lane_returned(self, call: Call) -> None:
        self.seen.append(("returned", call))

    def resume(self) -> None:
        pass


def client() -> Session:
    """A session that makes calls."""
    return Session(
        worker_context(grammar=GRAMMAR, server=ServerFacts("redis:1"), lane_of=lambda *_: None)
    )


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.end()


@pytest.fixture
def bench(loop: Loop) -> Bench:
    return Bench(loop)


# -- the handshake ---------------------------------------------------------------------------------


@pytest.mark.parametrize("refusal", [b"-ERR unknown subcommand\r\n", NO_EVALSHA, b":1\r\n"])
def test_a_server_that_does_not_track(loop: Loop, refusal: bytes) -> None:
    bench = Bench(loop, tracks=refusal)
    for _ in range(4):
        assert bench.ask(REFUSED) == REFUSED
    assert len(bench.denial_cache) == 0


def test_a_lane_logs_in_as_its_identity(bench: Bench) -> None:
    lane = bench.lane_of_bob(db=3)
    login = r.bulks(b"HELLO", b"3", b"AUTH", b"bob", b"pw", b"SETNAME", b"rlproxy-lane")
    bench.loop.turns()
    assert bench.sent() == login + r.bulks(b"SELECT", b"3") + TRACK + ANY_KEYS
    bench.greet(WELCOME + OK + OK)
    assert not lane.ready
    bench.greet(ONE)
    assert lane.ready


def test_a_lane_that_is_closed_while_it_opens_ends_its_connection(bench: Bench) -> None:
    lane = bench.lane_of_bob()
    bench.loop.turns()
    lane.retire()
    bench.loop.turns()
    assert len(bench.loop.wires) == 2
    assert bench.wire.aborted
    bench.loop.now += 1.0
    lane.wake()
    bench.loop.turns()
    assert len(bench.loop.wires) == 2


def test_a_login_that_a_busy_server_refuses_is_not_tried_again(bench: Bench) -> None:
    lane = bench.lane_of_bob()
    bench.loop.turns()
    bench.greet(b"-WRONGPASS no\r\n" + OK + BUSY)
    assert lane.refused and not lane.ready and bench.wire.aborted


@pytest.mark.parametrize("more", [OK, ALL_TOUCHED[:9], b"no reply\r\n"])
def test_bytes_behind_the_handshake_that_are_no_push_end_the_lane(
    bench: Bench, more: bytes
) -> None:
    lane = bench.lane_of_bob()
    bench.loop.turns()
    bench.answer(WELCOME + OK + ONE + more)
    bench.loop.turns()
    assert bench.wire.aborted and not lane.ready and not lane.refused


def test_a_push_behind_the_handshake_leaves_the_lane_ready(bench: Bench) -> None:
    lane = bench.lane_of_bob()
    bench.loop.turns()
    bench.greet(WELCOME + OK + ONE + ALL_TOUCHED)
    assert lane.ready


def test_a_server_that_takes_no_caching_any_more(bench: Bench) -> None:
    bench.ask(REFUSED)
    call = bench.hit()
    assert bench.sent() == opener(HIT)
    bench.answer(b"-ERR x\r\n" + STAYS)
    assert call.reply
    for _ in range(3):
        assert bench.ask(REFUSED) == REFUSED


def test_a_busy_server_tracks_later_hits(bench: Bench) -> None:
    bench.ask(REFUSED)
    call = bench.hit()
    assert bench.sent() == opener(HIT)
    bench.answer(BUSY + BUSY)
    assert call.reply == BUSY
    assert bench.open() == REFUSED
    assert bench.known()
    # The script ends between the two: the refusal is that of a key without tracking.
    bench.answer(touched(b"k"))
    bench.ask(REFUSED)
    call = bench.hit()
    bench.sent()
    bench.answer(BUSY + STAYS)
    assert call.reply == REFUSED
    assert not bench.known()
    assert bench.known()


def test_a_lane_that_a_busy_server_refuses_to_track_is_opened_again(bench: Bench) -> None:
    lane = bench.lane_of_bob()
    bench.loop.turns()
    bench.greet(WELCOME + BUSY + ONE)
    assert not lane.ready and bench.wire.aborted


def test_which_rules_have_a_script(bench: Bench) -> None:
    assert bench.lane.by_sha(HIT)
    assert not bench.lane.by_sha(Rule())  # RL.RESET, which is a DEL
    bench.server.loaded = False
    assert not bench.lane.by_sha(HIT)


def test_lanes_are_bounded_in_total_and_per_user(bench: Bench) -> None:
    pool = bench.pool

    def lane(user: int, db: int) -> Lane | None:
        return pool.lane_of(Identity(b"%d" % user, b"pw", db), commands.HIT, 3)

    first = [lane(0, db) for db in range(MAX_LANES_PER_USER)]
    assert None not in first
    assert lane(0, MAX_LANES_PER_USER) is None
    others = MAX_LANES - len(pool.lanes())
    assert None not in [lane(user, 0) for user in range(1, 1 + others)]
    assert lane(1 + others, 0) is None
    assert [lane(0, db) for db in range(MAX_LANES_PER_USER)] == first
    closed = pool.lanes()[-1]
    closed.retire()
    made = lane(others, 0)
    assert made is not None and made is not closed


def test_a_push_that_comes_in_pieces(bench: Bench) -> None:
    for at in range(1, len(touched(b"k"))):
        bench.open()
        assert bench.known()
        bench.answer(touched(b"k")[:at], touched(b"k")[at:])
        assert not bench.known()
        bench.answer(touched(b"k"))


@pytest.mark.parametrize("remembers", [100, 0])
def test_a_lane_that_may_not_log_in_is_closed_by_the_next_sweep(loop: Loop, remembers: int) -> None:
    bench = Bench(loop, remembers)
    other = bench.lane_of_bob()
    loop.turns()
    bench.greet(b"-WRONGPASS no\r\n" * (3 if remembers else 2))
    assert not other.ready
    assert bench.wire.aborted
    bench.pool.close_idle(loop.now - 60.0)
    assert other.retired
    assert bench.pool.lanes() == [bench.lane]


def test_a_lane_that_can_not_be_opened_is_tried_again(bench: Bench) -> None:
    loop = bench.loop
    loop.reachable = False
    other = bench.lane_of_bob()
    loop.turns()
    loop.reachable = True
    other.wake()  # too soon
    loop.turns()
    assert len(loop.wires) == 1
    loop.now += 0.05
    other.wake()
    loop.turns()
    assert len(loop.wires) == 2


def test_the_end_of_a_lane_that_redis_has_not_answered_is_reported(bench: Bench) -> None:
    reported: list[bool] = []
    bench.pool.context.server.on_refused = lambda: reported.append(True)
    for answered in (True, False):
        assert reported == []
        bench.wire.protocol.connection_lost(None)
        bench.loop.now += 1.0
        bench.lane.wake()
        bench.loop.turns()
        if answered:
            bench.greet(WELCOME + OK + ONE)
    bench.wire.protocol.connection_lost(None)
    bench.loop.turns()
    assert reported == [True]


# -- calls -----------------------------------------------------------------------------------------


def test_many_calls_of_one_turn_do_not_wait_for_its_end(bench: Bench) -> None:
    keys = [b"%d" % number for number in range(2 * MAX_UNSENT + 3)]
    calls = [bench.hit(key=key) for key in keys]
    groups = [keys[:MAX_UNSENT], keys[MAX_UNSENT : 2 * MAX_UNSENT]]
    assert bench.wire.writes == [by_group(HIT, *group) for group in groups]
    bench.wire.writes.clear()
    assert bench.sent() == by_group(HIT, *keys[2 * MAX_UNSENT :])
    for number in (MAX_UNSENT, MAX_UNSENT, 3):
        bench.answer(listed(*[ADMITTED] * number))
    assert [call.reply for call in calls] == [ADMITTED] * len(keys)


def test_the_first_hit_by_eval_waits_for_those_by_evalsha(bench: Bench) -> None:
    """They may find their scripts missing, as a call of another lane has."""
    calls = [bench.hit()]
    assert bench.sent() == by_sha(HIT)
    bench.server.loaded = False
    calls.append(bench.hit(key=b"2"))
    assert bench.sent() == b""
    bench.answer(ADMITTED)
    assert bench.sent() == by_source(HIT, b"2")
    calls.append(bench.hit(key=b"3"))  # one by EVAL is not waited for
    assert bench.sent() == by_source(HIT, b"3")
    bench.loads()
    calls.append(bench.hit(key=b"4"))
    assert bench.sent() == by_sha(HIT, b"4")
    bench.answer(ADMITTED * 3)
    assert [call.reply for call in calls] == [ADMITTED] * 4


@pytest.mark.parametrize("garbage", [ADMITTED, b"+OK\r\n", b"what\r\n", b"$x\r\n"])
def test_a_reply_without_a_request_ends_the_lane(bench: Bench, garbage: bytes) -> None:
    bench.answer(garbage)
    assert bench.wire.aborted
    assert not bench.lane.ready


# -- groups ----------------------------------------------------------------------------------------

NO_KEY = b"-NOPERM this user has no permissions to access one of the keys\r\n"
STALE = b"-MASTERDOWN Link with MASTER is down\r\n"
WRONG_TYPE = b"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"


def test_hits_of_one_algorithm_without_options_are_a_group(bench: Bench) -> None:
    rules = [HIT, OTHER, IN_MS, ZHIT, ZHIT, PEEK, HIT, COST_0, HIT]
    calls = [bench.hit(of, b"%d" % at) for at, of in enumerate(rules)]
    assert HIT.script is not None and HIT.script.group is not None
    group = bulks(
        *(b"EVALSHA", HIT.script.group.sha, b"3", b"0", b"1", b"2"),
        *(b"1", b"60000000", b"1000000"),
        *(b"2", b"60000000", b"1000000"),
        *(b"1", b"60000000", b"1000"),
    )
    alone = [(PEEK, b"5"), (HIT, b"6"), (COST_0, b"7"), (HIT, b"8")]
    rest = b"".join(by_sha(of, key) for of, key in alone)
    assert bench.sent() == group + by_group(ZHIT, b"3", b"4") + rest
    replies = [five(0, 1, 0, -1, number) for number in range(9)]
    whole = listed(*replies[:3]) + listed(*replies[3:5]) + b"".join(replies[5:])
    bench.answer(*[whole[at : at + 1] for at in range(len(whole))])
    assert [call.reply for call in calls] == replies


def test_an_error_in_a_group_is_that_of_its_hit(bench: Bench) -> None:
    calls = [bench.hit(key=b"%d" % at) for at in range(3)]
    bench.sent()
    bench.answer(listed(ADMITTED, b"-@user_script: 1: " + WRONG_TYPE[1:], REFUSED))
    assert [call.reply for call in calls] == [ADMITTED, WRONG_TYPE, REFUSED]


@pytest.mark.parametrize(("reply", "groups"), [(ONE, True), (NO_KEY, False), (STALE, True)])
def test_the_end_of_the_handshake_decides_on_groups(
    bench: Bench, reply: bytes, groups: bool
) -> None:
    """Redis looks at the rights before it sends STALE: such a replica may become the master."""
    bench.wire.protocol.connection_lost(None)
    bench.loop.now += 1.0
    bench.lane.wake()
    bench.loop.turns()
    bench.greet(WELCOME + OK + reply)
    bench.sent()
    bench.hit(key=b"3")
    bench.hit(key=b"4")
    alone = by_sha(HIT, b"3") + by_sha(HIT, b"4")
    assert bench.sent() == (by_group(HIT, b"3", b"4") if groups else alone)


def test_the_keys_of_the_handshake_refute_patterns_that_leave_out_some() -> None:
    keys = ANY_KEYS.split(b"\r\n")[8::2]
    assert {len(key) for key in keys} == {0, 1, len("rlproxy:any-key")}
    assert len({key for key in keys if len(key) == 1}) == 256  # one for each `~[^a]*`
    assert len(set(map(key_slot, keys))) > MAX_GROUP  # for a server that takes only keys of one


def test_the_hits_of_a_group_that_redis_refuses_are_sent_alone(bench: Bench) -> None:
    calls = [bench.hit(key=b"%d" % at) for at in range(3)]
    bench.sent()
    behind = bench.hit(key=b"0")  # not to be sent before these
    bench.answer(NO_KEY)
    assert bench.sent() == b"".join(by_sha(HIT, key) for key in (b"0", b"1", b"2", b"0"))
    bench.answer(ADMITTED, NO_KEY, REFUSED, REFUSED)
    assert [call.reply for call in (*calls, behind)] == [ADMITTED, NO_KEY, REFUSED, REFUSED]
    bench.hit(key=b"3")
    bench.hit(key=b"4")
    assert bench.sent() == by_sha(HIT, b"3") + by_sha(HIT, b"4")


@pytest.mark.parametrize("error", [READONLY, BUSY])
def test_an_error_that_all_hits_get_is_the_reply_to_each_of_a_group(
    bench: Bench, error: bytes
) -> None:
    calls = [bench.hit(key=b"%d" % at) for at in range(3)]
    bench.sent()
    bench.answer(error)
    assert [call.reply for call in calls] == [error] * 3
    bench.hit(key=b"3")
    bench.hit(key=b"4")
    assert bench.sent() == by_group(HIT, b"3", b"4")


@pytest.mark.parametrize(
    "reply", [b"+OK\r\n", b"*-1\r\n", listed(ADMITTED), listed(*[REFUSED] * 3)]
)
def test_what_is_no_reply_to_a_group_ends_the_lane(bench: Bench, reply: bytes) -> None:
    before = bench.hit(PEEK)
    calls = [bench.hit(key=b"%d" % at) for at in range(2)]
    bench.sent()
    bench.answer(ADMITTED + reply)
    assert bench.wire.aborted
    bench.loop.turns()
    assert [call.reply for call in (before, *calls)] == [ADMITTED, r.LOST, r.LOST]


# -- opening an entry ------------------------------------------------------------------------------


def test_only_a_key_that_was_refused_before_is_tracked(bench: Bench) -> None:
    assert bench.ask(ADMITTED) == ADMITTED
    assert bench.ask(REFUSED) == REFUSED
    assert bench.ask(ADMITTED, key=b"another") == ADMITTED
    call = bench.hit()
    behind = bench.hit(key=b"another")
    again = bench.hit()
    # of the three only the one that opens the entry is preceded by it
    assert bench.sent() == opener(HIT) + by_group(HIT, b"another", b"k")
    bench.answer(OK + STAYS + listed(ADMITTED, REFUSED))
    assert call.reply == five(1, 1, 0, 42, 60)
    assert behind.reply == ADMITTED
    assert again.reply == REFUSED
    assert bench.denial_cache.harvest() == []
    assert bench.known() and bench.known()
    assert bench.denial_cache.harvest() == [(HIT, r.bulk(b"k"), 2)]


# -- what drops an entry ---------------------------------------------------------------------------


@pytest.mark.parametrize("place", range(3))
def test_a_push_while_it_opens(bench: Bench, place: int) -> None:
    bench.ask(REFUSED)
    call = bench.hit()
    bench.sent()
    pieces = [OK, STAYS]
    pieces.insert(place, touched(b"k"))
    bench.answer(*pieces)
    assert call.reply == five(1, 1, 0, 42, 60)
    assert bench.ask(REFUSED) == REFUSED


@pytest.mark.parametrize(
    "push",
    [
        ALL_TOUCHED,
        b">2\r\n$10\r\ninvalidate\r\n*2\r\n" + r.bulk(b"x") + r.bulk(b"k"),
        b">2\r\n$10\r\ninvalidate\r\n$-1\r\n",
    ],
)
def test_a_push_for_all(bench: Bench, push: bytes) -> None:
    bench.open()
    bench.open(key=b"kk")
    bench.ask(REFUSED, key=b"marked")
    bench.answer(push)
    for key in (b"k", b"kk", b"marked"):
        assert bench.ask(REFUSED, key=key) == REFUSED


@pytest.mark.parametrize("of", [OTHER, IN_MS, REFUND, HIT.attempt()])
def test_any_other_call_on_its_key(bench: Bench, of: Rule) -> None:
    bench.open()
    bench.open(key=b"kk")
    call = bench.hit(of)
    assert call.reply == b""
    assert bench.sent() == by_sha(of)
    # at once, not with its reply: later calls are behind it
    assert bench.hit().reply == b""
    assert bench.sent() == by_sha(HIT)
    assert bench.hit(key=b"kk").reply


@pytest.mark.parametrize("reply", [ADMITTED, b"-OOM no\r\n", b"-OOM 1\r\n", b"*-1\r\n"])
def test_a_reply_of_the_same_hit_that_is_no_refusal(bench: Bench, reply: bytes) -> None:
    """One that was on its way beside the opener."""
    bench.ask(REFUSED)
    bench.hit()
    beside = bench.hit()
    assert bench.sent() == opener(HIT) + by_sha(HIT)
    bench.answer(OK + STAYS)
    assert bench.hit().reply
    bench.answer(reply)
    assert beside.reply == reply
    assert bench.ask(REFUSED) == REFUSED


# -- scripts that Redis does not know, and rights --------------------------------------------------


def test_nothing_is_written_until_all_evalshas_are_answered(bench: Bench) -> None:
    calls = [bench.hit(of, b"%d" % at) for at, of in enumerate((HIT, ZHIT, HIT))]
    bench.sent()
    calls.append(bench.hit(key=b"3"))  # not even written
    bench.answer(ADMITTED + NOSCRIPT)
    assert bench.sent() == b""
    calls.append(bench.hit(ZHIT, b"4"))
    assert bench.sent() == b""
    assert not bench.pool.drained()
    bench.answer(NOSCRIPT)
    again = [(ZHIT, b"1"), (HIT, b"2"), (HIT, b"3"), (ZHIT, b"4")]
    assert bench.sent() == b"".join(by_source(of, key) for of, key in again)
    replies = [five(0, 1, 0, -1, number) for number in (1, 2, 3, 4)]
    bench.answer(*replies)
    assert [call.reply for call in calls] == [ADMITTED, *replies]


@pytest.mark.skipif(not context.__file__.endswith(".py"), reason="Caller is compiled")
def test_calls_that_were_not_run_are_returned_by_a_lost_lane(bench: Bench) -> None:
    caller = Returned()
    context = [Call(caller, of, r.bulk(b"k")) for of in (HIT, ZHIT)]
    for call in context:
        bench.lane.submit(call)
    bench.sent()
    bench.answer(NOSCRIPT)
    bench.wire.abort()
    bench.loop.turns()
    assert caller.seen == [("lost", context[1]), ("returned", context[0])]
    assert bench.lane.room == bench.pool.context.max_lane_hits
    assert bench.pool.lanes()[0].unanswered() == 0  # its next connection does not send them, too


class Pipelined(Returned):
    """Makes further calls once a lane has answered one."""

    def __init__(self, lane: Lane) -> None:
        super().__init__()
        self.lane = lane
        self.later = [Call(self, HIT, r.bulk(b"k")) for _ in range(MAX_UNSENT)]

    def lane_answered(self, call: Call, reply: bytes) -> None:
        self.seen.append(("lost" if reply == r.LOST else "answered", call))

    def resume(self) -> None:
        calls, self.later = self.later, []
        for call in calls:
            self.lane.submit(call)


@pytest.mark.skipif(not context.__file__.endswith(".py"), reason="Caller is compiled")
def test_calls_that_follow_the_last_replies_of_a_lost_lane_are_returned(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis answered one call and closed the connection, so that the write of another failed."""
    caller = Pipelined(bench.lane)
    later = caller.later
    answered, failed = (Call(caller, HIT, r.bulk(b"k")) for _ in range(2))
    for call in (answered, failed):
        bench.lane.submit(call)
        bench.sent()
    monkeypatch.setattr(lane, "last_words", lambda _transport: ADMITTED)
    bench.wire.protocol.connection_lost(BrokenPipeError())
    assert bench.sent() == b""
    assert caller.seen == [
        ("answered", answered),
        ("lost", failed),
        *(("returned", call) for call in later),
    ]


def test_noscript_to_a_call_beside_an_earlier_opener(bench: Bench) -> None:
    """It opens nothing itself, and leaves alone the later call that does."""
    bench.ask(REFUSED)
    bench.hit()
    beside = bench.hit()
    assert bench.sent() == opener(HIT) + by_sha(HIT)
    bench.answer(OK + STAYS)
    bench.loop.now += MAX_LIFE_S
    bench.hit()
    assert bench.sent() == opener(HIT)
    bench.answer(NOSCRIPT)
    bench.answer(OK + STAYS)
    assert bench.sent() == by_source(HIT)
    assert bench.hit().reply
    bench.answer(REFUSED)
    assert beside.reply == REFUSED


def test_noscript_to_an_opener(bench: Bench) -> None:
    """It is sent again as it is, and opens nothing: its reply has the client's unit already."""
    bench.ask(REFUSED)
    call = bench.hit()
    assert bench.sent() == opener(HIT)
    bench.answer(OK + NOSCRIPT)
    assert call.reply == b""
    assert bench.sent() == by_source(HIT)
    bench.loads()
    bench.answer(REFUSED)
    assert call.reply == REFUSED
    assert bench.hit().reply == b""
    assert bench.sent() == opener(HIT)
    bench.answer(OK + STAYS)
    assert bench.known()


@pytest.mark.parametrize("of", [OTHER, REFUND, PEEK, COST_0])
def test_noscript_to_another_call_before_an_opener(bench: Bench, of: Rule) -> None:
    """What it does to the key will be done after the opener has looked at it."""
    bench.hit()
    bench.sent()
    late = bench.hit(of)
    bench.sent()
    bench.answer(REFUSED)
    bench.hit()
    assert bench.sent() == opener(HIT)
    bench.answer(NOSCRIPT)
    bench.answer(OK + STAYS)
    assert bench.sent() == by_source(of)
    assert bool(bench.hit().reply) == (of in (PEEK, COST_0))
    bench.answer(ADMITTED)
    assert late.reply == ADMITTED


def test_round_trips_are_timed_finer_than_the_loop_counts(loop: Loop) -> None:
    """uvloop's time is of milliseconds."""
    now = 5.0
    bench = Bench(loop, 0, clock=lambda: now)
    for seconds in (0.0003, 0.00035, 0.0009):
        bench.hit()
        assert bench.sent()
        now += seconds
        bench.answer(ADMITTED)
    assert bench.counters.round_trips.sum_of == pytest.approx(0.00155)
