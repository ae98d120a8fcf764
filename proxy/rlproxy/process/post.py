"""The post of one worker: the objects that its parent has prepared for it, and its reports to the
parent. A proxy that is one process prepares it itself.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from rlproxy.config.config import Config, ConfigError
from rlproxy.config.urls import Upstream
from rlproxy.net.listeners import ListenError, Listeners
from rlproxy.observability.shared_memory import SharedMemory
from rlproxy.process.admin_process import AdminProcess
from rlproxy.process.banner import log_end, print_banner
from rlproxy.process.intake import ClientCounts
from rlproxy.process.reload import Apply, reload
from rlproxy.ratelimit import scripts
from rlproxy.upstream.embedded import EmbeddedError, embedded_of

EMBEDDED_ENDED: Final = "the embedded server has ended, and its data with it"
CUT: Final = signal.SIGUSR1  # to a worker: end without waiting for owed replies
# kinds of a worker's reports
READY: Final = "ready"
LEAVING: Final = "leaving"
FAILED: Final = "failed"


class StartError(Exception):
    """The proxy can't start or can't continue; the message states the reason for the operator."""


CANNOT_RUN: Final = (StartError, ConfigError, ListenError, EmbeddedError, scripts.ScriptError)


@dataclass(frozen=True)
class Post:
    """What has been prepared for one worker.

    worker: its number, from 0.
    started: time.time() at the start of the proxy.
    upstream: as in the settings; of an embedded server or cluster, where it was started.
    first: the proxy is still starting: this worker replaces none.
    report: called with READY and the banner's text about the upstream, LEAVING and "", or FAILED
    and the reason.
    look: called every second. It returns a reason to end, or "".
    reload: called on SIGHUP with the settings in force; see `reload`. With a supervisor it reads
    the settings that the supervisor has accepted last, so that all workers have the same.
    """

    worker: int
    listeners: Listeners
    client_counts: ClientCounts
    memory: SharedMemory
    started: float
    upstream: Upstream
    scripts: dict[str, scripts.Script]
    first: bool
    report: Callable[[str, str], None]
    look: Callable[[], str]
    reload: Callable[[Config, Apply], Config]


@contextlib.asynccontextmanager
async def alone(config: Config, read: Callable[[], Config]) -> AsyncIterator[Post]:
    """Prepare the post of a proxy that is one process, and release it at the end.

    read: returns the settings of its file. Raises ConfigError.
    Raises one of CANNOT_RUN.
    """
    with contextlib.ExitStack() as closing:
        listeners = Listeners(config.listen, config.unix_mode)
        closing.callback(listeners.close)
        memory = SharedMemory(1)
        admin = None
        if config.admin is not None:
            admin = AdminProcess(config, memory, listeners.addresses())
            closing.callback(admin.stop)
        upstream, embedded = config.upstream, embedded_of(config.upstream)
        if upstream.embedded:
            closing.callback(embedded.stop)
            upstream = await embedded.start()
        up_at: list[float] = []

        def report(kind: str, text: str) -> None:
            if kind == READY:
                print_banner(listeners.addresses(), text, admin=admin)
                up_at.append(time.monotonic())
                if admin is not None:
                    admin.start()

        def look() -> str:
            if admin is not None and up_at:
                admin.look()
            return EMBEDDED_ENDED if embedded.ended() else ""

        yield Post(
            0,
            listeners,
            ClientCounts(1),
            memory,
            time.time(),
            upstream,
            scripts.load(),
            True,
            report,
            look,
            partial(reload, read=read, memory=memory),
        )
    log_end(up_at[0] if up_at else None)
