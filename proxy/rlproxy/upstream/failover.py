"""Sentinel as upstream: which server is the master now, and the move of all connections after a
failover.

    each Sentinel ──+switch-master──┐
    -READONLY, a failed connection ─┼─> look: query all ─> choose() ─> ROLE ─> switch ─> on_master()
    every 5 to 10 s ────────────────┘

These messages and failures only trigger a look. The decision depends on the replies of the
Sentinels (see `sentinel`) and on the server's reply to ROLE.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from rlproxy.config.urls import Address, Upstream
from rlproxy.net.tls_contexts import ClientSide
from rlproxy.session.circuit_breaker import Backoff
from rlproxy.upstream.connector import Target, reason
from rlproxy.upstream.sentinel import (
    ANYTHING,
    DEPOSED,
    NOBODY,
    REPLICA,
    UNTOLD,
    Answer,
    Claim,
    Master,
    Notice,
    Pace,
    accepts,
    answer,
    choose,
    role,
    unanswered,
)

if TYPE_CHECKING:
    from redis.asyncio.connection import Connection

log = logging.getLogger("rlproxy")

ASK_S: Final = 1.0  # reply limit of a Sentinel, and of a server for ROLE, in seconds
RETRY_FIRST_S: Final = 0.1
RETRY_MOST_S: Final = 5.0
LISTEN_S: Final = 10.0  # seconds of silence before a subscription is checked with a PING
LASTS_S: Final = 5.0  # seconds after which a subscription counts as stable: the backoff is reset
SWITCHED: Final = "+switch-master"

Tls = Callable[[], ClientSide | None]  # called for each connection, since certificates can change


class MasterTarget(Target):
    """Opens connections to the present master.

    A connection that is being opened when the master moves is opened to the new master instead.

    name: the master's name in errors and logs until its address is known.
    """

    __slots__ = ("_moved", "_unknown", "on_failure")

    def __init__(self, name: str, timeout_s: float, tls: ClientSide | None = None) -> None:
        super().__init__(Address(), timeout_s, tls)
        self.where = name
        self._unknown = "not asked for yet"  # reason why no master is known; empty if one is
        self._moved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.on_failure: Callable[[], None] | None = None  # called when a connection fails to open

    def move(self, address: Address) -> None:
        """Open connections to `address` from now on."""
        self._address = address
        self.where = str(address)
        self._unknown = ""
        moved, self._moved = self._moved, asyncio.get_running_loop().create_future()
        moved.set_result(None)

    def unknown(self, why: str) -> None:
        """Let connect() fail with the reason `why`, because no master is known."""
        self._unknown = why

    async def connect(self, protocol: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        """Open a connection to the master. Raises OSError; see Target.connect()."""
        while True:
            if self._unknown:
                raise OSError(self._unknown)
            moved = self._moved
            gate = _Gate()
            # A protocol must not see a connection that is dropped again because the master moved.
            # So the gate buffers the first bytes until the connection is certain to be used.
            opening = asyncio.ensure_future(super().connect(lambda gate=gate: gate))  # type: ignore[misc]
            try:
                await asyncio.wait((opening, moved), return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                _drop(opening)
                raise
            if moved.done():
                _drop(opening)
                continue
            try:
                transport = opening.result()
                if gate.lost:
                    raise OSError("connection closed by the server")
            except OSError:
                if self.on_failure is not None:
                    self.on_failure()
                raise
            made = protocol()
            transport.set_protocol(made)
            made.connection_made(transport)
            for data in gate.data:
                made.data_received(data)
            return transport


class _Gate(asyncio.Protocol):
    """Buffers the input of a new connection until its protocol is made."""

    def __init__(self) -> None:
        self.data: list[bytes] = []
        self.lost = False

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self.data.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self.lost = True


def _drop(opening: asyncio.Future[asyncio.Transport]) -> None:
    """Cancel `opening`, and abort the connection if it is open already."""

    def close(done: asyncio.Future[asyncio.Transport]) -> None:
        if not done.cancelled() and done.exception() is None:
            done.result().abort()

    opening.add_done_callback(close)
    opening.cancel()


class Links:
    """Opens connections with redis-py, which is imported only if Sentinels are configured."""

    def __init__(self, tls: Tls) -> None:
        from redis.asyncio import connection, retry
        from redis.backoff import NoBackoff

        class Link(connection.Connection):
            def _connection_arguments(self) -> dict[str, Any]:
                arguments = dict(super()._connection_arguments())
                side = tls()
                if side is not None:
                    arguments["ssl"] = side.context
                    arguments["server_hostname"] = side.name or self.host
                return arguments

        self._make = Link
        self._never = retry.Retry(NoBackoff(), 0)

    async def open(self, address: Address, user: str | None, password: str | None) -> Connection:
        """Open a connection, and authenticate it if `password` is not None.

        Raises the exceptions of redis-py and OSError; failure() describes them.
        """
        made = self._make(
            host=address.host,
            port=address.port,
            # AUTH with a password alone is an error if the default user has none.
            username=user or "default" if password is not None else None,
            password=password,
            protocol=2,
            socket_timeout=ASK_S,
            socket_connect_timeout=ASK_S,
            retry=self._never,
        )
        try:
            await made.connect()  # type: ignore[no-untyped-call]
        except BaseException:
            await close(made)
            raise
        return made


async def close(link: Connection | None) -> None:
    """Close `link`, which may be closed already."""
    if link is not None:
        with contextlib.suppress(Exception):
            await link.disconnect(nowait=True)


def failure(error: BaseException, has_password: bool, option: str) -> tuple[str, bool]:
    """Describe a failed query.

    has_password: whether the URL contains a password.
    option: the setting in which the password belongs.
    Returns the description, and whether a server answered all the same.
    """
    from redis import exceptions

    busy = (exceptions.ResponseError, exceptions.BusyLoadingError)
    if isinstance(error, exceptions.AuthenticationError) and has_password:
        return f"refuses the user or password of the URL ({option})", True
    if isinstance(error, exceptions.AuthenticationError):
        return f"wants a password, and the URL has none ({option})", True
    if isinstance(error, busy) or str(error).startswith("max number of clients"):
        return f"answers {error}", True
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    late = isinstance(error, (TimeoutError, exceptions.TimeoutError))
    if isinstance(cause, OSError) and not late:
        return reason(cause), False
    if late:
        return "no answer", False
    if isinstance(error, exceptions.ConnectionError):
        return "connection closed", False
    return f"{type(error).__name__}: {error}", False


class _Sentinel:
    """One Sentinel, with one connection for queries and another one for its subscription."""

    def __init__(self, links: Links, address: Address, upstream: Upstream) -> None:
        assert upstream.sentinels is not None
        self.address = address
        self._links = links
        self._of = upstream.sentinels
        self._link: Connection | None = None
        self._backoff = Backoff(RETRY_FIRST_S, RETRY_MOST_S, random.random)
        self._retry_at = 0.0
        self._why = ""

    async def _open(self) -> Connection:
        return await self._links.open(self.address, self._of.user, self._of.password)

    def _failure(self, error: BaseException) -> str:
        return failure(error, self._of.password is not None, "sentinel_password")[0]

    async def ask(self) -> Answer:
        """Query which server is the master. Never raises.

        The connection stays open between queries. After a failure, the same failure is returned
        until the backoff allows another attempt.
        """
        if self._link is None and time.monotonic() < self._retry_at:
            return Answer(why=self._why)
        fresh = self._link is None
        while True:
            try:
                async with asyncio.timeout(ASK_S):
                    found = await self._asked()
            except asyncio.CancelledError:
                await self.close()
                raise
            except Exception as error:
                await self.close()
                if not fresh:  # the Sentinel may have restarted: try once on a new connection
                    fresh = True
                    continue
                self._why = self._failure(error)
                self._retry_at = time.monotonic() + self._backoff.pause_s()
                return Answer(why=self._why)
            self._backoff.reset()
            return found

    async def _asked(self) -> Answer:
        if self._link is None:
            self._link = await self._open()
        link, name = self._link, self._of.name
        # In one write, so that this Sentinel's state does not change between the two commands.
        words = [("SENTINEL", "GET-MASTER-ADDR-BY-NAME", name), ("SENTINEL", "MASTER", name)]
        await link.send_packed_command(link.pack_commands(words))
        where = await _reply(link)
        facts = await _reply(link)
        return answer(name, where, facts)

    async def listen(self, heard: Callable[[], None]) -> None:
        """Call `heard` whenever the master may have changed. Runs until cancelled."""
        backoff = Backoff(RETRY_FIRST_S, RETRY_MOST_S, random.random)
        while True:
            link: Connection | None = None
            began = time.monotonic()
            try:
                link = await self._open()
                await link.send_command("SUBSCRIBE", SWITCHED)
                await link.read_response()
                heard()  # the master may have changed before the subscription began
                await self._follow(link, heard)
            except Exception as error:
                log.debug("subscription at Sentinel %s: %s", self.address, error)
            finally:
                await close(link)
            if time.monotonic() - began >= LASTS_S:
                backoff.reset()
            if link is not None:
                heard()  # the failure that ended this connection may concern the master, too
            await asyncio.sleep(backoff.pause_s())

    async def _follow(self, link: Connection, heard: Callable[[], None]) -> None:
        """Read messages until the connection is silent and does not answer a PING."""
        tried = False
        while True:
            message = await link.read_response(timeout=ASK_S if tried else LISTEN_S)
            if message is None:
                if tried:
                    return
                await link.send_command("PING")
            tried = message is None
            if isinstance(message, list) and len(message) == 3 and message[0] == b"message":
                if message[2].split(b" ", 1)[0] != self._of.name.encode():
                    continue  # the message is about another master
                heard()

    async def close(self) -> None:
        """Close the connection for queries."""
        link, self._link = self._link, None
        await close(link)


async def _end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel all of `tasks`, and wait until they have ended."""
    # wait_for(), which redis-py uses, sometimes loses a cancellation on Python 3.11: repeat it.
    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=0.1)


async def _reply(link: Connection) -> object:
    """Read the next reply. Returns an error reply as an exception."""
    from redis.exceptions import ResponseError

    try:
        return await link.read_response(disconnect_on_error=False)
    except ResponseError as error:
        return error


class Failover:
    """Follows the master of `upstream.sentinels`.

    target: moved to each new master.
    on_master: called after each move; it cuts the connections to the former master.
    tls: called for the TLS settings of each connection to a Sentinel or a server.
    """

    def __init__(
        self,
        upstream: Upstream,
        target: MasterTarget,
        on_master: Callable[[], None],
        tls: Tls,
    ) -> None:
        assert upstream.sentinels is not None
        self._upstream = upstream
        self._name = upstream.sentinels.name
        self._target = target
        self._on_master = on_master
        self._links = Links(tls)
        self._sentinels = [
            _Sentinel(self._links, address, upstream) for address in upstream.sentinels.addresses
        ]
        self._pace = Pace(time.monotonic, random.random)
        self._notice = Notice(time.monotonic)
        self._why_unknown = Notice(time.monotonic)
        self._wake = asyncio.Event()
        self._waking: asyncio.TimerHandle | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.settled = asyncio.Event()  # set after the first look
        self.master: Master | None = None
        target.on_failure = self.suspect

    def suspect(self) -> None:
        """Look soon, because the present master does not act as one."""
        pause_s = self._pace.suspect()
        if not pause_s:
            self._wake.set()
        elif self._waking is None:
            self._waking = asyncio.get_running_loop().call_later(pause_s, self._woken)

    def _woken(self) -> None:
        self._waking = None
        self._wake.set()

    def start(self) -> None:
        """Start the tasks that follow the master."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(each.listen(self._wake.set)) for each in self._sentinels]
        self._tasks.append(loop.create_task(self._run()))

    async def stop(self) -> None:
        """End these tasks and close the connections to the Sentinels."""
        await _end(self._tasks)
        if self._waking is not None:
            self._waking.cancel()
        for each in self._sentinels:
            await each.close()

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            well = await self._look()
            self.settled.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pace.pause_s(well)):
                    await self._wake.wait()

    async def _look(self) -> bool:
        """Determine the master and switch to it. Returns whether all is well. Never raises."""
        try:
            return await self._looked()
        except Exception as error:  # an exception would end the task that follows the master
            if self._notice.news(f"{type(error).__name__}: {error}"):
                log.error("cannot ask the Sentinels: %r; trying on", error)
            return False

    async def _looked(self) -> bool:
        answers, claim = await self._ask()
        refused = ""
        if claim is not None:
            taken, refused = await self._judge(claim)
            if taken:
                self._switch(claim)
        all_in = None not in answers
        if all_in:
            self._tell(answers, refused)
        return self.master is not None and claim is not None and not refused and all_in

    async def _ask(self) -> tuple[list[Answer | None], Claim | None]:
        """Query all Sentinels at once, until their answers allow a decision.

        A claim for another server than the present master ends the wait for the other Sentinels.
        Returns one answer for each Sentinel, None for an outstanding one, and the claim.
        """
        loop = asyncio.get_running_loop()
        asked = {loop.create_task(each.ask()): at for at, each in enumerate(self._sentinels)}
        pending = set(asked)
        answers: list[Answer | None] = [None] * len(asked)
        claim: Claim | None = None
        try:
            while pending and (claim is None or self._confirms(claim)):
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    answers[asked[task]] = task.result()
                claim = choose(answers, self.master)
        finally:
            await _end(pending)
        return answers, claim

    def _confirms(self, claim: Claim) -> bool:
        return self.master is not None and claim.address == self.master.address

    async def _judge(self, claim: Claim) -> tuple[bool, str]:
        """Decide whether the server of `claim` becomes the master.

        Returns the decision, and the reason of a refusal. The reason is empty if a Sentinel is
        merely behind.
        """
        if self._confirms(claim):
            return True, ""
        former = UNTOLD
        if claim.needs != ANYTHING and self.master is not None:
            former, _ = await self._role(self.master.address)
        itself, why = await self._role(claim.address)
        if accepts(claim, itself, former):
            return True, ""
        if claim.needs == DEPOSED:
            return False, ""  # that Sentinel has not yet received the news of the present master
        named = f"{claim.address}, which the Sentinels name,"
        if itself == NOBODY:
            return False, f"{named} cannot be reached: {why}"
        what = "is a replica" if itself == REPLICA else "is not the only master"
        return False, f"{named} {what}"

    async def _role(self, address: Address) -> tuple[str, str]:
        """Query the role of the server at `address`.

        Returns one of MASTER, REPLICA, UNTOLD and NOBODY, and the reason of the last two.
        """
        upstream = self._upstream
        link: Connection | None = None
        try:
            async with asyncio.timeout(ASK_S):
                link = await self._links.open(address, upstream.user, upstream.password)
                await link.send_command("ROLE")
                return role(await link.read_response()), ""
        except Exception as error:
            why, there = failure(error, upstream.password is not None, "--upstream")
            return UNTOLD if there else NOBODY, why
        finally:
            await close(link)

    def _switch(self, claim: Claim) -> None:
        """Make the server of `claim` the master."""
        former, self.master = self.master, Master(claim.address, claim.epoch)
        if former is not None and former.address == claim.address:
            return
        self._target.move(claim.address)
        if self.settled.is_set():
            was = f" (was {former.address})" if former is not None else ""
            log.info("master %s is now %s%s", self._name, claim.address, was)
        self._on_master()

    def _tell(self, answers: Sequence[Answer | None], refused: str) -> None:
        """Log a change in the state of the Sentinels."""
        asked = [(each.address, one) for each, one in zip(self._sentinels, answers, strict=True)]
        missing = unanswered(asked)
        if self.master is None:
            why = f"no master known as {self._name}: {refused or missing}"
            if self._why_unknown.news(why):
                self._target.unknown(why)  # the control connection logs it
            return
        told = refused
        silent = sum(1 for _, one in asked if one is None or one.address is None)
        if silent:
            told = f"{silent} of {len(asked)} Sentinels of {self._name} fail: {missing}"
        if self._notice.news(told):
            if told:
                log.warning("%s; the master stays %s", told, self.master.address)
            else:
                log.info("all Sentinels of %s answer again", self._name)
