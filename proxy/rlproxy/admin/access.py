"""The token that permits actions, and the address and credentials by which the admin process
connects to its own proxy. No HTTP.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from rlproxy.config.config import Config, ConfigError, own_addresses
from rlproxy.config.urls import Address

MIN_TOKEN: Final = 16  # characters
MAX_TOKEN: Final = 1024  # characters
_TOKEN: Final = re.compile(rb"[!-~]{%d,%d}" % (MIN_TOKEN, MAX_TOKEN))


@dataclass(frozen=True)
class Access:
    """What the admin process needs for actions.

    address: of the proxy, as a client on this machine connects to it.
    user, password: those of --upstream; None where its URL has none.
    token_file: the file of --admin-token-file.
    """

    address: Address
    user: str | None
    password: str | None = field(repr=False)
    token_file: str


@dataclass(frozen=True)
class Launch:
    """What the admin process gets from its parent, pickled, on standard input.

    socket, memory: inherited descriptors of the listening socket and of the shared memory.
    workers: the number of workers in that memory.
    parent: the number of the parent's process.
    access: None without --admin-actions.
    """

    socket: int
    memory: int
    workers: int
    parent: int
    log_level: str
    log_format: str
    access: Access | None


def access_of(config: Config, listening: Sequence[Address]) -> Access | None:
    """Return the access of a proxy that listens at `listening`; None without --admin-actions."""
    if not config.admin_actions:
        return None
    address = own_addresses(config, listening)[0].dialled()
    upstream = config.upstream
    return Access(address, upstream.user, upstream.password, config.admin_token_file)


def read_token(path: str) -> bytes:
    """Return the token in the file of --admin-token-file: its first line.

    Raises ConfigError if it can't be used, with a message that contains no part of the file.
    """
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            mode = os.fstat(file.fileno()).st_mode
            line = file.readline(MAX_TOKEN + 2).strip() if stat.S_ISREG(mode) else b""
    except OSError as error:
        raise ConfigError([f"--admin-token-file {path}: {error.strerror or error}"]) from None
    if not stat.S_ISREG(mode):
        why = "it is not a regular file"
    elif mode & (stat.S_IROTH | stat.S_IWOTH):
        why = f"other users can read or change it; permit that to its owner only: chmod 600 {path}"
    elif not _TOKEN.fullmatch(line):
        why = (
            f"its first line is no token: expected {MIN_TOKEN} to {MAX_TOKEN} printable ASCII "
            "characters without blanks"
        )
    else:
        return line
    raise ConfigError([f"--admin-token-file {path}: {why}"])


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a FIFO has no writer
