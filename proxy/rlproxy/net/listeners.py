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

from rlproxy.config.config import Address

BACKLOG: Final = 4096

Listening = tuple[socket.socket, bool]  # and whether TLS is spoken there


class ListenError(Exception):
    """An address can't be had; the message names it."""


class Listeners:
    """Listening sockets at `addresses` for as many `processes`; those that have a path get the
    permissions `unix_mode`. `option` is where they were given. Raises ListenError.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        processes: int = 1,
        unix_mode: int = 0o600,
        option: str = "--listen",
    ) -> None:
        self._rows: list[list[socket.socket]] = []  # of each address: one, or one per process
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
        """What that process accepts on: at each address a socket of its own, or the shared one."""
        return [
            (row[process] if len(row) > 1 else row[0], tls)
            for row, tls in zip(self._rows, self._tls, strict=True)
        ]

    def own(self, process: int) -> list[Listening]:
        """Of these, the sockets that nobody else accepts on."""
        rows = zip(self._rows, self._tls, strict=True)
        return [(row[process], tls) for row, tls in rows if len(row) > 1]

    def addresses(self) -> list[Address]:
        """Where they listen, the ports as chosen."""
        names = [row[0].getsockname() for row in self._rows]
        return [
            Address(path=name) if isinstance(name, str) else Address(name[0], name[1], tls=tls)
            for name, tls in zip(names, self._tls, strict=True)
        ]

    def keep(self, process: int) -> None:
        """In a process of its own: leave alone what belongs to others, and the paths."""
        mine = [sock for sock, _ in self.of(process)]
        for row in self._rows:
            for sock in row:
                if sock not in mine:
                    sock.close()
        self._rows = [[sock] for sock in mine]
        self._paths = []

    def close(self) -> None:
        """Stop listening."""
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
        # Bound as if alone: with SO_REUSEPORT it would join another proxy at the same address.
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
        del made[1:]  # not to be had on this system: they share the first one
    return made


def _prepare(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    sock.setblocking(False)


def _bind_unix(path: str, mode: int) -> socket.socket:
    """A listening socket with these permissions. A socket that nobody serves is replaced."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(Path(path).stat().st_mode):
            raise OSError(errno.EEXIST, "there is a file that is no socket")
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(path)
            except ConnectionRefusedError:
                os.unlink(path)
            else:
                raise OSError(errno.EADDRINUSE, "address already in use")
    sock = socket.socket(socket.AF_UNIX)
    mask = os.umask(0o777 & ~mode)  # at no time is it more open
    try:
        sock.setblocking(False)
        sock.bind(path)
        if stat.S_IMODE(os.lstat(path).st_mode) != mode:  # (not every system heeds the mask)
            os.chmod(path, mode)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    finally:
        os.umask(mask)
    return sock
