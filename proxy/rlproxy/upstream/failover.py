"""Sentinel as upstream: it follows the master, and moves all connections after a failover.

    each Sentinel ──+switch-master──┐
    -READONLY, a failed connection ─┼─> look: query all ─> choose() ─> ROLE ─> switch ─> on_master()
    every 2 s ──────────────────────┘

These messages and failures only trigger a look. The decision depends on the replies of the
Sentinels (see `sentinel`) and on the server's reply to ROLE.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any, Final

import hiredis

from rlproxy.config.urls import Address, Sentinels, Upstream
from rlproxy.observability.log_throttle import StateThrottle
from rlproxy.observability.logs import log
from rlproxy.upstream import sentinel
from rlproxy.upstream.backoff import Backoff, pause
from rlproxy.upstream.connector import Target, reason
from rlproxy.upstream.master_target import MasterTarget
from rlproxy.upstream.query_connection import NoRoom, QueryConnection, opened
from rlproxy.upstream.sentinel import Answer, Claim

LOOK_S: Final = 2.0  # pause between two looks, and before a new subscription, in seconds
LEAST_S: Final = 0.1  # pause before a look that is due at once, in seconds
# Limit of a connection to a Sentinel, or to a server for ROLE, and of each reply, in seconds.
REPLY_S: Final = 1.0
RETRY_FIRST_S: Final = 0.1
MAX_RETRY_S: Final = 5.0
KEEPALIVE_S: Final = 10  # seconds of silence before TCP checks a connection


class Refused(OSError):  # noqa: N818
    """A server replied with an error that leaves the query unanswered."""


class Login:
    """Opens query connections that are authenticated with the credentials of the URL.

    option: the setting in which the password belongs, for errors.
    target: has the present TLS settings.
    """

    def __init__(self, user: str | None, password: str | None, option: str, target: Target) -> None:
        # AUTH with a password alone is an error if the default user has none.
        self._words = (user or "default", password) if password is not None else None
        self._option = option
        self._target = target

    @contextlib.asynccontextmanager
    async def opened(self, address: Address) -> AsyncIterator[QueryConnection]:
        """Open a connection for the block. Raises OSError."""
        target = Target(address, REPLY_S, self._target.tls, KEEPALIVE_S)
        async with opened(target, REPLY_S) as connection:
            if self._words is not None:
                self.checked(await connection.query(b"AUTH", *map(str.encode, self._words)))
            yield connection

    def checked(self, reply: Any) -> Any:
        """Return `reply`. Raises Refused if it is an error."""
        if not isinstance(reply, hiredis.ReplyError):
            return reply
        if not str(reply).startswith(("NOAUTH", "WRONGPASS")):
            raise Refused(f"answers {str(reply).removeprefix('ERR ')}")
        if self._words is not None:
            raise Refused(f"refuses the user or password of the URL ({self._option})")
        raise Refused(f"wants a password, and the URL has none ({self._option})")


class _Sentinel:
    """One Sentinel, with a connection for each query and one for its subscription."""

    def __init__(self, address: Address, of: Sentinels, target: Target) -> None:
        self.address = address
        self._name = of.name
        self._login = Login(of.user, of.password, "sentinel_password", target)
        self._backoff = Backoff(RETRY_FIRST_S, MAX_RETRY_S)
        self._retry_at = 0.0
        self._why = ""

    async def query(self) -> Answer:
        """Query which server is the master. Never raises OSError.

        After a failure, the same failure is returned until the backoff allows another attempt.
        """
        if time.monotonic() < self._retry_at:
            return Answer(why=self._why)
        try:
            async with self._login.opened(self.address) as connection:
                found = await self._queried(connection)
        except OSError as error:
            self._why = reason(error)
            self._retry_at = time.monotonic() + self._backoff.pause_s()
            return Answer(why=self._why)
        self._backoff.reset()
        return found

    async def _queried(self, connection: QueryConnection) -> Answer:
        name = self._name.encode()
        # In one write, so that this Sentinel's state does not change between the two commands.
        where, facts = await connection.query_all(
            [(b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", name), (b"SENTINEL", b"MASTER", name)]
        )
        if str(where).startswith("NOAUTH"):
            self._login.checked(where)
        return sentinel.answer(self._name, where, facts)

    async def listen(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever a master may have changed. Runs until cancelled."""
        while True:
            try:
                async with self._login.opened(self.address) as connection:
                    self._login.checked(await connection.query(b"SUBSCRIBE", b"+switch-master"))
                    while True:
                        await connection.read()
                        changed()  # also if it is that of another name: a look costs little
            except OSError as error:
                text = "subscription at Sentinel {address}: {reason}"
                log.debug(
                    "sentinel_subscription_lost", text, address=self.address, reason=str(error)
                )
            await asyncio.sleep(LOOK_S)


async def _end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel all of `tasks`, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Failover:
    """Follows the master of `upstream.sentinels`.

    target: moved to each new master. Connections to Sentinels use its TLS settings, too.
    on_master: called after each move; it cuts the connections to the former master.
    """

    def __init__(
        self, upstream: Upstream, target: MasterTarget, on_master: Callable[[], None]
    ) -> None:
        assert upstream.sentinels is not None
        self._name = upstream.sentinels.name
        self._target = target
        self._on_master = on_master
        self._login = Login(upstream.user, upstream.password, "--upstream", target)
        sentinels = upstream.sentinels
        self._sentinels = [_Sentinel(each, sentinels, target) for each in sentinels.addresses]
        self._throttle = StateThrottle(time.monotonic)
        self._failing = ""  # the Sentinels that failed when all were last queried, for the log
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.settled = asyncio.Event()  # set after the first look
        self.master: Claim | None = None
        target.on_failure = self.suspect

    def suspect(self) -> None:
        """Look soon, because the present master does not act as one."""
        self._wake.set()

    def start(self) -> None:
        """Start the tasks that follow the master."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(each.listen(self._wake.set)) for each in self._sentinels]
        self._tasks.append(loop.create_task(self._run()))

    async def stop(self) -> None:
        """End these tasks."""
        await _end(self._tasks)

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            await self._look()
            self.settled.set()
            await asyncio.sleep(LEAST_S)
            await pause(LOOK_S, self._wake)

    async def _look(self) -> None:
        """Determine the master and switch to it. Never raises."""
        refused = ""
        try:
            answers, claim = await self._query()
            if claim is not None:
                refused = await self._refusal(claim)
                if not refused:
                    self._switch(claim)
            self._report(answers, refused)
        except Exception as error:  # an exception would end the task that follows the master
            if self._throttle.due(f"{type(error).__name__}: {error}"):
                text = "cannot query the Sentinels: {reason}; retrying"
                log.error("sentinels_failed", text, reason=repr(error))

    async def _query(self) -> tuple[list[Answer | None], Claim | None]:
        """Query all Sentinels at once, until their answers allow a decision.

        A claim for another server than the present master ends the wait for the other Sentinels.
        Returns one answer for each Sentinel, None for an outstanding one, and the claim.
        """
        loop = asyncio.get_running_loop()
        queried = {loop.create_task(each.query()): at for at, each in enumerate(self._sentinels)}
        pending = set(queried)
        answers: list[Answer | None] = [None] * len(queried)
        claim: Claim | None = None
        try:
            while pending and (claim is None or self._confirms(claim)):
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    answers[queried[task]] = task.result()
                claim = sentinel.choose(answers, self.master)
        finally:
            await _end(pending)
        return answers, claim

    def _confirms(self, claim: Claim) -> bool:
        return self.master is not None and claim.address == self.master.address

    async def _refusal(self, claim: Claim) -> str:
        """Return why the server of `claim` does not become the master; empty if it does."""
        if self._confirms(claim):
            return ""
        former = sentinel.UNKNOWN
        if claim.if_gone and self.master is not None:
            former, _ = await self._role(self.master.address)
        itself, why = await self._role(claim.address)
        if sentinel.accepts(claim, itself, former):
            return ""
        named = f"{claim.address}, which the Sentinels name,"
        if itself == sentinel.NO_REPLY:
            return f"{named} cannot be reached: {why}"
        what = "is a replica" if itself == sentinel.REPLICA else "is not the only master"
        return f"{named} {what}"

    async def _role(self, address: Address) -> tuple[str, str]:
        """Query the role of the server at `address`.

        Returns one of MASTER, REPLICA, UNKNOWN and NO_REPLY, and the reason of the last two.
        """
        try:
            async with self._login.opened(address) as connection:
                return sentinel.role(await connection.query(b"ROLE")), ""
        except OSError as error:
            there = isinstance(error, (Refused, NoRoom))
            return sentinel.UNKNOWN if there else sentinel.NO_REPLY, reason(error)

    def _switch(self, claim: Claim) -> None:
        """Make the server of `claim` the master."""
        former, self.master = self.master, claim
        if former is not None and former.address == claim.address:
            return
        self._target.move(claim.address)
        if self.settled.is_set():
            was = str(former.address) if former is not None else "not known"
            text = "master {master} is now {address} (was {former})"
            log.info("master_changed", text, master=self._name, address=claim.address, former=was)
        self._on_master()

    def _report(self, answers: Sequence[Answer | None], refused: str) -> None:
        """Log a change: which Sentinels fail, and why the claimed server is refused.

        answers: one for each Sentinel, None for an outstanding one.
        """
        addresses = [each.address for each in self._sentinels]
        silent = sentinel.unanswered(zip(addresses, answers, strict=True))
        missing = ", ".join(silent)
        if self.master is None:
            self._target.unknown(f"no master known as {self._name}: {refused or missing}")
            return
        if None not in answers:
            number = f"{len(silent)} of {len(answers)} Sentinels of {self._name}"
            self._failing = f"{number} fail: {missing}" if silent else ""
        problem = "; ".join(filter(None, (refused, self._failing)))
        if self._throttle.due(problem):
            if problem:
                text = "{reason}; the master stays {address}"
                log.warning("sentinels_doubtful", text, reason=problem, address=self.master.address)
            else:
                text = "all Sentinels of {master} answer again"
                log.info("sentinels_well", text, master=self._name)
