"""The context that all sessions of a worker share, in named parts. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rlproxy.fairness.budget import Budget
from rlproxy.observability.counters import Counters
from rlproxy.ratelimit.grammar import Grammar
from rlproxy.ratelimit.hit_replies import admitted, five
from rlproxy.ratelimit.outcomes import FAILED, FAILED_CLOSED, FAILED_OPEN, NO_ROW, shadow
from rlproxy.ratelimit.wait_queue import WaitQueues
from rlproxy.resp import commands, encoding
from rlproxy.session.call import Call, Lane, nothing
from rlproxy.session.identity import Identity
from rlproxy.session.timeouts import HitTimeouts

# Values of --on-upstream-failure.
_ERROR: Final = "error"
_ALLOW: Final = "allow"

# Errors of a server that can't run any hit at present, and has not run this one.
CANNOT_RUN: Final = (
    *(b"-LOADING ", b"-BUSY ", b"-MASTERDOWN ", b"-CLUSTERDOWN "),
    *(b"-READONLY ", b"-OOM ", b"-MISCONF ", b"-NOREPLICAS "),
)
_REFUSED: Final = b"*5\r\n:1"  # a script's reply to a refused hit begins with it


@dataclass
class Identification:
    """The server's name, version and abilities, as the control connection found them."""

    name: str
    version: str
    ignores_empty: bool = True  # whether an empty request gets no reply
    has_throttle: bool = False  # whether CL.THROTTLE is a command of the server
    known: bool = True  # whether the server was found

    def title(self) -> str:
        """Return name and version; "" of an unknown server."""
        return f"{self.name} {self.version}" if self.known else ""


class ServerFacts:
    """What the sessions need to know of the server behind the proxy.

    where: its name in errors.
    found: until the server is found, name and version from which clients expect few features.
    loaded: it has the scripts: calls may go by EVALSHA.
    in_cluster: it is a cluster, which clients see as one master, whatever their READONLY or ASKING.
    """

    def __init__(self, where: str, in_cluster: bool = False) -> None:
        self.where = where
        self.in_cluster = in_cluster
        self.loaded = False
        self.found = Identification("Redis", "0.0.0", known=False)
        self.on_read_only: Callable[[], None] = nothing  # called if the server is a replica
        self.on_refused: Callable[[], None] = nothing  # called if it refuses a new connection

    def implements(self, name: bytes) -> bool:
        """Return whether the server itself implements the RL command `name`."""
        return name == commands.CL_THROTTLE and self.found.has_throttle


def cannot_run(error: bytes) -> bool:
    """Return whether an error shows that the server can't run any hit at present."""
    return error.startswith(CANNOT_RUN)


class FailurePolicy:
    """What a hit gets that Redis does not answer, or can't run.

    mode: value of --on-upstream-failure.
    on_cannot_run: called with the code of Redis' error in whose place a hit gets the reply of
        `mode`.
    """

    def __init__(self, server: ServerFacts, timeouts: HitTimeouts, stats: Counters) -> None:
        self.server = server
        self.timeouts = timeouts
        self.stats = stats
        self.mode: str = _ERROR
        self.on_cannot_run: Callable[[str], None] = lambda _code: None

    def answers_hits(self) -> bool:
        """Return whether hits that Redis does not answer get the reply of a hit."""
        return self.mode != _ERROR

    def too_late(self) -> bytes:
        """Return the error for a call without a reply within the hit timeout."""
        return encoding.late(self.timeouts.timeout_s)

    def answered(self, call: Call, reply: bytes) -> bytes:
        """Count `call` by Redis' `reply`, and report a replica. Returns the client's reply.

        A call whose node of a cluster can't be reached gets the reply of reply(); so does, in the
        modes other than `error`, a hit that Redis can't run. A refused hit in shadow gets an
        admission.
        """
        if reply[0] == 45 and call.row != NO_ROW:  # else reply() has counted and answered it
            if reply.startswith(b"-READONLY"):
                self.server.on_read_only()
            if reply.startswith(encoding.UNREACHABLE):
                return self.reply(call, reply, "unreachable")
            if self.mode != _ERROR and cannot_run(reply) and _limit(call) > 0:
                self.on_cannot_run(reply[1:].split(None, 1)[0].decode())
                return self.reply(call, reply, "redis")
        row = call.take_row()
        self.stats.answered(row, reply, call.key, call.rule)
        return admitted(reply) if shadow(row) and reply.startswith(_REFUSED) else reply

    def reply(self, call: Call, error: bytes, kind: str) -> bytes:
        """Return the client's reply to a call that Redis does not answer, and count it.

        error: the reply where the mode is `error`, and for calls other than hits.
        kind: kind of the error, for the counters.
        """
        limit = _limit(call)
        row = call.take_row()
        self.timeouts.circuit.counts.without += 1
        self.stats.error(kind)
        if limit == 0 or self.mode == _ERROR:
            self.stats.unanswered(row, FAILED)
            return error
        if self.mode == _ALLOW or shadow(row):
            self.stats.unanswered(row, FAILED_OPEN)
            return five(0, limit, limit, -1, 0)
        self.stats.unanswered(row, FAILED_CLOSED)
        return five(1, limit, 0, 1, 1)


def _limit(call: Call) -> int:
    """The limit of the hit `call`; 0 for another call."""
    return call.rule.limit if call.original_rule is None else call.original_rule.limit


@dataclass
class WorkerContext:
    """The context that all sessions of a worker share.

    lane_of: returns the lane of an identity for a kind and a protocol; None if it may have none.
    shares: ordinary commands take lanes, too (--share).
    report_request: returns the request by which Redis answers RL.STATS, RL.TOP or RL.POLICIES. Its
        arguments are that name, and the arguments behind it.
    clock: returns the time of the event loop in seconds.
    """

    grammar: Grammar
    server: ServerFacts
    lane_of: Callable[[Identity, int, int], Lane | None]
    shares: bool
    waiting: WaitQueues
    timeouts: HitTimeouts
    budget: Budget
    stats: Counters
    report_request: Callable[[bytes, list[bytes]], bytes]

    def __post_init__(self) -> None:
        self.circuit = self.timeouts.circuit
        self.clock = self.timeouts.clock
        self.failure = FailurePolicy(self.server, self.timeouts, self.stats)
