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

from rlproxy.config.config import Address, Upstream
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
_PING_S: Final = 5.0  # for an answer to the control connection, and between two measurements
_WANTS_PASSWORD: Final = "it wants a password, and the URL has none"
_KEEP_S: Final = 0.5  # between two PINGs: Redis may close connections that are silent for 1 s
_EMPTY: Final = b"*0\r\n"  # a request without a command
MAX_FIRST_LINE: Final = 4096
PROBE_S: Final = 2.0  # how old may be what is known of the default user's password
_PROBE_LEAST_S: Final = 0.1  # how long a PING may take while it is doubtful whether Redis answers:
_PROBE_MOST_S: Final = 1.0  # as long as a hit, within these
_STEP_S: Final = 0.05
_HTTP: Final = (b"HTTP/", b"<")  # how an answer to what is no request of HTTP begins
_HANDSHAKE: Final = "TLS handshake"
_ALERT: Final = b"\x15\x03"  # how TLS answers what is no TLS
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
    """Opens connections to one address. `where` names it in errors and logs; `tls` holds for those
    that are opened from now on.
    """

    __slots__ = ("_address", "_timeout_s", "tls", "where")

    def __init__(self, address: Address, timeout_s: float, tls: ClientSide | None = None) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self.tls = tls
        self.where = str(address)

    async def connect(self, protocol: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        """A new connection with a protocol of its own. Raises OSError with a reason to show."""
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
    """A new TLS connection; what is waited for is added to `awaited`. Raises OSError with a reason
    to show.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    # (who is cancelled does not look at how it failed)
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
        if not isinstance(error, TlsFailure):  # (who fails by itself says why, and closes)
            transport.abort()
        elif str(error) == NO_TLS:
            raise TlsFailure(f"{NO_TLS}{_SPEAKS_NONE}") from None
        raise
    return cast("asyncio.Transport", stream)


def reason(error: OSError) -> str:
    """What to tell a person of a failed connection."""
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, TimeoutError):
        return "no answer"
    if isinstance(error, FileNotFoundError):
        return "no such socket"
    return error.strerror or str(error) or type(error).__name__


class NoRoom(OSError):  # noqa: N818
    """Redis has as many clients as its `maxclients` allows."""

    def __init__(self) -> None:
        super().__init__("max number of clients reached")


def lacks(error: OSError) -> bool:
    """Whether a connection failed for want of something on this side."""
    return error.errno in (
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOBUFS,
        errno.ENOMEM,
        errno.EADDRNOTAVAIL,
    )


def hello(name: bytes, user: bytes | None, password: bytes | None) -> list[bytes]:
    """The words with which a connection of our own begins; no AUTH without a password."""
    auth = [b"AUTH", user or b"default", password] if password is not None else []
    return [b"HELLO", b"3", *auth, b"SETNAME", name]


def _refusal(text: str, password: str | None) -> str:
    """Why the control connection may not work, in a few words, without its password."""
    if text.startswith("ERR unknown command"):  # which it quotes, with its arguments
        return "it does not know HELLO (a server before Redis 6, or without that command)"
    if text.startswith("NOAUTH"):
        return _WANTS_PASSWORD
    if text.startswith("WRONGPASS"):
        return "it refuses the user or password of the URL"
    return text.replace(password, "***") if password else text


class Facts:
    """What the control connection has learnt of the server."""

    __slots__ = ("has_ro", "has_throttle", "ignores_empty", "name", "version")

    def __init__(self, name: str, version: str) -> None:
        self.name = name
        self.version = version
        self.ignores_empty = True  # it replies nothing to an empty request
        self.has_ro = False  # it has both of EVAL_RO and EVALSHA_RO
        self.has_throttle = False  # it has a CL.THROTTLE of its own


class Control(asyncio.Protocol):
    """The control connection: learns what the server is and loads the scripts on it, again after
    every reconnect and when `script_loading` requests it. It reconnects until it is cancelled.
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
        self._answered = False  # anything came on this connection
        self._lost = asyncio.Event()
        self._reload = asyncio.Event()
        self._moved = asyncio.Event()
        self._probe = asyncio.Event()
        self.settled = asyncio.Event()  # the first attempt is over, well or not
        self._retry_at = 0.0  # when what was refused is tried again
        self._logged = ""  # the problem that was logged last
        self._unexplained = False  # the connection was lost, and the log has no line on that
        self.warned = False  # the present outage was logged here
        self._measured_at = 0.0
        self._asks_empty = False  # whether an empty request was sent that is not answered yet
        self.reached = False  # a server was there at the latest attempt
        self.kind = ""  # of the problem, see metrics.PROBLEMS
        self.problem = ""  # why the server can't be used fully; empty if it can
        self.loaded = False  # the scripts are there
        self.measures = False  # whether to ask how long Redis takes for scripts, too
        self.script_times: Distribution | None = None  # what it says of that

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
        # Redis refuses a connection for want of room unasked, and closes it. The reset by which it
        # answers HELLO then may overtake the refusal.
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
        """Load the scripts now; see Loading."""
        self._reload.set()

    def move(self) -> None:
        """The target has moved: connect there, at once."""
        self._loading.lost()
        self._reopen()

    def _reopen(self) -> None:
        """Replace the connection by a new one, at once."""
        self._moved.set()
        if self._transport is not None:
            self._transport.abort()

    def probe(self) -> None:
        """It is doubtful whether Redis answers: ask it now."""
        self._probe.set()

    async def run(self) -> None:
        """Connect, prepare, watch; for ever."""
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
        """The server can't be used. A connection that can't be opened is logged by the circuit."""
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
        """Log a problem that is new, or that the last one is over. (At the start a node of a
        Cluster is the error that ends the proxy.)
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
        """Do `work`, for which Redis may take `most_s` seconds. Raises TimeoutError.

        Clients' hits may find meanwhile that Redis does not answer: then a connection that may be
        dead is given up soon, for another one to be tried.
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
        """The replies to these requests, which are sent in one write."""
        if self._transport is None or self._lost.is_set():
            raise self._closed()
        self._waiting = self._loop.create_future()
        self._answers = []
        self._expected = len(requests)
        self._transport.write(b"".join(requests))
        return await self._waiting

    async def _prepare(self) -> None:
        """Log in, learn what the server is, load the scripts; what fails is the problem."""
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
        """What the server is, from its answer to HELLO and what else it answers."""
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
        """Kind and text of the problem with the URL's database; empty if there is none."""
        if self._upstream.db:
            answer = await self._ask(b"SELECT", b"%d" % self._upstream.db)
            if isinstance(answer, hiredis.ReplyError):
                return DATABASE, f"database {self._upstream.db}: {answer}"
        return "", ""

    async def _ignores_empty(self) -> bool:
        """Whether the server replies nothing to an empty request, and goes on. A server that closes
        the connection instead is not asked at the next one.
        """
        self._asks_empty = not self._asks_empty
        if not self._asks_empty:
            return False
        answer = (await self._ask_all([_EMPTY + encoding.bulks(b"PING")]))[0]
        self._asks_empty = False
        return not str(answer).startswith("ERR")

    async def _load_first(self) -> str:
        """Load the scripts though no lane wants them, once no lane has a call under way."""
        self._reload.clear()
        self._loading.connected()
        await _first_of(_PING_S, self._reload, self._lost)
        return await self._load()

    async def _load(self) -> str:
        """Load the scripts. Returns why that is refused, empty if it is not."""
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
        why = errors[0].partition(", with args")[0]  # (which quotes the script)
        self._loading.missed = not why.startswith(("NOPERM", "ERR unknown command"))
        return f"SCRIPT LOAD: {why}; scripts go with the first hits instead"

    async def _watch(self) -> None:
        """Until the connection is lost: load the scripts when asked, and see that it lives."""
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
        """Open a new connection if Redis no longer wants a password. On a connection that it
        accepted while it wanted one, it goes on refusing HELLO, and no other command.
        """
        if not isinstance(await self._ask(b"PING"), hiredis.ReplyError):
            self._reopen()

    def _is_worth_another_try(self) -> bool:
        """Whether what the server refused may be allowed by now. (Another SCRIPT LOAD holds all
        lanes for a moment, so it follows only where a script was missed.)
        """
        if not self.problem or self._loop.time() < self._retry_at:
            return False
        return self.kind != SCRIPTS or self._loading.missed

    async def _load_again(self) -> None:
        """Load the scripts, which a lane has missed."""
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
    """Whether a reply is Redis' refusal of a connection beyond `maxclients`."""
    refused = isinstance(answer, hiredis.ReplyError)
    return refused and str(answer).startswith("ERR max number of clients")


def _foreign(data: bytes) -> str:
    """What sends `data` instead of a reply, as far as that is known."""
    if data.startswith(_ALERT):
        return _SPEAKS_TLS
    return "not a Redis server: it speaks HTTP" if data.startswith(_HTTP) else ""


def _text(found: Any) -> str:
    """A string of a reply; "?" if it is none."""
    return found.decode("utf-8", "replace") if isinstance(found, bytes) else "?"


_SCRIPT_CALLS: Final = (b"evalsha", b"eval", b"evalsha_ro", b"eval_ro")
_USEC: Final = re.compile(rb"cmdstat_(?:evalsha|eval|evalsha_ro|eval_ro):calls=\d+,usec=(\d+)")


def _script_times(found: Any, took: Any) -> Distribution | None:
    """What LATENCY HISTOGRAM and INFO commandstats say of scripts; None if they don't."""
    if not isinstance(found, dict) or not isinstance(took, bytes):
        return None
    try:
        return _distribution(found, took)
    except (AttributeError, TypeError, ValueError):  # (whoever said that is no Redis)
        return None


def _distribution(found: dict[Any, Any], took: bytes) -> Distribution:
    classes = [0] * (len(SCRIPT_TIMES_S) + 1)
    for name in found.values():
        before = 0
        for upper_us, total in sorted(name.get(b"histogram_usec", {}).items()):
            at = bisect_left(SCRIPT_TIMES_S, upper_us / 1_000_000)
            classes[at] += total - before
            before = total
    return Distribution(tuple(classes), sum(map(int, _USEC.findall(took))) / 1_000_000)


async def _first_of(most_s: float, *events: asyncio.Event) -> None:
    """Return when one of them is set, or after so many seconds."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=most_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


class Probe:
    """Finds out, every few seconds, whether a client that shows no password is let in by Redis, and
    tells it to `judged`. Runs until cancelled; an answer that tells nothing changes nothing.
    """

    def __init__(
        self, target: Target, wanted: Callable[[], bool], judged: Callable[[bool], None]
    ) -> None:
        self._target = target
        self._wanted = wanted
        self._judged = judged
        self._soon = asyncio.Event()
        self.settled = asyncio.Event()  # the first attempt is over, well or not

    def soon(self) -> None:
        """There is reason to look again now."""
        self._soon.set()

    async def run(self) -> None:
        """Look again and again."""
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
        except OSError:  # (a TimeoutError is one)
            return None
        finally:
            if transport is not None:
                transport.abort()


def needs_password(line: bytes) -> bool | None:
    """What Redis' answer to a PING without any AUTH tells of it; None: nothing."""
    word = line.partition(b" ")[0].strip()
    if word == b"-NOAUTH":
        return True
    return False if word in _LET_IN else None


# (the password is asked for before any of these is said)
_LET_IN: Final = (b"+PONG", b"-NOPERM", b"-LOADING", b"-BUSY", b"-MASTERDOWN", b"-MISCONF")


class _FirstLine(asyncio.Protocol):
    """The first line that comes; empty if none does."""

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
