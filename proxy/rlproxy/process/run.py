"""The command `rlproxy` without a subcommand: from arguments to settings to a running process."""

from __future__ import annotations

import contextlib
import gc
import signal
import sys
from collections.abc import Callable, Sequence

from rlproxy.admin.access import read_token
from rlproxy.config import loader
from rlproxy.config.config import Config, StartError
from rlproxy.net import file_limit, tls_contexts
from rlproxy.observability import logs
from rlproxy.observability.logs import log
from rlproxy.process.reload import log_shadows, log_warnings, warnings
from rlproxy.process.resources import Resources
from rlproxy.process.server import ENDING, Server, run
from rlproxy.process.supervisor import Supervisor
from rlproxy.ratelimit import policies
from rlproxy.upstream.embedded import binary
from rlproxy.version import describe


def main(argv: Sequence[str]) -> int:
    """Run the proxy with the arguments `argv`.

    Returns the exit code: 0 stopped cleanly, 1 failed, 2 wrong usage. Problems are one line each.
    """
    try:
        args = loader.parser().parse_args(argv)
        if args.version:
            print(f"rlproxy {describe()}")
            return 0
        terminal = sys.stdin.isatty()

        def read() -> Config:
            loaded = loader.load(args, terminal=terminal, check=policies.mistakes)
            return tls_contexts.with_files(loaded)

        def reread() -> Config:
            loader.check_reload(args, settings)
            return read()

        settings = read()
        tls_contexts.contexts(settings)
        if settings.admin_actions:
            read_token(settings.admin_token_file)
        if args.check_config:
            return _approve(settings)
    except StartError as error:
        for mistake in str(error).splitlines():
            print(f"rlproxy: {mistake}", file=sys.stderr)
        return 2
    logs.configure(settings.log_level, settings.log_format)
    log_warnings(settings)
    log_shadows(settings)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            _run(settings, reread)
    except StartError as error:
        plain = [f"rlproxy: {error}"]
        log.critical("failed", "failed: {reason}", reason=str(error), plain=plain)
        return 1
    return 0


def _approve(settings: Config) -> int:
    """Print the result of --check-config for valid settings; the exit code.

    Raises StartError if the embedded server is needed and not installed.
    """
    if settings.upstream.embedded:
        binary()
    for warning in warnings(settings):
        print(f"rlproxy: warning: {warning}", file=sys.stderr)
    where = ", ".join(map(str, settings.listen))
    number = len(settings.policies)
    rules = f", with {number} polic{'y' if number == 1 else 'ies'}" if number else ""
    print(f"rlproxy would listen on {where}, in front of {settings.upstream}{rules}")
    return 0


def _run(settings: Config, read: Callable[[], Config]) -> None:
    """Run the proxy until it is stopped; `read` returns the settings anew. Raises StartError."""
    limit = file_limit.raise_limit()
    if file_limit.room(limit) < 1:
        least = file_limit.RESERVED + file_limit.OF_A_CLIENT
        why = f"the limit of open files is {limit}: raise it to {least} at least (ulimit -n)"
        raise StartError(why)
    # Connections live long and are freed by reference counts: full collections only cost latency.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # until the server or supervisor handles them
    resources = Resources(settings, read)
    try:
        if settings.workers == 1:
            run(Server(settings, 0, resources, resources).run())
        else:
            Supervisor(settings, resources).run()
    finally:
        resources.close()
    resources.log_end()
