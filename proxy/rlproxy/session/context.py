"""The context that all sessions of a worker share, the calls they make, and the interface of a
lane. No I/O.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import mypyc_attr

from rlproxy.fairness.concurrency_limit import ConcurrencyLimit
from rlproxy.observability.counters import Counters
from rlproxy.ratelimit.denial_cache import Denial
from rlproxy.ratelimit.grammar import Grammar, Rule, wrong_arity, wrong_told
from rlproxy.ratelimit.outcomes import FAILED, FAILED_CLOSED, FAILED_OPEN, RESET, other
from rlproxy.ratelimit.wait_queue import Waiter, WaitQueues
from rlproxy.resp import commands as c
from rlproxy.resp import encoding as r
from rlproxy.resp.framing import RequestFramer
from rlproxy.session.circuit_breaker import CircuitBreaker
from rlproxy.session.connection_state import Identity
from rlproxy.session.timeouts import HitTimeouts

MAX_CLIENT_HITS: Final = 64
MAX_LANE_HITS: Final = 65536
# What is done in one turn of the loop, in requests that are passed on, for all who wait in line,
MAX_TURN_WORK: Final = 4096
LITTLE_TURN_WORK: Final = 1024  # and while others are served, who would wait as long
SLOW_HITS: Final = 8  # of all who leave their replies unread, in a millisecond; see WAIT_PACE

_ERROR: Final = 0
_ALLOW: Final = 1
_DENY: Final = 2
FAILING: Final = {"error": _ERROR, "allow": _ALLOW, "deny": _DENY}  # --on-upstream-failure


def _nothing() -> None:
    return


def _tells_nothing(_name: bytes, _args: list[bytes]) -> bytes:
    return r.bulks(b"EVAL", b"return ''", b"0")


def _no_clock() -> float:
    return 0.0


def _no_timer(_at: float, _function: Callable[[], None]) -> Callable[[], None]:
    return _nothing


class Call:
    """One call of ours on its way: what to send, and its reply once there is one."""

    __slots__ = (
        "behind",
        "caller",
        "denial",
        "expects_caching",
        "key",
        "late",
        "mended",
        "next",
        "opens",
        "others",
        "reply",
        "row",
        "rule",
        "shared",
        "waiter",
    )

    def __init__(self, caller: Caller, rule: Rule, key: bytes) -> None:
        self.caller = caller
        self.rule = rule
        self.key = key  # as a bulk, header included
        self.others: list[bytes] | None = None  # further keys, of RL.RESET while somebody waits
        self.reply: bytes = rule.error
        self.row: int = rule.row  # where its outcome is counted; Stats.NO_ROW: it was
        self.next: Call | None = None
        self.shared: int = c.PRIVATE  # an ordinary command, all of it in `key`
        self.waiter: Waiter | None = None  # whose question this is
        self.denial: Denial | None = None  # there was one when it was sent
        self.opens = False  # and this call opens it: it is answered in microseconds
        self.expects_caching = False  # the reply to CLIENT CACHING comes before its own
        self.behind: Rule | None = None  # of a hit that would overtake; `rule` looks at it
        self.late = False  # its client has an answer already
        self.mended = False  # it was answered NOSCRIPT before


class Caller:
    """Who makes calls, as a lane sees it. `now` is the loop's time in seconds, `pump` moves the
    bytes that a reply has set free, `dirty` is of use to whoever batches the writes of many.
    `fenced`: it has written on its private connection, and no lane has answered it since.
    """

    __slots__ = ("dirty", "fenced", "now", "flush")

    def __init__(self) -> None:
        self.now: float = 0.0
        self.dirty = False
        self.fenced = False
        self.flush: Callable[[], None] = _nothing

    def lane_answered(self, call: Call, reply: bytes) -> None:
        """`reply` is what `call` gets."""
        raise NotImplementedError

    def lane_returned(self, call: Call) -> None:
        """`call` was never sent, and all before it are answered: it goes another way."""
        raise NotImplementedError

    def lane_lost(self, call: Call) -> None:
        """The lane was lost before it answered `call`: its outcome is not known."""
        raise NotImplementedError

    def lane_late(self, call: Call) -> None:
        """`call` was not answered in time: its caller is told nothing more of it."""
        raise NotImplementedError

    def lane_declined(self, call: Call) -> None:
        """The reply to `call` is too large for a lane: nobody gets it."""
        raise NotImplementedError

    def resume(self) -> None:
        """Take up what waited for the lane. To be called after a round of lane_answered()."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Lane:
    """What a caller sees of a lane."""

    __slots__ = ("mixes", "mixes_ro", "ready", "retired", "room")

    def __init__(self) -> None:
        self.room: int = MAX_LANE_HITS  # for so many calls more
        self.ready: bool = False  # calls submitted now go out in this turn
        self.retired: bool = False  # ask for another one
        # Calls of different scripts may be under way for one caller. Not where Redis may evict one
        # of the scripts: the call of the other one would run first.
        self.mixes: bool = True
        # Calls by EVALSHA and by EVALSHA_RO may be under way for one caller. Not until both have
        # run: Redis may refuse one command by ACL and run the calls by the other one first.
        self.mixes_ro: bool = True

    def may_follow(self, before: Rule, rule: Rule) -> bool:
        """Whether a call of `rule` may be sent while one of `before` of its caller is under way."""
        if before.script is not rule.script and not self.mixes:
            return False
        return self.mixes_ro or before.by_ro == rule.by_ro

    def submit(self, call: Call) -> bytes:
        """The reply to `call` where it is known, or else nothing: then it is sent, and its caller's
        lane_answered() is told.
        """
        raise NotImplementedError

    def wake(self) -> None:
        """Somebody would use this lane if it were ready."""
        raise NotImplementedError


class WorkerContext:
    """What all callers share."""

    __slots__ = (
        "_failing",
        "base_db",
        "circuit",
        "backlogged",
        "grammar",
        "ignores_empty",
        "knows_ro",
        "lane_of",
        "max_client_hits",
        "native_throttle",
        "on_upstream_failure",
        "timeouts",
        "read_only",
        "server",
        "server_version",
        "share_of",
        "slow_room",
        "stats",
        "tell",
        "turn_work",
        "waiting",
        "where",
        "concurrency_limit",
        "work",
    )

    def __init__(
        self,
        grammar: Grammar,
        lane_of: Callable[[Identity], Lane | None],
        where: str,
        base_db: int = 0,
        waiting: WaitQueues | None = None,
        share_of: Callable[[Identity, int, int], Lane | None] | None = None,
        timeouts: HitTimeouts | None = None,
        max_client_hits: int = MAX_CLIENT_HITS,
        stats: Counters | None = None,
        concurrency_limit: ConcurrencyLimit | None = None,
    ) -> None:
        self.grammar = grammar
        self.stats = stats or Counters()
        # the call that has Redis answer RL.STATS or RL.TOP, with these arguments
        self.tell: Callable[[bytes, list[bytes]], bytes] = _tells_nothing
        self.lane_of = lane_of  # the lane of an identity; None if it may have none
        self.share_of = share_of  # the lane of an identity and protocol for commands.SHARED_*
        self.where = where  # the server's name in errors
        self.base_db = base_db
        self.native_throttle = False  # the server itself has CL.THROTTLE
        self.knows_ro = False  # the server has EVAL_RO
        self.ignores_empty = True  # the server replies nothing to an empty request
        # what it called itself in HELLO; before that, who asks is to expect little of it
        self.server: bytes = b"redis"
        self.server_version: bytes = b"0.0.0"
        self.read_only: Callable[[], None] = _nothing  # a hit was told that the server is a replica
        self.waiting = waiting or WaitQueues(_no_clock, _no_timer)
        self.max_client_hits = max_client_hits  # calls of one client on their way at once
        self.concurrency_limit = concurrency_limit or ConcurrencyLimit(max_client_hits)
        self.backlogged: int = 0  # clients with more in hand than that: they share it
        self.work: int = 0  # done since those who wait in line had a turn,
        self.turn_work: int = MAX_TURN_WORK  # and how much that may be
        self.slow_room: int = SLOW_HITS  # see there
        self.timeouts = timeouts or HitTimeouts(CircuitBreaker())
        self.circuit = self.timeouts.circuit
        self.on_upstream_failure = "error"
        self._failing: int = _ERROR

    def reconfigure(self, on_upstream_failure: str, hit_timeout_ms: int) -> None:
        """What the options of these names say, from now on."""
        self.on_upstream_failure = on_upstream_failure
        self._failing = FAILING[on_upstream_failure]
        self.timeouts.timeout_s = hit_timeout_ms / 1000

    def without(self, limit: int, row: int, error: bytes, kind: str) -> bytes:
        """The answer to a call that Redis does not answer; `limit` 0: it is no hit. `row` is where
        that is counted, and `kind` what went wrong.
        """
        counts = self.circuit.counts
        self.stats.error(kind)
        if limit == 0 or self._failing == _ERROR:
            counts.failed += 1
            self.stats.unanswered(row, FAILED)
            return error
        if self._failing == _ALLOW:
            counts.failed_open += 1
            self.stats.unanswered(row, FAILED_OPEN)
            return r.five(0, limit, limit, -1, 0)
        counts.failed_closed += 1
        self.stats.unanswered(row, FAILED_CLOSED)
        return r.five(1, limit, 0, 1, 1)

    def answers_hits(self) -> bool:
        """Whether hits that Redis does not answer get the reply of a hit."""
        return self._failing != _ERROR

    def too_late(self) -> bytes:
        """The error for a call that was sent, and not answered in time."""
        return r.late(self.timeouts.timeout_s)

    def leaves(self, name: bytes) -> bool:
        """Whether the family's command `name` is the server's own here."""
        return name == c.CL_THROTTLE and self.native_throttle


_AS_IT_IS: Final = Rule()  # adds nothing to what is in `key`


def shared(caller: Caller, how: int, written: bytes) -> Call:
    """An ordinary command, as its client has written it."""
    call = Call(caller, _AS_IT_IS, written)
    call.shared = how
    return call


def read(caller: Caller, requests: RequestFramer, settings: WorkerContext) -> Call | None:
    """The call that the framer's command stands for, refused ones with their reply; None for one
    that is not for a lane.
    """
    grammar = settings.grammar
    name = requests.command.name
    if settings.leaves(name):
        return None
    if requests.oversize:
        return Call(caller, Rule(r.TOO_LONG), b"")
    if name != c.RL_HIT and name in c.TOLD:
        wrong = wrong_told(name, requests.arguments())
        return Call(caller, Rule(wrong), b"") if wrong else None
    if requests.argc < 2:
        return Call(caller, Rule(r.error(wrong_arity(name))), b"")
    if requests.lenient:
        args = requests.arguments()
        key = r.bulk(args[0])
        tail = b"".join([r.bulk(arg) for arg in args[1:]])
    else:
        data = requests.buf
        end = requests.start + requests.args[1] + 2
        key = data[requests.start + requests.first : end]
        tail = data[end : requests.end]
    if name == c.RL_RESET:
        rule = Rule()
        rule.head = b"*%d\r\n$3\r\nDEL\r\n" % requests.argc
        rule.tail = tail
        rule.frees = True
        rule.row = other(RESET)
        reset = Call(caller, rule, key)
        if settings.waiting.count > 0:
            reset.others = [r.bulk(word) for word in requests.arguments()[1:]]
        return reset
    written = tail if name == c.RL_HIT else name + tail
    known = grammar.known(written)
    if known is None:
        known = grammar.rule(written, name, requests.arguments())
    return Call(caller, known, key)
