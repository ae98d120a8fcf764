"""The admin process: the HTTP application with the live page, metrics and probes. It is a process
apart, so that HTTP requests never delay clients. It inherits the listening socket and the shared
memory.

    workers ──publish()──> shared memory ──> Reader ──> /metrics /healthz /readyz /live.json <──┐
                                                                     the page at / polls it ────┘

Operators and monitoring that use it can see keys. Requests change nothing but those for actions,
which --admin-actions permits. Connections that are slow, numerous or malformed do not keep others
from being served.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import logging
import os
import pickle
import re
import socket
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

import uvicorn
from h11 import LocalProtocolError
from starlette.datastructures import Headers
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from rlproxy.admin.probes import not_alive, not_ready, ready_text
from rlproxy.admin.reader import Reader, latest_reload
from rlproxy.config.config import Config
from rlproxy.config.urls import Address
from rlproxy.observability import logs
from rlproxy.observability.log_throttle import LogThrottle
from rlproxy.observability.shared_memory import SharedMemory
from rlproxy.upstream.embedded import end_with_parent

if TYPE_CHECKING:
    from rlproxy.admin.actions import Actions

PAGE: Final = Path(__file__).with_name("page.html")
FORM: Final = Path(__file__).with_name("actions.html")  # it takes the place of FORM_MARK
FORM_MARK: Final = b"<!-- actions -->\n"
METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
IGNORE_REDIS: Final = ("exclude", "upstream")  # the parameter of /readyz
LOCAL_NAMES: Final = ("localhost", "127.0.0.1", "::1")
NOT_BY_THIS_NAME: Final = (
    "This address is this machine's own, and answers to the names localhost, 127.0.0.1 and [::1] "
    "only: a page of elsewhere may have led your browser here.\n"
)

MAX_CONNECTIONS: Final = 128  # one more closes the one whose last response is the oldest
MAX_HEADER: Final = 16384  # bytes of a request's header
REQUEST_S: Final = 10.0  # seconds for a request and its response, and for reading the response
KEEP_S: Final = 5.0  # seconds until an idle connection is closed
NICER: Final = 5  # added niceness, so that workers take precedence


# -- routes and responses --------------------------------------------------------------------------


class Pages:
    """The routes of the application, and their responses.

    actions: None without --admin-actions; then neither the routes nor the page have them.
    """

    def __init__(self, reader: Reader, actions: Actions | None = None) -> None:
        self._reader = reader
        self._actions = actions
        form = b"" if actions is None else FORM.read_bytes()
        self._page = PAGE.read_bytes().replace(FORM_MARK, form)

    def router(self) -> Router:
        """Return all routes: for GET and HEAD, and that of actions for POST."""
        routes = [
            Route("/", self._live),
            Route("/live.json", self._json),
            Route("/metrics", self._metrics),
            Route("/healthz", self._alive),
            Route("/readyz", self._ready),
        ]
        if self._actions is not None:
            routes.append(Route("/actions", self._actions.respond, methods=["POST"]))
        known = ", ".join(route.path for route in routes)
        nothing = PlainTextResponse(f"There is no such page; there are {known}\n", 404)
        return Router(routes, redirect_slashes=False, default=nothing)

    def headers(self) -> list[tuple[str, str]]:
        """Return the headers of every response.

        The policy permits the page's inline style and script, data: images, and requests to this
        server.
        """
        style = _hashes(self._page, rb"<style>(.*?)</style>")
        script = _hashes(self._page, rb"<script>(.*?)</script>")
        policy = (
            f"default-src 'none'; style-src {style}; script-src {script}; connect-src 'self'; "
            "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        return [
            ("cache-control", "no-store"),
            ("content-security-policy", policy),
            ("cross-origin-resource-policy", "same-origin"),
            ("referrer-policy", "no-referrer"),
            ("x-content-type-options", "nosniff"),
            ("x-frame-options", "DENY"),
        ]

    async def _live(self, _request: Request) -> Response:
        return Response(self._page, media_type="text/html")

    async def _json(self, _request: Request) -> Response:
        return JSONResponse(self._reader.reading().view)

    async def _metrics(self, _request: Request) -> Response:
        return Response(self._reader.reading().metrics, headers={"content-type": METRICS_TYPE})

    async def _alive(self, _request: Request) -> Response:
        return _verdict(not_alive(self._reader.reading().workers), "ok")

    async def _ready(self, request: Request) -> Response:
        given = request.query_params.multi_items()
        if any(each != IGNORE_REDIS for each in given):
            known = "=".join(IGNORE_REDIS)
            return PlainTextResponse(f"The parameters here are {known}.\n", 400)
        workers = self._reader.reading().workers
        return _verdict(not_ready(workers, bool(given)), ready_text(workers))


def _verdict(reasons: Sequence[str], good: str) -> Response:
    lines = [" ".join(reason.split()) for reason in reasons] or [good]
    return PlainTextResponse("".join(f"{line}\n" for line in lines), 503 if reasons else 200)


def _hashes(page: bytes, pattern: bytes) -> str:
    found = re.findall(pattern, page, re.DOTALL)
    digests = (base64.b64encode(hashlib.sha256(each).digest()).decode() for each in found)
    return " ".join(f"'sha256-{digest}'" for digest in digests)


def application(pages: Pages, local: bool, throttle: LogThrottle) -> ASGIApp:
    """Return the ASGI application.

    local: whether the socket listens on a loopback address. Then the Host header must be one of
    LOCAL_NAMES or absent, against pages that reach it under another name (DNS rebinding).
    throttle: the log of errors, which clients see without details.
    """
    router = pages.router()

    async def route(scope: Scope, receive: Receive, send: Send) -> None:
        host = Headers(scope=scope).get("host", "")
        name = re.sub(r":\d*$", "", host).removeprefix("[").removesuffix("]").lower()
        known = not local or name in ("", *LOCAL_NAMES)
        app = router if known else PlainTextResponse(NOT_BY_THIS_NAME, 421)
        await app(scope, receive, send)

    async def failed(_request: Request, error: Exception) -> Response:
        if isinstance(error, LocalProtocolError):  # uvicorn has answered 400 to a malformed body
            return Response()
        # The error's text is not logged: it may contain parts of the request.
        *_, at = traceback.extract_tb(error.__traceback__)
        throttle.happened(
            "admin_failed",
            "requests to the admin address failed: {count:,}; {reason}",
            reason=f"{type(error).__name__} ({Path(at.filename).name}:{at.lineno})",
        )
        return PlainTextResponse("This failed; see the proxy's log.\n", 500)

    return ServerErrorMiddleware(route, failed)


# -- connections -----------------------------------------------------------------------------------


class Connection(H11Protocol):
    """One HTTP connection, which is cut REQUEST_S after its begin or its last response.

    If there are more than MAX_CONNECTIONS, the one whose last response is the oldest is cut.
    """

    among: ClassVar[dict[Connection, None]] = {}  # the open ones, by the time of that response
    _deadline: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._begin()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._end()

    def eof_received(self) -> bool:  # type: ignore[override]
        """See asyncio.Protocol: a client that sends no more gets the response that it waits for."""
        if self.cycle is None:  # silence would be taken for that of an address of --listen
            self.send_400_response("There was no request.\n")
        return self.cycle is not None and not self.cycle.response_complete

    def on_response_complete(self) -> None:
        """See H11Protocol."""
        super().on_response_complete()
        if not self.transport.is_closing():
            self._end()
            self._begin()

    def _begin(self) -> None:
        self._deadline = self.loop.call_later(REQUEST_S, self._cut)
        self.among[self] = None
        if len(self.among) > MAX_CONNECTIONS:
            next(iter(self.among))._cut()

    def _end(self) -> None:
        self.among.pop(self, None)
        self._deadline.cancel()

    def _cut(self) -> None:
        self._end()
        self.transport.abort()  # even during a response


class AdminServer(uvicorn.Server):
    """The HTTP server for the listening socket `sock` and the samples in `memory`.

    It ends with the process `parent`; a signal ends it at once.

    settings: --admin-actions, and what actions need.
    """

    def __init__(
        self, sock: socket.socket, memory: SharedMemory, parent: int, settings: Config
    ) -> None:
        name = sock.getsockname()
        local = isinstance(name, tuple) and Address(name[0]).local
        self._throttle = throttle = LogThrottle(time.monotonic, logs.log.error)
        self._reader = Reader(memory)
        self._parent = parent
        actions = None
        if settings.admin_actions:
            from rlproxy.admin.actions import Actions  # with redis-py, which takes 0.25 s to load

            actions = Actions(settings, parent, partial(latest_reload, memory), throttle)
        pages = Pages(self._reader, actions)
        # uvicorn would log a line per malformed request, which clients cause at will.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        super().__init__(
            uvicorn.Config(
                application(pages, local, throttle),
                headers=pages.headers(),
                http=Connection,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                backlog=MAX_CONNECTIONS,
                timeout_keep_alive=int(KEEP_S),
                timeout_graceful_shutdown=0,
                h11_max_incomplete_event_size=MAX_HEADER,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone; see uvicorn.Server."""
        yield

    async def on_tick(self, counter: int) -> bool:
        """Look at the samples once a second; see uvicorn.Server, which calls it every 0.1 s."""
        if counter % 10 == 0:
            self._reader.record()
            self._throttle.sweep()
        return await super().on_tick(counter) or os.getppid() != self._parent


def main() -> int:
    """Run the admin process. Returns the exit code.

    On standard input it gets, pickled, the inherited descriptors of its listening socket and of the
    shared memory, the number of its parent's process, and the settings.
    """
    end_with_parent()
    with contextlib.suppress(OSError):  # the system call filter of rlproxy.service forbids it
        os.nice(NICER)
    given = sys.stdin.buffer.read()
    if not given:  # the parent has ended
        return 1
    listening, descriptor, parent, settings = pickle.loads(given)  # noqa: S301 (of the parent)
    logs.configure(settings.log_level, settings.log_format)
    sock = socket.socket(fileno=listening)
    sock.setblocking(False)
    memory = SharedMemory(settings.workers, descriptor)
    asyncio.run(AdminServer(sock, memory, parent, settings).serve([sock]))
    return 0
