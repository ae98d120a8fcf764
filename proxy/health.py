"""A liveness check from outside: does something that speaks RESP listen there?"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from typing import Final

from .config import DEFAULT_LISTEN, parse_listen, without_password

TIMEOUT_S: Final = 2.0


def alive(address: str) -> str:
    """Empty if a server at `address` answers PING, whatever it answers; else what is wrong."""
    try:
        where = parse_listen(address)
    except ValueError as error:
        return f"{without_password(address)}: {error}"
    family = socket.AF_UNIX if where.path else socket.AF_UNSPEC
    try:
        if family == socket.AF_UNIX:
            sock = socket.socket(family)
            sock.settimeout(TIMEOUT_S)
            sock.connect(where.path)
        else:
            host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(where.host, where.host)  # noqa: S104
            sock = socket.create_connection((host, where.port), TIMEOUT_S)
        with sock:
            sock.sendall(b"*1\r\n$4\r\nPING\r\n")
            reply = sock.recv(64)
    except OSError as error:
        return f"{where}: {error.strerror or error}"
    return "" if reply[:1] in (b"+", b"-") else f"{where}: not a RESP server"


def main(argv: Sequence[str]) -> int:
    """`python -m proxy.health [HOST:PORT]`: exit code 0 if alive, 1 if not, 2 on wrong usage.

    Without an address it is the first of RLPROXY_LISTEN, or the default one.
    """
    if len(argv) > 1 or (argv and argv[0].startswith("-")):
        print("usage: python -m proxy.health [HOST:PORT|unix:PATH]", file=sys.stderr)
        return 2
    listen = os.environ.get("RLPROXY_LISTEN", "").split()
    wrong = alive([*argv, *listen, DEFAULT_LISTEN][0])
    if wrong:
        print(wrong, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
