"""Connections to Redis: how one is opened, a client's private one, and the proxy's own control
connection. Knows nothing of what travels on them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Callable
from typing import Any, Final, cast

import hiredis

from . import replies
from .config import Address, Upstream
from .scripts import Script
from .tls import ClientSide, TlsFailure
from .tlsstream import TlsStream

log = logging.getLogger("rlproxy")

_RETRY_FIRST_S: Final = 0.05
_RETRY_MOST_S: Final = 1.0
_PING_S: Final = 5.0
RELOAD_S: Final = 1.0  # lanes mend themselves: scripts that come in between would change the order


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
            raise OSError(f"no {awaited[-1]} within {self._timeout_s:g} s") from None
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
    awaited.append("TLS handshake")
    try:
        await done
    except BaseException as error:
        if not isinstance(error, TlsFailure):  # (who fails by itself says why, and closes)
            transport.abort()
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


def hello(name: bytes, user: bytes | None, password: bytes | None) -> list[bytes]:
    """The words with which a connection of our own begins; no AUTH without a password."""
    auth = [b"AUTH", user or b"default", password] if password is not None else []
    return [b"HELLO", b"3", *auth, b"SETNAME", name]


def _refusal(text: str) -> str:
    """Why the control connection may not work, in a few words."""
    if text.startswith("NOAUTH"):
        return "it wants a password, and the URL has none"
    if text.startswith("WRONGPASS"):
        return "it refuses the user or password of the URL"
    return text


class Facts:
    """What the control connection has learnt of the server."""

    __slots__ = ("has_ro", "has_throttle", "name", "timeout_s", "version", "wait_by_publish")

    def __init__(self, name: str, version: str) -> None:
        self.name = name
        self.version = version
        self.timeout_s = 0  # after which it closes a silent connection; 0: never
        found = re.match(r"(\d+)\.(\d+)", version)
        numbers = (int(found[1]), int(found[2])) if found else (0, 0)
        # WAIT speaks of what its own connection propagated; before, of all that was before it
        self.wait_by_publish = name != "Redis" or numbers >= (7, 2)
        self.has_ro = False  # it knows EVAL_RO and EVALSHA_RO
        self.has_throttle = False  # it has a CL.THROTTLE of its own


class Control(asyncio.Protocol):
    """The proxy's own connection: tells who the server is and loads the scripts on it, again
    after every reconnect. Runs until cancelled; a server that is away is waited for.
    """

    def __init__(
        self,
        target: Target,
        upstream: Upstream,
        scripts: dict[str, Script],
        on_server: Callable[[Facts], None],
    ) -> None:
        self._target = target
        self._upstream = upstream
        self._scripts = scripts
        self._on_server = on_server
        self._reader = hiredis.Reader()
        self._waiting: asyncio.Future[Any] | None = None
        self._transport: asyncio.Transport | None = None
        self._lost = asyncio.Event()
        self._reload = asyncio.Event()
        self.settled = asyncio.Event()  # the first attempt is over, well or not
        self._ping_s = _PING_S
        self.reached = False  # a server was there at the latest attempt
        self.problem = ""  # why the server can't be used fully; empty if it can

    # -- protocol ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self._reader = hiredis.Reader()
        self._lost.clear()

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self._reader.feed(data)
        try:
            reply = self._reader.gets()
        except hiredis.ProtocolError as error:
            self._fail(OSError(f"not a Redis server: {error}"))
            if self._transport is not None:
                self._transport.abort()
            return
        if reply is not False and self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._lost.set()
        why = exc if isinstance(exc, TlsFailure) else OSError("connection closed by the server")
        self._fail(why)

    def _fail(self, error: OSError) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)

    # -- work -------------------------------------------------------------------------------------

    def reload(self) -> None:
        """A script is missing on the server: load them again soon."""
        self._reload.set()

    async def run(self) -> None:
        """Connect, prepare, watch; for ever."""
        pause_s = _RETRY_FIRST_S
        warned = ""
        while True:
            try:
                self._transport = await self._target.connect(lambda: self)
                async with asyncio.timeout(_PING_S):
                    await self._prepare()
                if self.problem:
                    log.warning("%s: %s", self._target.where, self.problem)
                elif warned:
                    log.warning("Redis at %s is back", self._target.where)
                warned = ""
                pause_s = _RETRY_FIRST_S
                self.settled.set()
                await self._watch()
                why = "connection lost"
            except OSError as error:
                why = reason(error)
            finally:
                if self._transport is not None:
                    self._transport.abort()
                    self._transport = None
            if why != warned:
                log.warning("cannot reach Redis at %s: %s; trying on", self._target.where, why)
                warned = why
            self.problem = why
            self.reached = False
            self.settled.set()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _RETRY_MOST_S)

    async def _ask(self, *words: bytes) -> Any:
        if self._transport is None or self._lost.is_set():
            raise OSError("connection closed by the server")
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(replies.bulks(*words))
        return await self._waiting

    async def _prepare(self) -> None:
        self.problem = ""
        self.reached = True
        user, password = self._upstream.user, self._upstream.password
        words = hello(
            b"rlproxy-control",
            user.encode() if user is not None else None,
            password.encode() if password is not None else None,
        )
        greeting = await self._ask(*words)
        if isinstance(greeting, hiredis.ReplyError):
            why = _refusal(str(greeting))
            self.problem = f"{why}; clients that log in themselves are served all the same"
            return
        facts = greeting if isinstance(greeting, dict) else {}
        found = Facts(
            facts.get(b"server", b"redis").decode().capitalize(),
            facts.get(b"version", b"?").decode(),
        )
        answer = await self._ask(b"CONFIG", b"GET", b"timeout")
        if isinstance(answer, dict):
            text = answer.get(b"timeout", b"0")
            found.timeout_s = int(text) if text.isdigit() else 0
        answer = await self._ask(b"COMMAND", b"INFO", b"EVALSHA_RO", b"CL.THROTTLE")
        if isinstance(answer, list) and len(answer) == 2:
            found.has_ro = answer[0] is not None
            found.has_throttle = answer[1] is not None
        # A server that closes idle connections must not take this one for idle.
        self._ping_s = min(_PING_S, found.timeout_s / 2) if found.timeout_s else _PING_S
        self._on_server(found)
        if self._upstream.db:
            answer = await self._ask(b"SELECT", b"%d" % self._upstream.db)
            if isinstance(answer, hiredis.ReplyError):
                self.problem = f"database {self._upstream.db}: {answer}"
        await self._load()

    async def _load(self) -> None:
        self._reload.clear()
        for script in self._scripts.values():
            answer = await self._ask(b"SCRIPT", b"LOAD", script.source)
            if isinstance(answer, hiredis.ReplyError):
                self.problem = f"SCRIPT LOAD: {answer}; scripts go with the first hits instead"
                return

    async def _watch(self) -> None:
        """Until the connection is lost: load the scripts when asked, and see that it lives."""
        while not self._lost.is_set():
            waits = [
                asyncio.ensure_future(self._lost.wait()),
                asyncio.ensure_future(self._reload.wait()),
            ]
            try:
                await asyncio.wait(waits, timeout=self._ping_s, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
            if self._reload.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(RELOAD_S):
                        await self._lost.wait()
            if self._lost.is_set():
                return
            async with asyncio.timeout(_PING_S):
                if self._reload.is_set():
                    await self._load()
                else:
                    await self._ask(b"PING")
