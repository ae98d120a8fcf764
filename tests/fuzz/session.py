"""Fuzz target of the session: a client, a session, lanes and a small Redis behind them, stepped as
the input decides. In every case the client must get the replies of a Redis that implements RL.*,
and the same commands must have run in the same order and context.
"""

from __future__ import annotations

from rlproxy.ratelimit import algorithms
from rlproxy.ratelimit.grammar import Rule
from rlproxy.ratelimit.hit_replies import five
from rlproxy.ratelimit.outcomes import shadow
from rlproxy.ratelimit.scripts import LOADED
from rlproxy.ratelimit.wait_queue import WaitQueues
from rlproxy.resp import commands, encoding
from rlproxy.resp.encoding import bulks
from rlproxy.session import private_stream, waits
from rlproxy.session.call import Call, Lane, Part
from rlproxy.session.context import ServerFacts
from rlproxy.session.held_hit import HeldHit
from rlproxy.session.identity import Identity
from rlproxy.session.missing_script import HitWithoutScript
from rlproxy.session.router import MAX_EXPANDED
from rlproxy.session.session import MAX_UNREAD, Session

from tests.clock import Clock
from tests.contexts import hit_timeouts, worker_context
from tests.fuzz import reference
from tests.fuzz.choices import Choices
from tests.fuzz.model import GRAMMAR, PUSH, Item, Model, is_subsequence, refuses
from tests.part_calls import PartCaller, calls_of

LONG_S = 30.0
SLACK = 65536 + 16384  # bytes of one call or script beyond a bound that is checked between calls
MAX_STEPS = 400
MAX_CLIENT_BYTES = 1 << 20

# Commands a client may write; {n} is a unique number.
LINES: tuple[tuple[bytes, ...], ...] = (
    (b"RL.HIT", b"{n}", b"10", b"60"),
    (b"RL.HIT", b"{n}", b"7", b"60000", b"MS"),
    (b"rl.hit", b"{n}", b"5", b"60", b"ALGO", b"GCRA"),
    (b"RL.HIT", b"{n}", b"10", b"60", b"WAIT", b"5"),
    (b"RL.HIT", b"{n}", b"10", b"60", b"WAIT", b"1", b"PENALTY", b"3"),
    (b"RL.HIT", b"{n}", b"3", b"60", b"ALGO", b"LEAKY", b"WAIT", b"2"),
    (b"RL.HIT", b"full", b"10", b"60"),
    (b"RL.HIT", b"{n}"),
    (b"RL.HIT",),
    (b"RL.PEEK", b"{n}", b"10", b"60"),
    (b"RL.REFUND", b"{n}", b"10", b"60", b"2"),
    (b"RL.RESET", b"{n}", b"x"),
    (b"RL.BLOCK", b"{n}", b"0.1"),
    (b"RL.HELP",),
    (b"RL.HIT", b"{n}", b"POLICY", b"login"),
    (b"RL.HIT", b"{n}", b"POLICY", b"queue"),
    (b"rl.hit", b"{n}", b"policy", b"shape", b"COST", b"2"),
    (b"RL.HIT", b"{n}", b"POLICY", b"tries"),
    (b"RL.HIT", b"{n}", b"POLICY", b"trial", b"WAIT", b"5"),
    (b"RL.HIT", b"{n}", b"POLICY", b"trial:log"),
    (b"RL.HIT", b"{n}", b"POLICY", b"trial:log", b"COST", b"0"),
    (b"RL.HIT", b"{n}", b"POLICY", b"absent"),
    (b"RL.PEEK", b"{n}", b"POLICY", b"trial"),
    (b"RL.REFUND", b"{n}", b"POLICY", b"tries", b"2"),
    (b"RL.BLOCK", b"{n}", b"9", b"POLICY", b"trial:log"),
    (b"RL.POLICIES",),
    (b"RL.POLICIES", b"RELOAD"),
    (b"RL.STATS",),
    (b"RL.TOP", b"5", b"REFUSED"),
    (b"CL.THROTTLE", b"{n}", b"4", b"5", b"60"),
    (b"PING",),
    (b"ECHO", b"{n}"),
    (b"GET", b"{n}"),
    (b"get", b"{n}"),
    (b"MGET", b"{n}", b"a"),
    (b"HGETALL", b"{n}"),
    (b"SET", b"{n}", b"v"),
    (b"SET", b"{n}", b"v", b"GET"),
    (b"INCR", b"{n}"),
    (b"LPUSH", b"{n}", b"x"),
    (b"BLPOP", b"{n}", b"0"),
    (b"EVAL", b"return 1", b"0"),
    (b"MULTI",),
    (b"MULTI",),
    (b"EXEC",),
    (b"EXEC",),
    (b"DISCARD",),
    (b"DISCARD", b"x"),
    (b"WATCH", b"k"),
    (b"UNWATCH",),
    (b"SELECT", b"1"),
    (b"SELECT", b"0"),
    (b"SELECT", b"99"),
    (b"AUTH", b"bob", b"pw"),
    (b"AUTH", b"pw"),
    (b"AUTH", b"bob", b"no"),
    (b"HELLO", b"3"),
    (b"HELLO", b"2"),
    (b"HELLO", b"4"),
    (b"HELLO",),
    (b"HELLO", b"3", b"AUTH", b"bob", b"pw"),
    (b"HELLO", b"3", b"AUTH", b"bob", b"pw", b"SETNAME", b"a b"),
    (b"RESET",),
    (b"QUIT",),
    (b"SUBSCRIBE", b"a", b"b"),
    (b"PSUBSCRIBE", b"p"),
    (b"UNSUBSCRIBE",),
    (b"UNSUBSCRIBE", b"a"),
    (b"CLIENT", b"REPLY", b"OFF"),
    (b"CLIENT", b"REPLY", b"SKIP"),
    (b"CLIENT", b"REPLY", b"ON"),
    (b"CLIENT", b"ID"),
    (b"CLIENT", b"SETNAME", b"x"),
    (b"CLIENT", b"TRACKING", b"ON"),
    (b"CLIENT", b"MAINT_NOTIFICATIONS", b"ON"),
    (b"CLIENT", b"MAINT_NOTIFICATIONS", b"OFF"),
    (b"MONITOR",),
    (b"REPLCONF", b"ACK", b"1"),
    (b"DEBUG", b"x"),
    (b"SCRIPT", b"LOAD", b"x"),
    (b"ASKING",),
    (b"READONLY",),
    (b"WAIT", b"1", b"0"),
    (b"FOO", b"{n}"),
    (b"EVAL", b"x", b"1", b"{n}", b"9"),
    (b"DEL", b"{n}"),
    (b"PUBLISH", b"a", b"{n}"),
    (b"POST", b"/"),
)
# Bytes that are no command of the usual form.
RAW: tuple[bytes, ...] = (
    *(b"\r\n", b"\n", b"*0\r\n", b"*-1\r\n", b"PING\r\n", b"  ping \n", b"rl.hit telnet 10 60\r\n"),
    *(
        b'echo "a b"\r\n',
        b"rl.hit 'x y' 3 60\r\n",
        b"*1\rX$4\rXPINGXX",
        b"*x\r\n",
        b"*1\r\nfoo\r\n",
    ),
    *(
        b"*1\r\n$-1\r\n",
        b'"a',
        b'get "a"b\r\n',
        b"*2\r\n$4\r\nECHO\r\n",
        b"$3\r\n",
        b"*3000000000\r\n",
    ),
    *(b"G\0ET a\r\n", b"*4\rX$6\rXRL.HIT??$1\rXk??$2\rX10??$2\rX60??", b"rl.help\r\n"),
)


class FakeLane(Lane):
    """Stores the calls it is given. The outcome of calls that are `written` is unknown."""

    def __init__(self, walk: Walk, identity: Identity, protocol: int, carries: int) -> None:
        super().__init__()
        self.ready = True
        self.walk = walk
        self.identity = identity
        self.protocol = protocol
        self.carries = carries
        self.unsent: list[Call] = []
        self.written: list[tuple[Call, bytes]] = []  # the reply, empty until it ran

    def submit(self, call: Call) -> bytes:
        assert self.ready, "a call for a lane that is not ready"
        self.walk.alone()
        known = self.walk.known and call.rule.denies
        key = call.key.partition(b"\r\n")[2][:-2]
        again = isinstance(call.caller, HitWithoutScript)  # no refusal is remembered for such a hit
        if known and refuses(key) and not again:
            return _refusal(call, key)
        self.unsent.append(call)
        return b""

    def take(self, part: Part) -> None:
        """See Lane.take()."""
        assert self.ready, "a part for a lane that is not ready"
        self.walk.alone()
        self.unsent += calls_of(part)

    def by_sha(self, rule: Rule) -> bool:
        """See Lane.by_sha()."""
        return self.walk.by_sha

    def wake(self) -> None:
        """See Lane.wake()."""


def _for_nobody(call: Call) -> bool:
    """Whether the call is a peek for a waiting hit: its answer may arrive after the client has
    left.
    """
    if not isinstance(call.caller, HeldHit):
        return False
    limiter = call.rule.limiter
    return limiter is not None and limiter.mode == algorithms.PEEK


def _says_nothing(data: bytes) -> bool:
    """Whether the bytes are blank lines and empty commands, which get no reply."""
    pos = 0
    while pos < len(data):
        try:
            one = reference.request(data, pos)
        except (reference.IncompleteError, reference.ProtocolError):
            return False
        if one.words:
            return False
        pos = one.end
    return True


def _refusal(call: Call, key: bytes) -> bytes:
    argv = reference.request(b"*%d\r\n" % call.rule.tail.count(b"$") + call.rule.tail, 0).words
    return five(1 - shadow(call.rule.row), int(argv[0]), 0, -1, 1)


class Walk:
    """One session and its environment."""

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        config = choices.below(256)
        self.share = bool(config & 1)
        self.locked = config & 12 == 12
        throttle = config & 48 == 48
        self.clock = Clock()
        self.lanes: list[FakeLane] = []
        self.lanes_allowed = True
        self.known = False  # lanes cache refusals
        self.full = False  # the upstream accepts no more for now
        self.waiting = WaitQueues(self.clock.time, self.clock.call_at)
        settings = worker_context(
            grammar=GRAMMAR,
            server=ServerFacts("redis:1"),
            lane_of=self.lane_of,
            waiting=self.waiting,
            timeouts=hit_timeouts(clock=self.clock.time),
            shares=self.share,
        )
        settings.server.found.has_throttle = throttle
        self.by_sha = bool(config & 128)
        self.session = Session(settings)
        self.session.flush = self.move
        self.redis = Model(False, self.locked, throttle)
        self.ideal = Model(True, self.locked, throttle)
        self.sent = b""  # all bytes the session received
        self.unsent = b""
        self.number = 0
        self.down = b""
        self.pushes = 0
        self.lost_calls = 0
        self.cut = False  # a fault may have ended the session, or be visible in replies
        self.eof = False
        self.gone = False
        self.told = False  # the session knows that the server has closed
        self._moving = False

    # -- the session's collaborators ---------------------------------------------------------------

    def lane_of(self, identity: Identity, carries: int, protocol: int) -> Lane | None:
        if not self.lanes_allowed or protocol not in (2, 3):
            return None
        for lane in self.lanes:
            same = (lane.identity.key(), lane.protocol, lane.carries)
            if same == (identity.key(), protocol, carries) and not lane.retired:
                return lane
        lane = FakeLane(self, identity, protocol, carries)
        self.lanes.append(lane)
        return lane

    def on_lanes(self) -> int:
        """Calls whose replies a lane still has to return."""
        calls = [call for lane in self.lanes for call in lane.unsent]
        calls += [call for lane in self.lanes for call, _ in lane.written]
        return sum(not _for_nobody(call) for call in calls)

    def alone(self) -> None:
        """Fail if the private connection owes replies while a lane is given a call."""
        if self.session.private.slots.awaits_lane():
            return
        data = b"".join(self.session.private.to_redis)
        assert _says_nothing(data), "bytes for Redis beside a call for a lane"
        owed = self.redis.out.replace(PUSH, b"")
        assert not owed or PUSH.endswith(owed), ("owed on the private connection", owed)

    # -- moving bytes, as the downstream connection does -------------------------------------------

    def move(self) -> None:
        session = self.session
        if self._moving:
            return
        self._moving = True
        while True:
            data = b"".join(session.private.to_redis)
            alone = not data or self.on_lanes() == 0 or _says_nothing(data)
            alone = alone or session.private.slots.awaits_lane()
            assert alone, "bytes for Redis while a lane owes replies"
            session.private.to_redis.clear()
            if data and session.private.status == private_stream.PRIVATE_OPEN:
                self.redis.feed(data)
            turns = session.wait == waits.TICK and not self.full
            if turns:
                session.context.budget.work = 0
                session.take_turn()
            elif not session.private.to_redis:
                break
        if session.to_client:
            self.down += b"".join(session.to_client)
            session.to_client.clear()
        assert session.requests.unread() <= MAX_UNREAD + MAX_CLIENT_BYTES
        self._moving = False

    def give(self, size: int) -> None:
        """Pass on the client's next `size` bytes."""
        session = self.session
        if self.eof or self.gone or session.requests.unread() > MAX_UNREAD or self.full:
            return
        data, self.unsent = self.unsent[:size], self.unsent[size:]
        if not data or len(self.sent) > MAX_CLIENT_BYTES:
            return
        held = session.requests.unread()
        if not session.closed:
            self.sent += data
        session.receive(data)
        grown = sum(map(len, session.private.to_redis))
        assert grown <= held + len(data) + MAX_EXPANDED + SLACK, grown
        self.move()

    def answer(self, size: int) -> None:
        """Pass on the next `size` bytes of the private connection."""
        session, redis = self.session, self.redis
        if session.private.status != private_stream.PRIVATE_OPEN or session.closed:
            return
        if session.slow and session.wait != waits.HELD:
            return
        data, redis.out = redis.out[:size], redis.out[size:]
        if data:
            session.upstream_received(data)
            self.move()
        # The owner does not read the end of file while a hit is sent again.
        if redis.closed and not redis.out and not session.private.slots.awaits_lane():
            if redis.silent:
                self.cut = True
            self.told = True
            session.upstream_lost()
            self.move()

    def run(self, lane: FakeLane, calls: int) -> None:
        """Execute the data written on the lane, in the context of the client's own commands."""
        for index, (call, reply) in enumerate(lane.written[:calls]):
            if not reply:
                lane.written[index] = (call, self._executed(lane, call))

    def _executed(self, lane: FakeLane, call: Call) -> bytes:
        redis = self.redis
        if _for_nobody(call):
            return five(0, 1, 1, -1, 1)
        if isinstance(call.caller, HitWithoutScript):  # a hit that is sent again
            context = redis.left.pop(0)
            assert lane.identity.key() == context, (lane.identity.key(), context)
            words = reference.request(call.rule.words(LOADED) + call.key + call.rule.tail, 0).words
            return redis.hit(words[3], words[4:], context, False)
        assert redis.quiet, "a call on a lane, and its client's connection is not plain"
        assert lane.identity.key() == redis.context, (lane.identity.key(), redis.context)
        assert not (redis.locked and redis.context[0] is None)
        if lane.carries != commands.HIT:
            assert lane.protocol == redis.protocol
            words = reference.request(call.key, 0).words
            return redis.ordinary(words[0].upper(), words[1:], redis.context, redis.protocol)
        written = call.rule.words(LOADED) + call.key + call.rule.tail
        words = reference.request(written, 0).words
        if words[0] == b"DEL":
            return redis.ordinary(b"DEL", words[1:], redis.context, redis.protocol)
        argv = words[4:]
        return redis.hit(words[3], argv, redis.context, len(argv) > 2 and argv[2] == b"1")

    def lane_answers(self, lane: FakeLane, calls: int) -> None:
        self.run(lane, calls)
        done = lane.written[:calls]
        del lane.written[:calls]
        for call, reply in done:
            call.caller.fenced = False
            call.caller.lane_answered(call, reply)
        for caller in {call.caller: None for call, _ in done}:
            caller.resume()
        if done:
            self.move()

    def lose(self, lane: FakeLane) -> None:
        lane.ready = False
        written, unsent = lane.written[:], lane.unsent[:]
        lane.written.clear()
        lane.unsent.clear()
        for call, _ in written:
            self.cut = True
            self.lost_calls += 1
            call.caller.lane_answered(call, encoding.LOST)
        for call in unsent:
            call.caller.lane_returned(call)
        for caller in {call.caller: None for call in [*(call for call, _ in written), *unsent]}:
            caller.resume()
        self.move()

    # -- client ------------------------------------------------------------------------------------

    def write(self, kind: int) -> None:
        if kind < len(LINES):
            self.number += 1
            name = b"%d" % self.number
            words = [name if word == b"{n}" else word for word in LINES[kind]]
            self.unsent += bulks(*words)
        else:
            self.unsent += RAW[kind % len(RAW)]

    # -- steps -------------------------------------------------------------------------------------

    def step(self) -> None:
        choices, session = self.choices, self.session
        kind = choices.below(64)
        if kind < 16:
            for _ in range(1 + kind % 4):
                self.write(choices.below(len(LINES) + len(RAW)))
            if kind >= 8:
                self.give(len(self.unsent))
        elif kind < 18:  # many at once
            many = (3, 40, 70, 200)[choices.below(4)]
            line = choices.below(16)
            for _ in range(many if line < 16 else 3):
                self.write(line)
        elif kind < 22:
            self.give(1 + choices.below(48))
        elif kind < 26:
            self.give(len(self.unsent))
        elif kind < 30:
            self.answer(1 + choices.below(40))
        elif kind < 36:
            self.answer(len(self.redis.out))
        elif kind < 52 and self.lanes:
            self._lane_step(kind, self.lanes[choices.below(len(self.lanes))])
        elif kind == 52:
            self.unsent += choices.take(choices.below(24))
        elif kind == 53 and self.unsent:  # a malformed byte
            at = choices.below(65536) % len(self.unsent)
            wrong = bytes([choices.below(256)])
            self.unsent = self.unsent[:at] + wrong + self.unsent[at + 1 :]
        elif kind == 54:
            self.clock.advance((0.01, 0.06, 1.0, 6.0, LONG_S)[choices.below(5)])
            self.move()
        elif kind == 55:
            if choices.below(2):
                session.stops_reading()
            else:
                session.reads_on()
            self.move()
        elif kind == 56:
            self.full = bool(choices.below(2))
            self.move()
        elif kind == 57:
            self.known = bool(choices.below(2))
            self.redis.missing = choices.below(4)  # calls by EVALSHA, from now on
        elif kind == 58:
            self.lanes_allowed = bool(choices.below(2))
        elif kind == 59 and self.redis.protocol == 3 and not self.redis.closed:
            self.redis.out += PUSH
            self.pushes += 1
        elif kind == 60:
            self.unsent += bulks(b"ECHO", b"%d" % choices.below(256) * (1 << choices.below(16)))
        elif kind >= 61:
            self._fault(choices.below(32))
        if (
            session.private.status == private_stream.PRIVATE_OPENING
            and kind % 4 == 0
            and not session.closed
        ):
            self.open()

    def _lane_step(self, kind: int, lane: FakeLane) -> None:
        choices = self.choices
        if kind < 40:
            calls = 1 + choices.below(70)
            if not lane.ready:
                return
            lane.written += [(call, b"") for call in lane.unsent[:calls]]
            del lane.unsent[:calls]
        elif kind < 42:
            self.run(lane, 1 + choices.below(8))
        elif kind < 47:
            self.lane_answers(lane, 1 + choices.below(70))
        elif kind == 47 and lane.carries == commands.SHARED_READ and lane.written:
            self.run(lane, 1)  # its large reply is discarded, and the command is sent again
            call, _ = lane.written.pop(0)
            assert isinstance(call.caller, PartCaller)
            call.caller.lane_declined(call)
            call.caller.resume()
            self.move()
        elif kind == 48 and lane.carries == commands.HIT:
            # -NOSCRIPT: calls that have not run are sent again.
            again = [call for call, reply in lane.written if not reply]
            if again:
                lane.written = [pair for pair in lane.written if pair[1]]
                lane.unsent = again + lane.unsent
        elif kind == 49:
            self.lose(lane)
        elif kind == 50:
            lane.ready = True
        elif kind == 51 and not lane.unsent and not lane.written:
            lane.retired = True
            lane.ready = False

    def _fault(self, kind: int) -> None:
        session = self.session
        if kind == 0 and session.private.status == private_stream.PRIVATE_OPEN:
            self.cut = True
            session.upstream_lost()
        elif kind == 1 and not self.eof:
            self.eof = True
            session.receive_eof()
        elif kind == 2:
            self.gone = self.cut = True
            session.abandon()
        elif kind == 3 and session.private.status == private_stream.PRIVATE_OPENING:
            self._fails()
        self.move()

    def _fails(self) -> None:
        """The private connection cannot be opened: every whole command gets an error, and there are
        no further ones.
        """
        session = self.session
        pos = 0
        count = 0
        while True:
            try:
                one = reference.request(self.sent, pos)
            except (reference.IncompleteError, reference.ProtocolError):
                break
            count += bool(one.words)
            pos = one.end
        if pos != len(self.sent) or self.locked:
            return
        before = self.down
        session.upstream_failed("refused")
        session.reads_on()  # a client that leaves its replies unread gets the errors only then
        self.move()
        told = self.down[len(before) :]
        assert told.count(b"\r\n") <= count
        assert all(line.startswith((b"-", b"+OK")) for line in told.splitlines())
        self.sent = b""
        self.down = before
        if session.closed:  # QUIT
            self.cut = True
        else:
            assert told.count(b"\r\n") == count

    def open(self) -> None:
        self.session.upstream_opened()
        self.move()

    # -- the end -----------------------------------------------------------------------------------

    def finish(self) -> None:
        session = self.session
        session.reads_on()
        self.full = False
        for _ in range(20_000):
            before = (len(self.down), len(self.unsent), len(self.redis.log), session.wait)
            if session.private.status == private_stream.PRIVATE_OPENING and not session.closed:
                self.open()
            session.take_turn()
            self.move()
            self.give(len(self.unsent))
            self.answer(len(self.redis.out))
            for lane in self.lanes:
                lane.ready = not lane.retired
                lane.written += [(call, b"") for call in lane.unsent]
                lane.unsent = []
                self.lane_answers(lane, 1000)
            if session.closed:
                self.redis.out = b""
            busy = self.on_lanes() or self.redis.out or self.clock.live()
            if not busy and before == (
                *(len(self.down), len(self.unsent), len(self.redis.log), session.wait),
            ):
                break
            self.clock.advance(0.05)
            self.move()
        else:
            raise AssertionError(f"no end: {session.wait=} {self.on_lanes()=}")
        if session.wants_eof and not session.closed:
            session.upstream_lost()
            self.move()
            assert session.closed

    def check(self) -> None:
        session, ideal = self.session, self.ideal
        ideal.feed(self.sent)
        assert self.on_lanes() == 0
        assert not self.clock.live()
        assert self.waiting.count == 0
        if ideal.vague:
            return
        if session.closed and not self.told and self.eof:
            self.cut = True
        down = self.down.replace(PUSH, b"")
        log, due = _once(self.redis.log), _once(ideal.log)
        if self.redis.missed:  # hits were sent again, perhaps behind other commands
            log, due = sorted(self.redis.log, key=repr), sorted(ideal.log, key=repr)
            if self.share:  # reads whose reply was too large were sent again, too
                log, due = sorted(set(log), key=repr), sorted(set(due), key=repr)
            self.lost_calls += down.count(encoding.LOST)  # where no lane was ready
            self.cut = self.cut or encoding.LOST in down
        matched, rest = _matched(down, ideal.items, self.cut)
        left = ideal.items[matched:]
        if self.cut or ideal.silent:
            if rest:
                token = PUSH.startswith(rest)  # a partial push, and then the end
                assert left or token, ("more than was asked for", rest)
                assert token or any(each.startswith(rest) for each in left[0][0]), (rest, left[0])
            assert not left or session.closed, ("not answered", left[:3])
            assert down.count(encoding.LOST) <= self.lost_calls or session.closed
            assert is_subsequence(log, due), "ran out of order"
        else:
            assert not rest, ("not as it should be", rest[:200], left[:2])
            assert not left, ("not answered", left[:3])
            assert log == due, (self.redis.log, ideal.log)
            assert session.closed == (ideal.closed or self.eof), session.closed
            if not session.closed and ideal.idle:
                assert session.outstanding() == session.private.slots.uncounted()


def _matched(down: bytes, items: list[Item], lossy: bool) -> tuple[int, bytes]:
    """The number of replies that arrived in order, and the bytes of `down` that match none."""
    pos = 0
    for number, (may_be, hit) in enumerate(items):
        found = next((each for each in may_be if down.startswith(each, pos)), None)
        if found is None and lossy and hit and down.startswith(encoding.LOST, pos):
            found = encoding.LOST
        if found is None:
            return number, down[pos:]
        pos += len(found)
    return len(items), down[pos:]


def _once(log: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    """The log without commands that were sent again at once (reads whose reply was too large for a
    lane).
    """
    return [entry for at, entry in enumerate(log) if at == 0 or entry != log[at - 1]]


def session(data: bytes) -> None:
    """See the module docstring."""
    choices = Choices(data)
    walk = Walk(choices)
    for _ in range(MAX_STEPS):
        if not choices.more():
            break
        walk.step()
    if b"COMMAND" in (walk.sent + walk.unsent).upper():
        return  # its replies are edited on purpose
    walk.finish()
    walk.check()
