"""The context that all sessions of a worker share, the calls they make, and the interface of a
lane. No I/O.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import mypyc_attr

from rlproxy.fairness.budget import Budget
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

MAX_LANE_HITS: Final = 65536

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
    """One call on a lane or a private connection: what to send, and its reply once it has come."""

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
        self.others: list[bytes] | None = None  # further keys of an RL.RESET, while hits wait
        self.reply: bytes = rule.error
        self.row: int = rule.row  # row of the counters for its outcome; NO_ROW: it is counted
        self.next: Call | None = None
        self.shared: int = c.PRIVATE  # an ordinary command, which `key` contains whole
        self.waiter: Waiter | None = None  # the waiter that sends this call
        self.denial: Denial | None = None  # entry of the denial cache when it was sent
        self.opens = False  # it opens that entry: its reply is in microseconds
        self.expects_caching = False  # the reply to CLIENT CACHING comes before its own
        self.behind: Rule | None = None  # rule of a hit that must not overtake; `rule` looks
        self.late = False  # its client has a reply already
        self.mended = False  # its first reply was NOSCRIPT


class Caller:
    """The sender of calls, as a lane sees it.

    `now` is the event loop's time in seconds. `flush` moves the bytes that a reply has released.
    `dirty` marks a caller in a lane's batch, to flush it once. `fenced`: it has written on its
    private connection, and no lane has answered it since.
    """

    __slots__ = ("dirty", "fenced", "now", "flush")

    def __init__(self) -> None:
        self.now: float = 0.0
        self.dirty = False
        self.fenced = False
        self.flush: Callable[[], None] = _nothing

    def lane_answered(self, call: Call, reply: bytes) -> None:
        """Take the reply to `call`."""
        raise NotImplementedError

    def lane_returned(self, call: Call) -> None:
        """Take back `call`, which was never sent; all calls before it are answered."""
        raise NotImplementedError

    def lane_lost(self, call: Call) -> None:
        """Handle a `call` whose lane was lost before the reply; its outcome is unknown."""
        raise NotImplementedError

    def lane_late(self, call: Call) -> None:
        """Handle a `call` without a reply in time; no further method is called for it."""
        raise NotImplementedError

    def lane_declined(self, call: Call) -> None:
        """Handle a `call` whose reply is too large for a lane; the reply is discarded."""
        raise NotImplementedError

    def resume(self) -> None:
        """Continue with requests that waited for the lane, after calls of lane_answered()."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Lane:
    """The interface of a lane for callers."""

    __slots__ = ("mixes", "mixes_ro", "ready", "retired", "room")

    def __init__(self) -> None:
        self.room: int = MAX_LANE_HITS  # further calls that it accepts
        self.ready: bool = False  # calls submitted now are sent in this tick
        self.retired: bool = False  # callers must get another lane
        # Calls of different scripts may be outstanding for one caller. False where Redis may
        # evict one of the scripts: the call of the other one would run first.
        self.mixes: bool = True
        # Calls by EVALSHA and by EVALSHA_RO may be outstanding for one caller. False until both
        # have run: Redis may refuse one by ACL and run the calls by the other one first.
        self.mixes_ro: bool = True

    def may_follow(self, before: Rule, rule: Rule) -> bool:
        """Return whether a call of `rule` may be sent while its caller has one of `before`."""
        if before.script is not rule.script and not self.mixes:
            return False
        return self.mixes_ro or before.by_ro == rule.by_ro

    def submit(self, call: Call) -> bytes:
        """Send `call`, and return b""; lane_answered() of its caller gets the reply.

        If the reply is known already, nothing is sent, and the reply is returned.
        """
        raise NotImplementedError

    def wake(self) -> None:
        """Make the lane ready: a caller has calls for it."""
        raise NotImplementedError


class WorkerContext:
    """The context that all callers of a worker share."""

    __slots__ = (
        "_failing",
        "base_db",
        "circuit",
        "budget",
        "grammar",
        "ignores_empty",
        "knows_ro",
        "lane_of",
        "native_throttle",
        "on_upstream_failure",
        "timeouts",
        "read_only",
        "server",
        "server_version",
        "share_of",
        "stats",
        "tell",
        "waiting",
        "where",
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
        budget: Budget | None = None,
        stats: Counters | None = None,
    ) -> None:
        self.grammar = grammar
        self.stats = stats or Counters()
        # Returns the call by which Redis answers RL.STATS or RL.TOP with these arguments
        self.tell: Callable[[bytes, list[bytes]], bytes] = _tells_nothing
        self.lane_of = lane_of  # the lane of an identity; None if it may have none
        self.share_of = share_of  # the lane of an identity and protocol for commands.SHARED_*
        self.where = where  # the server's name in errors
        self.base_db = base_db
        self.native_throttle = False  # the server itself implements CL.THROTTLE
        self.knows_ro = False  # the server has EVAL_RO
        self.ignores_empty = True  # the server sends no reply to an empty request
        # Name in the server's HELLO reply. Before the first one: a name and version from which
        # clients expect few features.
        self.server: bytes = b"redis"
        self.server_version: bytes = b"0.0.0"
        self.read_only: Callable[[], None] = _nothing  # called if the server is a replica
        self.waiting = waiting or WaitQueues(_no_clock, _no_timer)
        self.budget = budget or Budget()
        self.timeouts = timeouts or HitTimeouts(CircuitBreaker())
        self.circuit = self.timeouts.circuit
        self.on_upstream_failure = "error"
        self._failing: int = _ERROR

    def reconfigure(self, on_upstream_failure: str, hit_timeout_ms: int) -> None:
        """Apply the current values of these options."""
        self.on_upstream_failure = on_upstream_failure
        self._failing = FAILING[on_upstream_failure]
        self.timeouts.timeout_s = hit_timeout_ms / 1000

    def without(self, limit: int, row: int, error: bytes, kind: str) -> bytes:
        """Return the reply to a call that Redis does not answer, and count it.

        limit: the hit's limit; 0 if the call is no hit.
        row: row of the counters for its outcome.
        error: the reply where --on-upstream-failure is `error`, and for calls other than hits.
        kind: kind of the error, for the counters.
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
        """Return whether hits that Redis does not answer get the reply of a hit."""
        return self._failing != _ERROR

    def too_late(self) -> bytes:
        """Return the error for a call without a reply within the hit timeout."""
        return r.late(self.timeouts.timeout_s)

    def leaves(self, name: bytes) -> bool:
        """Return whether the server itself implements the RL command `name`."""
        return name == c.CL_THROTTLE and self.native_throttle


_AS_IT_IS: Final = Rule()  # adds nothing to `key`


def shared(caller: Caller, how: int, written: bytes) -> Call:
    """Return the call of an ordinary command, as `written` by its client."""
    call = Call(caller, _AS_IT_IS, written)
    call.shared = how
    return call


def read(caller: Caller, requests: RequestFramer, settings: WorkerContext) -> Call | None:
    """Return the call of the framer's command; None if it is not for a lane.

    An invalid command gives a call with its error as `reply`.
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
