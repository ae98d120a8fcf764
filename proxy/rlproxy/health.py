"""`rlproxy health`: a liveness check that connects from outside. Redis has no influence.

It sends no command, and closes its sending direction: a proxy that runs closes the connection then,
or writes why it takes no client. With TLS the handshake suffices.
"""

from __future__ import annotations

import os
import socket
import ssl
import sys
from collections.abc import Sequence
from typing import Final

from rlproxy.config.urls import DEFAULT_LISTEN, parse_running, without_password

TIMEOUT_S: Final = 2.0
USAGE: Final = """\
usage: rlproxy health [[tls:]HOST:PORT|unix:PATH|URL]

Exits with 0 if that address accepts clients, whatever Redis does, with 1 if not. It sends no
command, so it can't tell a proxy from a Redis. Without an argument it uses
the first address of RLPROXY_LISTEN, or 127.0.0.1:6380."""

# names of the TLS alerts that a server sends to a client without a certificate
_WANTS_CERTIFICATE: Final = ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "SSLV3_ALERT_HANDSHAKE_FAILURE")
_HEADER: Final = b"PROXY UNKNOWN\r\n"


def alive(address: str, header: bool = False) -> str:
    """Check that `address` accepts clients.

    address: as for --listen, or a URL. Its certificate is not verified.
    header: whether the connection begins with a PROXY protocol header.
    Returns "" if it does, or if it requires a client certificate; otherwise the problem.
    """
    try:
        where = parse_running(address)
    except ValueError as error:
        return f"{without_password(address)}: {error}"
    try:
        if where.path:
            sock = socket.socket(socket.AF_UNIX)
            sock.settimeout(TIMEOUT_S)
            sock.connect(where.path)
        else:
            sock = socket.create_connection((where.host, where.port), TIMEOUT_S)
        with sock:
            if header and not where.path:
                sock.sendall(_HEADER)
            if where.tls:
                with _secured(sock):
                    return ""
            sock.shutdown(socket.SHUT_WR)
            reply = sock.recv(64)
    except ssl.SSLError as error:
        if error.reason in _WANTS_CERTIFICATE:
            return ""
        return f"{where}: no TLS ({error.reason})"
    except TimeoutError:
        return f"{where}: no answer within {TIMEOUT_S:g} s"
    except OSError as error:
        return f"{where}: {error.strerror or error}"
    return "" if reply[:1] in (b"", b"-") else f"{where}: not a RESP server"


def _secured(sock: socket.socket) -> ssl.SSLSocket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context.wrap_socket(sock)


def main(argv: Sequence[str]) -> int:
    """Run `rlproxy health [HOST:PORT]`; exit code 0 if alive, 1 if not, 2 on wrong usage.

    The default address is the first in RLPROXY_LISTEN without TLS, else the first with TLS, else
    DEFAULT_LISTEN. With RLPROXY_PROXY_PROTOCOL=yes the connection begins with a PROXY header.
    """
    if len(argv) > 1 or (argv and argv[0].startswith("-")):
        asked = argv[0] in ("-h", "--help")
        print(USAGE, file=sys.stdout if asked else sys.stderr)
        return 0 if asked else 2
    listen = os.environ.get("RLPROXY_LISTEN", "").split()
    listen.sort(key=lambda address: address.startswith("tls:"))
    header = os.environ.get("RLPROXY_PROXY_PROTOCOL", "").strip().lower() == "yes"
    wrong = alive([*argv, *listen, DEFAULT_LISTEN][0], header)
    if wrong:
        print(wrong, file=sys.stderr)
    return 1 if wrong else 0
