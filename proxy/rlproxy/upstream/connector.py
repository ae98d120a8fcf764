"""Connections to Redis: the connector that opens them, and the proxy's own control connection."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import re
from bisect import bisect_left
from collections.abc import Callable, Coroutine
from math import inf
from random import random
from typing import Any, Final, cast

import hiredis

from rlproxy.config.urls import Address, Upstream
from rlproxy.net.tls_contexts import NO_TLS, ClientSide, TlsFailure
from rlproxy.net.tls_stream import TlsStream
from rlproxy.observability.metrics import (
    CLUSTER,
    DATABASE,
    FULL,
    LOGIN,
    SCRIPT_TIMES_S,
    SCRIPTS,
    UNREACHABLE,
    Distribution,
)
from rlproxy.ratelimit.scripts import Script
from rlproxy.resp import encoding
from rlproxy.session.circuit_breaker import Backoff
from rlproxy.session.timeouts import HitTimeouts
from rlproxy.upstream.script_loading import ScriptLoading

log = logging.getLogger("rlproxy")

_RETRY_FIRST_S: Final = 0.05
_RETRY_MOST_S: Final = 0.5
# Limit for a reply on the control connection, interval of latency measurements, and pause before a
# refused step is tried again, in seconds.
_PING_S: Final = 5.0
_WANTS_PASSWORD: Final = "it wants a password, and the URL has none"
_KEEP_S: Final = 0.5  # seconds between PINGs: Redis may close connections that are idle for 1 s
_EMPTY: Final = b"*0\r\n"  # a request without a command
MAX_FIRST_LINE: Final = 4096  # bytes
PROBE_S: Final = 2.0  # seconds between checks of the default user's password
# Bounds of the reply limit while the circuit is open, in seconds. Between them it is the hit
# timeout.
_PROBE_LEAST_S: Final = 0.1
_PROBE_MOST_S: Final = 1.0
_STEP_S: Final = 0.05  # seconds between checks of that limit
_HTTP: Final = (b"HTTP/", b"<")  # first bytes of a web server's error
_HANDSHAKE: Final = "TLS handshake"
_ALERT: Final = b"\x15\x03"  # first bytes of a TLS alert, the reply of a TLS port to plain bytes
_SPEAKS_TLS: Final = "it speaks TLS: write rediss:// instead of redis:// in --upstream"
_MAY_SPEAK_TLS: Final = (
    "; if that port speaks TLS, write rediss:// instead of redis:// in --upstream"
)
_SPEAKS_NONE: Final = "; if that port has no TLS, write redis:// instead of rediss:// in --upstream"
_IN_CLUSTER: Final = (
    "it is a node of a Redis Cluster, which is not supported yet. Name a server without "
    "cluster-enabled (--upstream redis://HOST:PORT) or Sentinels "
    "(redis+sentinel://HOST:PORT,.../MASTER)"
)


class Target:
    """Opens connections to one address.

    where: the address as errors and logs name it.
    tls: the TLS settings of new connections, or None. It may be replaced at any time; open
    connections keep theirs.
    """

    __slots__ = ("_address", "_timeout_s", "tls", "where")

    def __init__(self, address: Address, timeout_s: float, tls: ClientSide | None = None) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self.tls = tls
        self.where = str(address)

    async def connect(self, protocol: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        """Open a connection.

        protocol: makes the protocol of the new connection.
        Returns the connected transport, after the TLS handshake where there is one.
        Raises OSError; its text, as returned by reason(), is fit for the log.
        """
        loop = asyncio.get_running_loop()
        address = self._address
        awaited = ["connection"]
        try:
            async with asyncio.timeout(self._timeout_s):
                if self.tls is not None:
                    return await _secured(self.tls, address, protocol, awaited)
                if address.path:
                    transport, _ = await loop.create_unix_connection(protocol, address.path)
                else:
                    transport, _ = await loop.create_connection(
                        protocol, address.host, address.port
                    )
        except TimeoutError:
            hint = _SPEAKS_NONE if awaited[-1] == _HANDSHAKE else ""
            raise OSError(f"no {awaited[-1]} within {self._timeout_s:g} s{hint}") from None
        return transport


async def _secured(
    tls: ClientSide,
    address: Address,
    protocol: Callable[[], asyncio.Protocol],
    awaited: list[str],
) -> asyncio.Transport:
    """Open a TLS connection. Appends the step that it waits for to `awaited`. Raises OSError."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    # Marks the exception as retrieved: a cancelled task never awaits it, and asyncio would log it.
    done.add_done_callback(lambda future: future.cancelled() or future.exception())

    def settled(error: OSError | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    try:
        stream = TlsStream(protocol, tls.context, settled, tls.name or address.host)
    except ValueError:
        raise TlsFailure(f"{address.host} can be no name in a certificate") from None
    transport, _ = await loop.create_connection(lambda: stream, address.host, address.port)
    awaited.append(_HANDSHAKE)
    try:
        await done
    except BaseException as error:
        if not isinstance(error, TlsFailure):  # after a TlsFailure the stream is closing already
            transport.abort()
        elif str(error) == NO_TLS:
            raise TlsFailure(f"{NO_TLS}{_SPEAKS_NONE}") from None
        raise
    return cast("asyncio.Transport", stream)


def reason(error: OSError) -> str:
    """Describe a failed connection in a few words, for logs and errors."""
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, TimeoutError):
        return "no answer"
    if isinstance(error, FileNotFoundError):
        return "no such socket"
    return error.strerror or str(error) or type(error).__name__


class NoRoom(OSError):  # noqa: N818
    """Redis has no room for another client: its `maxclients` is reached."""

    def __init__(self) -> None:
        super().__init__("max number of clients reached")


def lacks(error: OSError) -> bool:
    """Return whether a connection failed because this machine lacks a resource.

    These are file descriptors, buffers, memory or free local ports. Such a failure is no sign that
    the server is down.
    """
    return error.errno in (
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOBUFS,
        errno.ENOMEM,
        errno.EADDRNOTAVAIL,
    )


def hello(name: bytes, user: bytes | None, password: bytes | None) -> list[bytes]:
    """Return the first command of a lane or control connection, as words: HELLO 3 with SETNAME.

    name: the connection's name in CLIENT LIST.
    password: None leaves out AUTH.
    """
    auth = [b"AUTH", user or b"default", password] if password is not None else []
    return [b"HELLO", b"3", *auth, b"SETNAME", name]


def _refusal(text: str, password: str | None) -> str:
    """Describe the error reply to HELLO in a few words, without the password."""
    if text.startswith("ERR unknown command"):  # Redis quotes the arguments, password included
        return "it does not know HELLO (a server before Redis 6, or without that command)"
    if text.startswith("NOAUTH"):
        return _WANTS_PASSWORD
    if text.startswith("WRONGPASS"):
        return "it refuses the user or password of the URL"
    return text.replace(password, "***") if password else text


class Facts:
    """The server's name, version and abilities, as the control connection found them."""

    __slots__ = ("has_ro", "has_throttle", "ignores_empty", "name", "version")

    def __init__(self, name: str, version: str) -> None:
        self.name = name
        self.version = version
        self.ignores_empty = True  # whether an empty request gets no reply
        self.has_ro = False  # whether EVAL_RO and EVALSHA_RO both exist
        self.has_throttle = False  # whether CL.THROTTLE is a command of the server


class Control(asyncio.Protocol):
    """The control connection: identifies the server, loads the scripts, and checks that Redis
    answers.

    It prepares the server after every reconnect, and loads the scripts again when `loading`
    requests that. It reconnects until run() is cancelled.

    upstream: the credentials and the database of --upstream.
    scripts: the scripts to load, by name.
    on_server: called with the Facts after each successful HELLO.
    """

    def __init__(
        self,
        target: Target,
        upstream: Upstream,
        scripts: dict[str, Script],
        on_server: Callable[[Facts], None],
        timeouts: HitTimeouts,
        loading: ScriptLoading,
    ) -> None:
        self._target = target
        self._loading = loading
        self._upstream = upstream
        self._scripts = scripts
        self._on_server = on_server
        self._timeouts = timeouts
        self._circuit = timeouts.circuit
        self._loop = asyncio.get_running_loop()
        self._backoff = Backoff(_RETRY_FIRST_S, _RETRY_MOST_S, random)
        self._reader = hiredis.Reader()
        self._waiting: asyncio.Future[list[Any]] | None = None
        self._answers: list[Any] = []
        self._expected = 0
        self._transport: asyncio.Transport | None = None
        self._answered = False  # whether this connection has received any byte
        self._lost = asyncio.Event()
        self._reload = asyncio.Event()
        self._moved = asyncio.Event()
        self._probe = asyncio.Event()
        self.settled = asyncio.Event()  # set after the first attempt, successful or not
        self._retry_at = 0.0  # earliest loop time of the next try of a refused step
        self._logged = ""  # the problem that was logged last
        self._unexplained = False  # whether the connection was lost without a log line
        self.warned = False  # whether this object logged the present outage
        self._measured_at = 0.0  # loop time of the latest latency measurement
        self._asks_empty = False  # whether an empty request was sent and its outcome is not known
        self.reached = False  # whether the latest attempt reached a server
        self.kind = ""  # kind of the problem, see metrics.PROBLEMS
        self.problem = ""  # reason why the server cannot be used fully; empty if it can
        self.loaded = False  # whether the scripts are on the server
        self.measures = False  # whether to query the run times of scripts
        self.script_times: Distribution | None = None  # the latest result of that query

    # -- protocol ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self._reader = hiredis.Reader()
        self._answers = []
        self._answered = False
        self._lost.clear()

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self._circuit.heard(self._loop.time())
        self._answered = True
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not False:
                self._answers.append(reply)
        except hiredis.ProtocolError as error:
            self._fail(OSError(_foreign(data) or f"not a Redis server: {error}"))
            if self._transport is not None:
                self._transport.abort()
            return
        enough = len(self._answers) >= self._expected
        if enough and self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(self._answers)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._lost.set()
        self._loading.lost()
        self._fail(exc if isinstance(exc, TlsFailure) else self._closed())

    def _closed(self) -> OSError:
        # At its `maxclients`, Redis sends the refusal before any command, and closes the socket.
        # HELLO then causes a reset, which may discard the refusal before it is read.
        lost = self.kind == FULL and not self._answered
        if lost or any(_no_room(answer) for answer in self._answers):
            return NoRoom()
        # Redis closes a connection without TLS at a port with TLS, and sends nothing.
        hint = "" if self._answered or self._target.tls is not None else _MAY_SPEAK_TLS
        return OSError(f"connection closed by the server{hint}")

    def _fail(self, error: OSError) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)

    # -- work -------------------------------------------------------------------------------------

    def reload(self) -> None:
        """Load the scripts now; see ScriptLoading.on_wanted."""
        self._reload.set()

    def move(self) -> None:
        """Drop the connection and reconnect at once, because the target has moved."""
        self._loading.lost()
        self._reopen()

    def _reopen(self) -> None:
        """Drop the connection and open a new one at once, without the pause between attempts."""
        self._moved.set()
        if self._transport is not None:
            self._transport.abort()

    def probe(self) -> None:
        """Send a PING now, because it is doubtful whether Redis answers."""
        self._probe.set()

    async def run(self) -> None:
        """Connect, prepare the server and watch the connection, over and over, until cancelled."""
        while True:
            self._moved.clear()
            self.reached = self.loaded = False
            try:
                await self._connect()
                await self._prepare()
                self._backoff.reset()
                self.settled.set()
                await self._watch()
                self._unexplained = not (self._circuit.open or self._moved.is_set())
            except OSError as error:
                if not self._moved.is_set():
                    self._failed(error)
            finally:
                if self._transport is not None:
                    self._transport.abort()
                    self._transport = None
            if self._moved.is_set():
                self._backoff.reset()
                continue
            self.settled.set()
            await _first_of(self._backoff.pause_s(), self._moved)

    def _failed(self, error: OSError) -> None:
        """Record that the server cannot be used.

        A server that refuses connections is logged when the circuit opens. So this logs failures
        behind an open connection, and resources that this machine lacks.
        """
        self.kind = FULL if isinstance(error, NoRoom) else UNREACHABLE
        self.problem = reason(error)
        self.loaded = False
        self._loading.over(False)
        if (self.reached or lacks(error)) and not (self._circuit.open or self.warned):
            self.warned = True
            log.warning("cannot reach Redis at %s: %s; trying on", self._target.where, self.problem)
        if self._circuit.open or self.warned:
            self._unexplained = False

    def _report(self) -> None:
        """Log a new problem, or the end of the last one.

        A Cluster node at the first attempt is left out: the server reports it as a start error.
        """
        where = self._target.where
        if self.kind == CLUSTER and not self.settled.is_set():
            return
        if self.problem and (self.warned or self.problem != self._logged):
            log.warning("Redis at %s: %s", where, self.problem)
        elif not self.problem and (self.warned or self._logged):
            log.warning("Redis at %s: the proxy's own connection works again", where)
        elif self._unexplained:
            log.warning("Redis at %s: the proxy's own connection was lost; a new one works", where)
        self._logged = self.problem
        self.warned = self._unexplained = False

    async def _connect(self) -> None:
        circuit = self._circuit
        try:
            await self._in_time(self._open(), inf)
        except OSError as error:
            now = self._loop.time()
            if not lacks(error):
                circuit.asked(now)
            circuit.connect_failed(now, reason(error), lacks(error))
            raise
        circuit.asked(self._loop.time())

    async def _open(self) -> None:
        self._transport = await self._target.connect(lambda: self)

    async def _in_time(self, work: Coroutine[Any, Any, None], most_s: float = _PING_S) -> None:
        """Run `work` for at most `most_s` seconds. Raises TimeoutError.

        While the circuit is open, the limit is that of _probe_s(): the connection may be dead, and
        a new one should be tried soon.
        """
        task = self._loop.create_task(work)
        begun = self._loop.time()
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=_STEP_S)
                limit_s = self._probe_s() if self._circuit.open else most_s
                if self._loop.time() - begun > limit_s and not task.done():
                    raise TimeoutError
            task.result()
        finally:
            task.cancel()

    def _probe_s(self) -> float:
        return max(_PROBE_LEAST_S, min(self._timeouts.timeout_s or _PROBE_MOST_S, _PROBE_MOST_S))

    async def _ask(self, *words: bytes) -> Any:
        return (await self._ask_all([encoding.bulks(*words)]))[0]

    async def _ask_all(self, requests: list[bytes]) -> list[Any]:
        """Send `requests` in one write and return their replies."""
        if self._transport is None or self._lost.is_set():
            raise self._closed()
        self._waiting = self._loop.create_future()
        self._answers = []
        self._expected = len(requests)
        self._transport.write(b"".join(requests))
        return await self._waiting

    async def _prepare(self) -> None:
        """Log in, identify the server and load the scripts; log a step that fails."""
        self.reached = True
        await self._in_time(self._introduce())
        self._report()

    async def _introduce(self) -> None:
        user, password = self._upstream.user, self._upstream.password
        words = hello(
            b"rlproxy-control",
            user.encode() if user is not None else None,
            password.encode() if password is not None else None,
        )
        greeting = await self._ask(*words)
        if isinstance(greeting, hiredis.ReplyError):
            if _no_room(greeting):
                raise NoRoom()
            why = _refusal(str(greeting), password)
            self.kind = LOGIN
            self.problem = f"{why}; clients that log in themselves are served all the same"
            self.loaded = False
            self._loading.over(False)
            return
        if not isinstance(greeting, dict):
            raise OSError("not a Redis server: it does not answer HELLO as Redis does")
        await self._learn(greeting)
        if greeting.get(b"mode") == b"cluster":
            kind, problem = CLUSTER, _IN_CLUSTER
        else:
            kind, problem = await self._select()
        unloaded = "" if self.loaded else await self._load_first()
        if unloaded and not kind:
            kind, problem = SCRIPTS, unloaded
        self.kind, self.problem = kind, problem

    async def _learn(self, greeting: dict[Any, Any]) -> None:
        """Collect the Facts of the server from its reply to HELLO and from further queries."""
        found = Facts(
            _text(greeting.get(b"server", b"redis")).capitalize(),
            _text(greeting.get(b"version", b"?")),
        )
        found.ignores_empty = await self._ignores_empty()
        answer = await self._ask(b"COMMAND", b"INFO", b"EVALSHA_RO", b"EVAL_RO", b"CL.THROTTLE")
        if isinstance(answer, list) and len(answer) == 3:
            found.has_ro = answer[0] is not None and answer[1] is not None
            found.has_throttle = answer[2] is not None
        self._on_server(found)

    async def _select(self) -> tuple[str, str]:
        """Select the URL's database. Returns kind and text of the problem, both empty if none."""
        if self._upstream.db:
            answer = await self._ask(b"SELECT", b"%d" % self._upstream.db)
            if isinstance(answer, hiredis.ReplyError):
                return DATABASE, f"database {self._upstream.db}: {answer}"
        return "", ""

    async def _ignores_empty(self) -> bool:
        """Return whether the server ignores an empty request.

        A server may close the connection instead. The attempt after that skips the query and
        returns False.
        """
        self._asks_empty = not self._asks_empty
        if not self._asks_empty:
            return False
        answer = (await self._ask_all([_EMPTY + encoding.bulks(b"PING")]))[0]
        self._asks_empty = False
        return not str(answer).startswith("ERR")

    async def _load_first(self) -> str:
        """Load the scripts on a new connection, once no lane has a call under way.

        It waits for that for at most _PING_S seconds.
        """
        self._reload.clear()
        self._loading.connected()
        await _first_of(_PING_S, self._reload, self._lost)
        return await self._load()

    async def _load(self) -> str:
        """Load the scripts. Returns the reason of a refusal, or an empty string."""
        self._reload.clear()
        sources = [script.source for script in self._scripts.values()]
        answers = await self._ask_all(
            [encoding.bulks(b"SCRIPT", b"LOAD", source) for source in sources]
        )
        errors = [str(answer) for answer in answers if isinstance(answer, hiredis.ReplyError)]
        self.loaded = not errors
        self._loading.over(self.loaded)
        if not errors:
            return ""
        why = errors[0].partition(", with args")[0]  # the rest quotes the script
        self._loading.missed = not why.startswith(("NOPERM", "ERR unknown command"))
        return f"SCRIPT LOAD: {why}; scripts go with the first hits instead"

    async def _watch(self) -> None:
        """Load the scripts on request and send PINGs, until the connection is lost."""
        while not self._lost.is_set():
            await _first_of(_KEEP_S, self._lost, self._reload, self._probe)
            try:
                await self._look()
            except OSError:
                if not self._lost.is_set():
                    raise

    async def _look(self) -> None:
        self._circuit.asked(self._loop.time())
        if self._reload.is_set():
            await self._in_time(self._load_again())
        elif self._is_worth_another_try() and not self._probe.is_set():
            self._retry_at = self._loop.time() + _PING_S
            await self._prepare()
            if self.problem.startswith(_WANTS_PASSWORD):
                await self._in_time(self._reopen_without_password())
        else:
            self._probe.clear()
            await self._in_time(self._ping())

    async def _reopen_without_password(self) -> None:
        """Open a new connection if Redis no longer needs a password.

        A connection that Redis accepted while it needed one still gets errors for HELLO, though
        for no other command.
        """
        if not isinstance(await self._ask(b"PING"), hiredis.ReplyError):
            self._reopen()

    def _is_worth_another_try(self) -> bool:
        """Return whether a step that the server refused is due for another try.

        SCRIPT LOAD pauses all lanes, so it is tried again only after a script was missing.
        """
        if not self.problem or self._loop.time() < self._retry_at:
            return False
        return self.kind != SCRIPTS or self._loading.missed

    async def _load_again(self) -> None:
        """Load the scripts on the request of `loading`, and update the problem."""
        unloaded = await self._load()
        if unloaded and not self.kind:
            self.kind, self.problem = SCRIPTS, unloaded
        elif not unloaded and self.kind == SCRIPTS:
            self.kind = self.problem = ""
        self._report()

    async def _ping(self) -> None:
        await self._ask(b"PING")
        now = self._loop.time()
        if self.measures and now - self._measured_at >= _PING_S:
            self._measured_at = now
            found = await self._ask(b"LATENCY", b"HISTOGRAM", *_SCRIPT_CALLS)
            took = await self._ask(b"INFO", b"commandstats")
            self.script_times = _script_times(found, took)


def _no_room(answer: Any) -> bool:
    """Return whether a reply is Redis' refusal of a connection beyond `maxclients`."""
    refused = isinstance(answer, hiredis.ReplyError)
    return refused and str(answer).startswith("ERR max number of clients")


def _foreign(data: bytes) -> str:
    """Name the other protocol that `data` belongs to; empty if it is not recognized."""
    if data.startswith(_ALERT):
        return _SPEAKS_TLS
    return "not a Redis server: it speaks HTTP" if data.startswith(_HTTP) else ""


def _text(found: Any) -> str:
    """Decode a string of a reply; "?" for any other type."""
    return found.decode("utf-8", "replace") if isinstance(found, bytes) else "?"


_SCRIPT_CALLS: Final = (b"evalsha", b"eval", b"evalsha_ro", b"eval_ro")
_USEC: Final = re.compile(rb"cmdstat_(?:evalsha|eval|evalsha_ro|eval_ro):calls=\d+,usec=(\d+)")


def _script_times(found: Any, took: Any) -> Distribution | None:
    """Combine the replies to LATENCY HISTOGRAM and INFO commandstats; None if they do not fit."""
    if not isinstance(found, dict) or not isinstance(took, bytes):
        return None
    try:
        return _distribution(found, took)
    except (AttributeError, TypeError, ValueError):  # the reply has not the shape of Redis'
        return None


def _distribution(found: dict[Any, Any], took: bytes) -> Distribution:
    # Redis counts cumulatively, by upper bound in microseconds; a Distribution counts by class.
    classes = [0] * (len(SCRIPT_TIMES_S) + 1)
    for name in found.values():
        before = 0
        for upper_us, total in sorted(name.get(b"histogram_usec", {}).items()):
            at = bisect_left(SCRIPT_TIMES_S, upper_us / 1_000_000)
            classes[at] += total - before
            before = total
    return Distribution(tuple(classes), sum(map(int, _USEC.findall(took))) / 1_000_000)


async def _first_of(most_s: float, *events: asyncio.Event) -> None:
    """Return when one of `events` is set, at the latest after `most_s` seconds."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=most_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


class Probe:
    """Checks every PROBE_S seconds whether Redis' default user needs a password.

    wanted: whether to check at all, called before each check.
    judged: called with the result. It is not called after a check without a clear result.
    """

    def __init__(
        self, target: Target, wanted: Callable[[], bool], judged: Callable[[bool], None]
    ) -> None:
        self._target = target
        self._wanted = wanted
        self._judged = judged
        self._soon = asyncio.Event()
        self.settled = asyncio.Event()  # set after the first check, whatever its result

    def soon(self) -> None:
        """Check again now rather than at the next regular time."""
        self._soon.set()

    async def run(self) -> None:
        """Check at regular times, until cancelled."""
        while True:
            self._soon.clear()
            needs = await self._ask() if self._wanted() else None
            if needs is not None:
                self._judged(needs)
            self.settled.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PROBE_S):
                    await self._soon.wait()

    async def _ask(self) -> bool | None:
        line: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        transport: asyncio.Transport | None = None
        try:
            transport = await self._target.connect(lambda: _FirstLine(line))
            transport.write(encoding.bulks(b"PING"))
            async with asyncio.timeout(_PING_S):
                return needs_password(await line)
        except OSError:  # includes TimeoutError
            return None
        finally:
            if transport is not None:
                transport.abort()


def needs_password(line: bytes) -> bool | None:
    """Judge by the reply to a PING without AUTH whether the default user needs a password.

    line: the first line of the reply.
    Returns None if the reply allows no conclusion.
    """
    word = line.partition(b" ")[0].strip()
    if word == b"-NOAUTH":
        return True
    return False if word in _LET_IN else None


# Redis checks the password before it sends any of these.
_LET_IN: Final = (b"+PONG", b"-NOPERM", b"-LOADING", b"-BUSY", b"-MASTERDOWN", b"-MISCONF")


class _FirstLine(asyncio.Protocol):
    """Sets `line` to the first line received; empty if the connection ends before that."""

    def __init__(self, line: asyncio.Future[bytes]) -> None:
        self._line = line
        self._got = b""

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        if not self._line.done():
            self._got += data
            if b"\n" in self._got or len(self._got) > MAX_FIRST_LINE:
                self._line.set_result(self._got.partition(b"\n")[0])

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        if not self._line.done():
            self._line.set_result(b"")
