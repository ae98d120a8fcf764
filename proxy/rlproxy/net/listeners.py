"""The listening sockets of `--listen`: bound before any client is served, shared by all workers.

Accepted connections inherit the options of TCP sockets.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rlproxy.config.config import StartError
from rlproxy.config.urls import Address
from rlproxy.net.keepalive import keep_alive

BACKLOG: Final = 4096  # connections that wait in the kernel for accept(), for each socket
# The number of TCP_NOTSENT_LOWAT on Linux and macOS, for which Python 3.11 has no name; else 0.
NOTSENT_LOWAT: Final = {"linux": 25, "darwin": 0x201}.get(sys.platform, 0)
# Unsent bytes that the kernel holds for a client. One that does not read is then noticed early.
# Otherwise the kernel would take megabytes for it, and copying them would delay other clients.
UNSENT: Final = 65536

Listening = tuple[socket.socket, bool]  # a listening socket, and whether its clients use TLS


class Listeners:
    """Listening sockets at `addresses`. All processes that are forked later accept from them.

    unix_mode: the permissions of unix sockets.
    option: the option that errors name.
    keepalive_s: see keep_alive().
    Raises StartError.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        unix_mode: int = 0o600,
        option: str = "--listen",
        keepalive_s: int = 0,
    ) -> None:
        self.sockets: list[Listening] = []  # one for each address
        self._process = os.getpid()  # removes the paths of unix sockets
        for address in addresses:
            try:
                if address.path:
                    bound = _bind_unix(address.path, unix_mode)
                else:
                    bound = _bind_tcp(address, keepalive_s)
            except OSError as error:
                self.close()
                why = error.strerror or str(error)
                raise StartError(f"cannot listen on {address}: {why} (see {option})") from None
            self.sockets.append((bound, address.tls))

    def addresses(self) -> list[Address]:
        """Return the addresses in use, with the ports that the system chose for port 0."""
        names = [(sock.getsockname(), tls) for sock, tls in self.sockets]
        return [
            Address(path=name) if isinstance(name, str) else Address(name[0], name[1], tls=tls)
            for name, tls in names
        ]

    def close(self) -> None:
        """Close all sockets; in the process that made them, remove the paths of unix sockets."""
        for sock, _ in self.sockets:
            name = sock.getsockname()
            sock.close()
            if isinstance(name, str) and os.getpid() == self._process:
                with contextlib.suppress(OSError):
                    os.unlink(name)
        self.sockets = []


def _bind_tcp(address: Address, keepalive_s: int) -> socket.socket:
    found = socket.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    family, kind, protocol, _, name = found[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        keep_alive(sock, keepalive_s)
        if NOTSENT_LOWAT:
            sock.setsockopt(socket.IPPROTO_TCP, NOTSENT_LOWAT, UNSENT)
        sock.setblocking(False)
        sock.bind(name)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def _bind_unix(path: str, mode: int) -> socket.socket:
    """Open a listening unix socket. A socket file on which no process listens is replaced."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(Path(path).stat().st_mode):
            raise OSError(errno.EEXIST, "there is a file that is no socket")
        with socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)  # a process that accepts nothing must not block the start
            try:
                probe.connect(path)
            except ConnectionRefusedError:
                os.unlink(path)
            except BlockingIOError:
                raise OSError(errno.EADDRINUSE, "address already in use") from None
            else:
                raise OSError(errno.EADDRINUSE, "address already in use")
    sock = socket.socket(socket.AF_UNIX)
    mask = os.umask(0o777 & ~mode)  # so that its permissions are never wider than `mode`
    try:
        sock.setblocking(False)
        sock.bind(path)
        if stat.S_IMODE(os.lstat(path).st_mode) != mode:  # some systems ignore the mask
            os.chmod(path, mode)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    finally:
        os.umask(mask)
    return sock
