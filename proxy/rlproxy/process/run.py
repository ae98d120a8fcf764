"""The command `rlproxy` without a subcommand: from arguments to settings to a running process."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import sys
from collections.abc import Callable, Sequence

from rlproxy.build import describe
from rlproxy.config import config, loader
from rlproxy.net import tls_contexts
from rlproxy.observability import logs
from rlproxy.process import admin_process
from rlproxy.process.server import Post, Server, StartError
from rlproxy.process.supervisor import Supervisor
from rlproxy.ratelimit.scripts import ScriptError
from rlproxy.upstream.embedded import EmbeddedError, binary

log = logging.getLogger("rlproxy")


def main(argv: Sequence[str]) -> int:
    """Run the proxy with the arguments `argv`.

    Returns the exit code: 0 stopped cleanly, 1 failed, 2 wrong usage. Problems are one line each.
    """
    try:
        args = loader.parser().parse_args(argv)
        if args.version:
            print(f"rlproxy {describe()}")
            return 0
        terminal = sys.stdin is not None and sys.stdin.isatty()

        def read() -> config.Config:
            return loader.load(args, terminal=terminal)

        settings = read()
        tls_contexts.contexts(settings)
        if args.check_config:
            return _approve(settings)
    except config.ConfigError as error:
        for mistake in error.mistakes:
            print(f"rlproxy: {mistake}", file=sys.stderr)
        return 2
    logs.configure(settings.log_level, settings.log_format)
    for warning in _warnings(settings):
        log.warning("check the settings: %s", warning)
    try:
        return _run(settings, read)
    except (StartError, ScriptError) as error:
        log.critical("failed: %s", error, extra={logs.PLAIN: [f"rlproxy: {error}"]})
        return 1
    except KeyboardInterrupt:
        return 0


def _approve(settings: config.Config) -> int:
    """Print the result of --check-config for valid settings; the exit code.

    Raises ConfigError if the embedded server is not installed.
    """
    if settings.upstream.embedded:
        try:
            binary()
        except EmbeddedError as error:
            raise config.ConfigError([str(error)]) from None
    for warning in _warnings(settings):
        print(f"rlproxy: warning: {warning}", file=sys.stderr)
    where = ", ".join(map(str, settings.listen))
    print(f"rlproxy would listen on {where}, in front of {settings.upstream}")
    return 0


def _warnings(settings: config.Config) -> list[str]:
    return [*tls_contexts.warnings(settings), *admin_process.warnings(settings)]


def _run(settings: config.Config, read: Callable[[], config.Config]) -> int:
    # Connections live long and are freed by reference counts: full collections only cost latency.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)
    if settings.workers == 1:
        _serve(settings, read)
        return 0
    with contextlib.suppress(ImportError):  # imported once, before the workers are forked
        import uvloop  # noqa: F401
    Supervisor(settings, lambda current, post: _serve(current, read, post), read).run()
    return 0


def _serve(
    settings: config.Config, read: Callable[[], config.Config], post: Post | None = None
) -> None:
    if post is not None:
        logs.configure(settings.log_level, settings.log_format, post.worker + 1)
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        runner.run(Server(settings, post, read).run())


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # no uvloop for this platform: asyncio's own loop is slower, but works
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
