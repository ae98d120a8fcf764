"""The token that permits actions. No HTTP."""

from __future__ import annotations

import os
import re
import stat
from typing import Final

from rlproxy.config.config import ConfigError

MIN_TOKEN: Final = 16  # characters
MAX_TOKEN: Final = 1024  # characters
_TOKEN: Final = re.compile(rb"[!-~]{%d,%d}" % (MIN_TOKEN, MAX_TOKEN))


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
