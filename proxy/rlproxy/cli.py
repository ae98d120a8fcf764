"""The command `rlproxy`: each subcommand runs in the module that implements it."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

# Imported on demand: a health check that runs every few seconds loads no event loop.
SUBCOMMANDS: Final = {
    "docs": "rlproxy.docs",
    "health": "rlproxy.health",
    "top": "rlproxy.top.app",
}
_PROXY: Final = "rlproxy.process.run"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the subcommand that the first argument names, or the proxy.

    argv: the arguments, by default those of the process.
    Returns the exit code.
    """
    _open_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):  # paths, or bars of `top`, on an ASCII terminal
        sys.stdout.reconfigure(errors="replace")
    argv = sys.argv[1:] if argv is None else argv
    name = argv[0] if argv else ""
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C before the proxy, or top, handles it
        if name in SUBCOMMANDS:
            return int(import_module(SUBCOMMANDS[name]).main(argv[1:]))
        # SIGHUP would end the process. It waits until the proxy serves, and reloads the settings
        # then.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
        return int(import_module(_PROXY).main(argv))
    return 1


def _open_closed_streams() -> None:
    """Open /dev/null as each standard stream that is closed, as by 2>&- in a shell.

    Otherwise a socket would get its number, and the log would be written into that socket.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode)  # noqa: SIM115 - it gets the lowest free number
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)
