"""Actions: the requests to the admin address that look a key up, change it, or reload the settings.

    POST /actions ──token──> body ──command_of()──> RL command ──> the proxy, as any client sends it
                                       └──reload──> SIGHUP to the parent ──> the outcome

The commands run as the user of --upstream.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as LostError
from redis.exceptions import NoPermissionError, RedisError, ResponseError
from redis.exceptions import TimeoutError as LateError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from rlproxy.admin.access import read_token
from rlproxy.admin.page_data import label
from rlproxy.config.config import Config, ConfigError, own_addresses
from rlproxy.config.urls import UNIX_CLIENT, Address
from rlproxy.observability.log_throttle import LogThrottle
from rlproxy.observability.logs import log
from rlproxy.observability.snapshots import Reloaded
from rlproxy.resp.escape import unescaped

MAX_BODY: Final = 4096  # bytes
TIMEOUT_S: Final = 2.0  # seconds for connecting to the proxy, sending a command, and its reply
RELOAD_S: Final = 5.0  # seconds for a reload of the settings
LOOK_S: Final = 0.05  # seconds between two looks for its outcome
WRONG_TOKEN_S: Final = 0.5  # seconds until a wrong token is answered
RELOAD: Final = "reload"
_REQUIRED: Final = {  # fields of each action; all of them may have all fields
    "peek": ("key", "rule"),
    "block": ("key", "seconds"),
    "unblock": ("key",),
    "reset": ("key",),
    RELOAD: (),
}
_FIELDS: Final = ("action", "key", "rule", "seconds")
_ALGORITHM: Final = ("ALGO", "POLICY")  # the words of a rule that RL.BLOCK takes, each with a name
# Errors of a Redis that can't run any such command; redis-py has classes for others of this kind.
_UNABLE: Final = ("UPSTREAMDOWN ", "MASTERDOWN ", "BUSY ", "MISCONF ", "NOREPLICAS ")


@dataclass(frozen=True)
class Command:
    """The RL command of an action: `words` with its name; empty for `reload`."""

    action: str
    key: bytes
    words: tuple[bytes, ...]


def command_of(body: bytes) -> Command:
    r"""Return the command for a request's body: {"action": ..., "key": ..., ...}.

    In a key, \xHH stands for a byte, as the page shows it. Numbers and words of the rule are left
    for the proxy to check. Raises HTTPException.
    """
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise HTTPException(400, "the body is no JSON object")
    for name in found:
        if name not in _FIELDS:
            raise HTTPException(400, f"unknown field {label(name)}; known: {', '.join(_FIELDS)}")
    texts = {name: _text(name, value) for name, value in found.items()}
    action = texts.get("action", "")
    if action not in _REQUIRED:
        raise HTTPException(400, f"action: expected one of {', '.join(_REQUIRED)}")
    for name in _REQUIRED[action]:
        if name not in texts:
            raise HTTPException(400, f"the action {action} needs the field {name}")
    try:
        key, seconds = unescaped(texts.get("key", "")), texts.get("seconds", "").encode()
        rule = [word.encode() for word in texts.get("rule", "").split()]
    except UnicodeEncodeError:
        raise HTTPException(400, "a text contains half of a surrogate pair") from None
    words = {
        "peek": (b"RL.PEEK", key, *rule),
        "block": (b"RL.BLOCK", key, seconds, *_algorithm(rule)),
        "unblock": (b"RL.BLOCK", key, b"0", *_algorithm(rule)),
        "reset": (b"RL.RESET", key),
        RELOAD: (),
    }
    return Command(action, key, words[action])


def _text(name: str, value: object) -> str:
    """Return the text of a field. Raises HTTPException."""
    number = name == "seconds" and isinstance(value, int | float) and not isinstance(value, bool)
    if not (number or isinstance(value, str)):
        raise HTTPException(400, f"{name}: expected a text{' or a number' * (name == 'seconds')}")
    return str(value)


def _algorithm(rule: Sequence[bytes]) -> Sequence[bytes]:
    """Return ALGO or POLICY and the name behind it; empty if the rule has none."""
    for at, word in enumerate(rule):
        if word.decode().upper() in _ALGORITHM:
            return rule[at : at + 2]
    return ()


class Actions:
    """The handler of requests for actions.

    config: has the token's file, and the addresses and login of the proxy.
    parent: the process that reloads the settings on SIGHUP.
    latest_reload: returns the outcome of its latest reload.
    throttle: the log of wrong tokens.
    """

    def __init__(
        self,
        config: Config,
        parent: int,
        latest_reload: Callable[[], Reloaded],
        throttle: LogThrottle,
    ) -> None:
        self._token_file = config.admin_token_file
        self._address = own_addresses(config)[0].dialled()
        self._login = (config.upstream.user, config.upstream.password)
        self._parent = parent
        self._latest_reload = latest_reload
        self._throttle = throttle

    async def respond(self, request: Request) -> Response:
        """Carry out the action of a request: 200 with its reply, or an error; both as JSON."""
        client = str(Address(*request.client) if request.client else UNIX_CLIENT)
        try:
            await self._check_token(request, client)
            command = command_of(await _body(request))
            return JSONResponse(await self._carry_out(command, client))
        except HTTPException as error:
            headers = {"www-authenticate": "Bearer"} if error.status_code == 401 else None
            return JSONResponse({"error": error.detail}, error.status_code, headers)

    async def _check_token(self, request: Request, client: str) -> None:
        """Raise HTTPException unless the request has the token. A wrong one is answered late."""
        try:
            token = read_token(self._token_file)
        except ConfigError as error:
            text = "no action is possible: {reason}"
            self._throttle.happened("admin_token_unusable", text, reason=str(error))
            why = "the file of the token can't be used; the proxy's log has the reason"
            raise HTTPException(503, why) from None
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            raise HTTPException(401, "no token: expected the header Authorization: Bearer TOKEN")
        if not hmac.compare_digest(given.strip().encode("latin-1"), token):
            self._throttle.happened(
                "admin_token_wrong",
                "requests for actions with a wrong token: {count:,}",
                client=client,
            )
            await asyncio.sleep(WRONG_TOKEN_S)
            raise HTTPException(401, "wrong token")

    async def _carry_out(self, command: Command, client: str) -> dict[str, Any]:
        """Return the answer to a command. All commands but a look are logged.

        Raises HTTPException.
        """
        if command.action == RELOAD:
            log.info("admin_reload", "{client} requests a reload of the settings", client=client)
            return await self._reload()
        result = "failed"
        try:
            answer = await self._answer(command.words)
            result = "done"
        except HTTPException as error:
            result = error.detail
            raise
        finally:
            if command.action != "peek":
                log.info(
                    "admin_action",
                    "{client} requests {action} of the key {key}: {result}",
                    client=client,
                    action=command.action,
                    key=label(command.key),
                    result=result,
                )
        return answer

    async def _reload(self) -> dict[str, Any]:
        """Have the settings reloaded. Raises HTTPException unless they are in force."""
        sent = time.monotonic()
        if os.getppid() == self._parent:
            os.kill(self._parent, signal.SIGHUP)
        # A reload that began before may have read old text.
        while (found := self._latest_reload()).began < sent:
            if time.monotonic() > sent + RELOAD_S:
                raise HTTPException(504, f"no outcome within {RELOAD_S:g} s; the log will have it")
            await asyncio.sleep(LOOK_S)
        if found.mistakes:
            why = "the settings are rejected, and all stays as it was"
            raise HTTPException(409, "\n".join([f"{why}:", *found.mistakes]))
        return {"reply": "OK", "restart": found.later}

    async def _answer(self, words: Sequence[bytes]) -> dict[str, Any]:
        """Return the proxy's reply to a command on a new connection, and the unit of its times.

        Raises HTTPException.
        """
        try:
            async with asyncio.timeout(TIMEOUT_S), self._connection() as connection:
                unit = await _unit(connection, words)  # first: if it fails, nothing has changed
                reply = await connection.execute_command(*words)  # type: ignore[no-untyped-call]
                return (
                    {"reply": reply, "unit": unit} if isinstance(reply, list) else {"reply": reply}
                )
        except (TimeoutError, LateError):
            why = f"no reply within {TIMEOUT_S:g} s; whether it takes effect is unknown"
            raise HTTPException(504, why) from None
        except (LostError, OSError) as error:
            why = f"the connection to the proxy at {self._address} failed: {_shown(error)}"
            raise HTTPException(502, why) from None
        except RedisError as error:
            raise HTTPException(_status(error), _shown(error)) from None

    def _connection(self) -> Redis:
        """Return a connection to the proxy; the first command opens it, and no other one does."""
        address, (user, password) = self._address, self._login
        return Redis(
            host=address.host,
            port=address.port,
            unix_socket_path=address.path or None,
            username=user,
            password=password,
            ssl=address.tls,
            ssl_cert_reqs="none",
            ssl_check_hostname=False,
            protocol=2,
            retry=Retry(NoBackoff(), 0),
            single_connection_client=True,
        )


async def _unit(connection: Redis, words: Sequence[bytes]) -> str:
    """Return the unit of the times in the reply to `words`: ms if their rule has MS, else s."""
    rule = [word.upper() for word in words[2:]]
    if b"POLICY" in rule[:-1]:
        named = words[rule.index(b"POLICY") + 3]
        policies = await connection.execute_command("RL.POLICIES")  # type: ignore[no-untyped-call]
        rule = [
            word for name, text, *_ in policies if name == named for word in text.upper().split()
        ]
    return "ms" if b"MS" in rule else "s"


def _status(error: RedisError) -> int:
    """Return the HTTP status for an error reply: 400 for a mistake in the request."""
    if isinstance(error, NoPermissionError):
        return 403
    mistake = type(error) is ResponseError and not str(error).startswith(_UNABLE)
    return 400 if mistake else 502


def _shown(error: Exception) -> str:
    return label(str(error).strip()) or type(error).__name__


async def _body(request: Request) -> bytes:
    """Return the body of a request. Raises HTTPException if it has more than MAX_BODY bytes."""
    data = b""
    try:
        async for piece in request.stream():
            data += piece
            if len(data) > MAX_BODY:
                raise HTTPException(413, f"the body has more than {MAX_BODY} bytes")
    except ClientDisconnect:
        raise HTTPException(400, "the body ended early") from None
    return data
