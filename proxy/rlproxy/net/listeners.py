"""The listening sockets of `--listen`: bound before any client is served, one per process where
TCP allows it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rlproxy.config.urls import Address

BACKLOG: Final = 4096  # connections that wait in the kernel for accept(), for each socket

Listening = tuple[socket.socket, bool]  # a listening socket, and whether its clients use TLS


class ListenError(Exception):
    """The proxy cannot listen at an address; the message names it."""


class Listeners:
    """Listening sockets at `addresses`.

    processes: the number of processes that accept. Each gets a socket for each TCP address where
    the system allows it. Unix sockets are shared.
    unix_mode: the permissions of unix sockets.
    option: the option that errors name.
    Raises ListenError.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        processes: int = 1,
        unix_mode: int = 0o600,
        option: str = "--listen",
    ) -> None:
        self._rows: list[list[socket.socket]] = []  # for each address one socket, or one a process
        self._tls = [address.tls for address in addresses]
        self._paths: list[str] = []
        for address in addresses:
            try:
                if address.path:
                    self._rows.append([_bind_unix(address.path, unix_mode)])
                    self._paths.append(address.path)
                else:
                    self._rows.append(_bind_tcp(address, processes))
            except OSError as error:
                self.close()
                why = error.strerror or str(error)
                raise ListenError(f"cannot listen on {address}: {why} (see {option})") from None

    def of(self, process: int) -> list[Listening]:
        """Return the sockets on which a process accepts, one for each address.

        process: its number, from 0.
        """
        return [
            (row[process] if len(row) > 1 else row[0], tls)
            for row, tls in zip(self._rows, self._tls, strict=True)
        ]

    def own(self, process: int) -> list[Listening]:
        """Return those of its sockets on which no other process accepts."""
        rows = zip(self._rows, self._tls, strict=True)
        return [(row[process], tls) for row, tls in rows if len(row) > 1]

    def addresses(self) -> list[Address]:
        """Return the addresses in use, with the ports that the system chose for port 0."""
        names = [row[0].getsockname() for row in self._rows]
        return [
            Address(path=name) if isinstance(name, str) else Address(name[0], name[1], tls=tls)
            for name, tls in zip(names, self._tls, strict=True)
        ]

    def keep(self, process: int) -> None:
        """Close the sockets of other processes. To be called in a forked process.

        Paths of unix sockets are then left to the parent: close() does not remove them.
        """
        mine = [sock for sock, _ in self.of(process)]
        for row in self._rows:
            for sock in row:
                if sock not in mine:
                    sock.close()
        self._rows = [[sock] for sock in mine]
        self._paths = []

    def close(self) -> None:
        """Close all sockets and remove the paths of unix sockets."""
        for row in self._rows:
            for sock in row:
                sock.close()
        for path in self._paths:
            with contextlib.suppress(OSError):
                os.unlink(path)
        self._rows = []
        self._tls = []
        self._paths = []


def _bind_tcp(address: Address, processes: int) -> list[socket.socket]:
    found = socket.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    family, kind, protocol, _, name = found[0]
    several = processes > 1 and hasattr(socket, "SO_REUSEPORT")
    first = socket.socket(family, kind, protocol)
    try:
        _prepare(first)
        # Without SO_REUSEPORT yet, so that an address in use by another proxy is an error.
        first.bind(name)
        if several:
            first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        first.listen(BACKLOG)
    except OSError:
        first.close()
        raise
    made = [first]
    try:
        for _ in range(processes - 1 if several else 0):
            made.append(socket.socket(family, kind, protocol))
            _prepare(made[-1])
            made[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            made[-1].bind(first.getsockname())
            made[-1].listen(BACKLOG)
    except OSError as error:
        for sock in made[1:]:
            sock.close()
        if error.errno != errno.EADDRINUSE:
            first.close()
            raise
        del made[1:]  # this system does not allow it: all processes share the first socket
    return made


def _prepare(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    sock.setblocking(False)


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
