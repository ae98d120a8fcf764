"""The control connection: it identifies the server, loads the scripts, and sends PINGs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from math import inf
from typing import Any, Final

import hiredis

from rlproxy.config.urls import Address, Upstream
from rlproxy.observability import metrics
from rlproxy.ratelimit.scripts import Script
from rlproxy.resp import encoding
from rlproxy.session.call import nothing
from rlproxy.session.context import Identification, ServerFacts, cannot_run
from rlproxy.session.timeouts import HitTimeouts
from rlproxy.upstream.backoff import Backoff, pause
from rlproxy.upstream.connector import Target, control_hello, lacks, reason
from rlproxy.upstream.outage_log import OutageLog
from rlproxy.upstream.query_connection import (
    Closed,
    NoRoom,
    QueryConnection,
    error_in,
    opened,
    text,
)

_RETRY_FIRST_S: Final = 0.05
_MAX_RETRY_S: Final = 0.5
_ANOTHER_S: Final = 2.0  # limit for a second connection and its reply, in seconds
_REPLY_S: Final = 5.0  # limit for a reply on the control connection, in seconds
_REFUSED_S: Final = 5.0  # pause before a refused step is tried again, in seconds
_KEEP_S: Final = 0.5  # seconds between PINGs: Redis may close connections that are idle for 1 s
# Bounds of the reply limit while the circuit is open, in seconds. Between them it is the hit
# timeout.
_MIN_PROBE_S: Final = 0.1
_MAX_PROBE_S: Final = 1.0
_STEP_S: Final = 0.05  # seconds between checks of that limit
MAX_LOST: Final = 2  # connections lost behind an empty request: one may be lost for another reason
_WANTS_PASSWORD: Final = "it wants a password, and the URL has none"
_MAY_HAVE_TLS: Final = "; if that port has TLS, write rediss:// instead of redis:// in --upstream"
_IS_REPLICA: Final = "it is a replica, which refuses hits (READONLY)"


class Control:
    """The control connection: identifies the server, loads the scripts, and checks that Redis
    answers.

    It prepares the server after every reconnect, and loads the scripts again when one is missing.
    It reconnects until run() is cancelled.

    upstream: the credentials of --upstream.
    scripts: the scripts to load, by name.
    facts: gets what identifies the server, and whether it has the scripts.
    on_server: called after each successful HELLO, once `facts` has that.
    drained: returns whether no lane has a call by EVALSHA under way.
    on_moved: called if other connections lead to a replica, and this one to another server, the
        master.
    """

    def __init__(
        self,
        target: Target,
        upstream: Upstream,
        scripts: dict[str, Script],
        facts: ServerFacts,
        on_server: Callable[[], None],
        timeouts: HitTimeouts,
    ) -> None:
        self._target = target
        self._upstream = upstream
        self._scripts = scripts
        self._facts = facts
        self._on_server = on_server
        self.on_moved: Callable[[], None] = nothing
        self.drained: Callable[[], bool] = lambda: True
        self._timeouts = timeouts
        self._circuit = timeouts.circuit
        self._loop = asyncio.get_running_loop()
        self.outages = OutageLog(target, timeouts.circuit, self._loop.time)
        self._backoff = Backoff(_RETRY_FIRST_S, _MAX_RETRY_S)
        self._connection = QueryConnection()
        self._reconnects = asyncio.Event()
        self._ping_now = asyncio.Event()
        self.settled = asyncio.Event()  # set after the first attempt, successful or not
        self._retry_at = 0.0  # earliest loop time of the next try of a refused step
        # Since the server was last identified:
        self._read_only = False  # a replica has answered
        self._refuses = False  # the server has refused a new connection
        self._masters = 0  # how often this connection, after READONLY, has led to a master
        self._lost = 0  # number of connections lost behind an empty request
        self.reached = False  # whether the latest attempt reached a server
        self.kind = ""  # kind of the problem, see metrics.PROBLEMS
        self.problem = ""  # reason why the server cannot be used fully; empty if it can

    def reconnect(self) -> None:
        """Drop the connection and open a new one at once: the target or the login may differ."""
        self._reconnects.set()
        self._facts.loaded = False
        self._connection.abort()

    def ping_now(self) -> None:
        """Send a PING now, because Redis may not answer any more."""
        self._ping_now.set()

    def look_at_role(self) -> None:
        """Identify the server soon: a replica has answered."""
        self._read_only = True

    def check_new_connections(self) -> None:
        """Look soon whether the server takes another connection: it has refused one.

        This connection and older ones may go on: the server may be at its `maxclients`, or a
        certificate has expired since.
        """
        self._circuit.counts.connects_failed += 1
        self._refuses = True

    # -- the connection ---------------------------------------------------------------------------

    async def run(self) -> None:
        """Connect, prepare the server and watch the connection, over and over, until cancelled."""
        while True:
            self._reconnects.clear()
            self.reached = False
            error: OSError | None = None
            try:
                await self._connect()
                await self._prepare()
                self._backoff.reset()
                self.settled.set()
                await self._watch()
                if not self._reconnects.is_set():
                    self.outages.control_lost()
            except OSError as caught:
                error = caught
            finally:
                self._connection.abort()
            self._facts.loaded = False
            if self._reconnects.is_set():
                self._backoff.reset()
                continue
            if error is not None:
                self._failed(error)
            self.settled.set()
            await pause(self._backoff.pause_s(), self._reconnects)

    async def _connect(self) -> None:
        circuit = self._circuit
        connection = QueryConnection(lambda: circuit.replied(self._loop.time()))
        self._connection, self._masters = connection, 0
        try:
            await self._in_time(self._target.connect(lambda: connection), inf)
        except OSError as error:
            circuit.connect_failed(self._loop.time(), reason(error), lacks(error))
            raise

    async def _in_time(self, work: Coroutine[Any, Any, object], most_s: float) -> None:
        """Run `work` for at most `most_s` seconds. Raises TimeoutError.

        While the circuit is open, the limit is the hit timeout, within _MIN_PROBE_S and
        _MAX_PROBE_S: the connection may be dead, and a new one should be tried soon.
        """
        task = self._loop.create_task(work)
        begun = self._loop.time()
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=_STEP_S)
                limit_s = most_s
                if self._circuit.open:
                    limit_s = min(self._timeouts.timeout_s, _MAX_PROBE_S)
                    limit_s = max(_MIN_PROBE_S, limit_s)
                if self._loop.time() - begun > limit_s and not task.done():
                    raise TimeoutError
            task.result()
        finally:
            task.cancel()

    def _failed(self, error: OSError) -> None:
        """Record and log that the server cannot be used."""
        silent = not self._connection.answered
        if silent and isinstance(error, Closed) and self._target.tls is None:
            # Redis closes a connection without TLS at a port with TLS, and sends nothing.
            error = OSError(f"{error}{_MAY_HAVE_TLS}")
        self.kind = metrics.FULL if isinstance(error, NoRoom) else metrics.UNREACHABLE
        self.problem = reason(error)
        if isinstance(error, TimeoutError):
            silent = self._timeouts.timeout_s < inf
        if self.kind == metrics.UNREACHABLE and self.reached and silent:
            # A load balancer without a server, a port that has TLS, a server with TLS that refuses
            # this client, or a server that hangs.
            self._circuit.connect_failed(self._loop.time(), self.problem)
        self.outages.control_failed(self.problem, refused=not (self.reached or lacks(error)))

    def _report(self) -> None:
        """Log a new problem, or the end of the last one.

        A server that does not fit the URL is left out at the first attempt: that is a start error.
        """
        if self.kind not in metrics.MISFITS or self.settled.is_set():
            self.outages.control_works(self.problem)

    # -- preparing the server ---------------------------------------------------------------------

    async def _prepare(self) -> None:
        """Log in, identify the server and load the scripts; log a step that fails."""
        self.reached = True
        await self._in_time(self._introduce(), _REPLY_S)
        self._report()

    async def _introduce(self) -> None:
        """Log in, and take each step that the server still needs. Sets `kind` and `problem`."""
        reply = await self._connection.query(*control_hello(self._upstream))
        if cannot_run(error_in(reply)):
            self.kind, self.problem = metrics.UNABLE, str(reply)
            return
        if isinstance(reply, hiredis.ReplyError):
            why = hello_error(str(reply), self._upstream.password)
            self.kind = metrics.LOGIN
            self.problem = f"{why}; clients that log in themselves are served all the same"
            return
        if not isinstance(reply, dict):
            raise OSError("not a Redis server: it does not answer HELLO as Redis does")
        await self._identify(reply)
        may_refuse = self.kind == metrics.FULL or self._refuses
        was_replica = self.kind == metrics.REPLICA or self._read_only
        self._refuses = self._read_only = False
        kind, problem = self._misfit(reply, was_replica)
        refused = self.problem if self.kind == metrics.SCRIPTS else ""
        pong = await self._connection.query(b"PING")
        if not kind and cannot_run(error_in(pong)):
            kind, problem = metrics.UNABLE, str(pong)
        elif not self._facts.loaded and self.drained():
            refused = await self._load()
        if may_refuse and not kind:
            kind, problem = await self._open_another()
        if refused and not kind:
            kind, problem = metrics.SCRIPTS, refused
        self.kind, self.problem = kind, problem

    def _misfit(self, reply: dict[Any, Any], was_replica: bool) -> tuple[str, str]:
        """Compare mode and role of the server, in its `reply` to HELLO, with --upstream.

        was_replica: a replica has answered since the server was last identified.
        Returns kind and text of the problem, if there is one. Calls on_moved() if it is due.
        """
        if self._upstream.cluster:  # its nodes are the masters that discovery has found
            return "", ""
        kind, problem = wrong_mode(text(reply.get(b"mode")), self._upstream, self._upstream.address)
        if not kind and text(reply.get(b"role")) == "replica":
            kind, problem = metrics.REPLICA, _IS_REPLICA
        if was_replica and not kind:
            self._masters += 1
            if self._masters == 2:  # a replica has answered since the first time
                self.on_moved()
        return kind, problem

    async def _open_another(self) -> tuple[str, str]:
        """Open a second connection. Returns kind and text of the problem, if there is one."""
        try:
            async with asyncio.timeout(_ANOTHER_S), opened(self._target) as connection:
                await connection.query(*control_hello(self._upstream))
        except NoRoom as error:
            return metrics.FULL, str(error)
        except OSError as error:
            self._refuses = True
            return metrics.UNREACHABLE, f"it refuses new connections: {reason(error)}"
        return "", ""

    async def _identify(self, reply: dict[Any, Any]) -> None:
        """Collect what identifies the server from its reply to HELLO and from further queries."""
        found = Identification(
            text(reply.get(b"server", b"redis"), "?").capitalize(),
            text(reply.get(b"version"), "?"),
            await self._ignores_empty(),
        )
        throttle = await self._connection.query(b"COMMAND", b"INFO", b"CL.THROTTLE")
        found.has_throttle = isinstance(throttle, list) and throttle not in ([], [None])
        self._facts.found = found
        self._on_server()

    async def _ignores_empty(self) -> bool:
        """Return whether the server ignores an empty request.

        A server may close the connection instead. After MAX_LOST connections that were lost behind
        this query, the next one skips it and returns False.
        """
        if self._lost == MAX_LOST:
            self._lost = 0
            return False
        self._lost += 1
        self._connection.send(encoding.EMPTY_REQUEST + encoding.bulks(b"PING"))
        ignores = not str((await self._connection.read())[0]).startswith("ERR")
        if not ignores:
            await self._connection.read()  # the reply to PING
        self._lost = 0
        return ignores

    async def _load(self) -> str:
        """Load the scripts, once `drained`. Returns why Redis refuses them, or "".

        Each hit carries its script until they are loaded.
        """
        replies = await self._connection.query_all(
            [(b"SCRIPT", b"LOAD", script.source) for script in self._scripts.values()]
        )
        errors = [str(reply) for reply in replies if isinstance(reply, hiredis.ReplyError)]
        self._facts.loaded = not errors
        if not errors:
            return ""
        why = errors[0].partition(", with args")[0]  # the rest quotes the script
        return f"SCRIPT LOAD: {why}; each hit carries its script instead"

    # -- the prepared server ----------------------------------------------------------------------

    async def _watch(self) -> None:
        """Load missing scripts and send PINGs, until the connection is lost."""
        lost = self._connection.lost
        while not lost.is_set():
            await pause(_KEEP_S, lost, self._ping_now)
            try:
                await self._look()
            except OSError:
                if not lost.is_set():
                    raise

    async def _look(self) -> None:
        self._ping_now.clear()  # what follows brings a reply, too
        if not self.problem and not self._facts.loaded and self.drained():
            await self._in_time(self._load_missing(), _REPLY_S)
        elif not self._is_worth_another_try():
            await self._in_time(self._ping(), _REPLY_S)
            return
        elif self.kind in (metrics.LOGIN, metrics.REPLICA):
            # Redis keeps refusing HELLO on a connection that it accepted with a password set.
            # A name may lead to another server than that of this connection.
            self.reconnect()
        else:
            await self._prepare()
        if self.kind not in ("", metrics.REPLICA):
            self._retry_at = self._loop.time() + _REFUSED_S

    async def _load_missing(self) -> None:
        """Load the scripts, which Redis has lost; a refusal is a problem."""
        self.problem = await self._load()
        self.kind = metrics.SCRIPTS if self.problem else ""
        self._report()

    async def _ping(self) -> None:
        """Send a PING. An error in reply may be a new problem."""
        reply = await self._connection.query(b"PING")
        if not self.kind and cannot_run(error_in(reply)):
            self.kind, self.problem = metrics.UNABLE, str(reply)
            self._report()

    def _is_worth_another_try(self) -> bool:
        """Return whether to prepare the server again: a step that it refused is due."""
        due = self.kind == metrics.UNABLE or self._loop.time() >= self._retry_at
        return due and (bool(self.problem) or self._read_only or self._refuses)


def hello_error(text: str, password: str | None) -> str:
    """Describe the error reply to HELLO in a few words, without the password."""
    if text.startswith("ERR unknown command"):  # Redis quotes the arguments, password included
        return "it does not know HELLO (a server before Redis 6, or without that command)"
    if text.startswith("NOAUTH"):
        return _WANTS_PASSWORD
    if text.startswith("WRONGPASS"):
        return "it refuses the user or password of the URL"
    return text.replace(password, "***") if password else text


def wrong_mode(mode: str, upstream: Upstream, address: Address | None) -> tuple[str, str]:
    """Compare a server with --upstream. Returns kind and text of the problem, if there is one.

    mode: that of the server in its reply to HELLO.
    address: the server's; HOST:PORT stands for None.
    """
    scheme = "rediss" if upstream.tls else "redis"
    login = "USER:PASSWORD@" if upstream.password is not None else ""
    where = "HOST:PORT" if address is None or address.path else str(address)
    place = f"://{login}{where}"
    if mode == "sentinel":
        url = f"{scheme}+sentinel{place}/NAME-OF-THE-MASTER"
        return metrics.SENTINEL, f"it is a Sentinel. Write --upstream {url}"
    if mode == "cluster" and not (upstream.cluster or upstream.standalone):
        return metrics.CLUSTER, (
            f"it is a node of a Redis Cluster. For the whole cluster write --upstream "
            f"{scheme}+cluster{place}; for this node alone append ?standalone=yes to its URL"
        )
    if mode != "cluster" and upstream.cluster:
        return (
            metrics.CLUSTER,
            f"it is no node of a Redis Cluster. Write --upstream {scheme}{place}",
        )
    return "", ""
