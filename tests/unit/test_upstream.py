"""upstream: what an answer tells of whether a password is needed."""

from __future__ import annotations

import pytest

from proxy.upstream import needs_password

TOLD = [
    (b"+PONG\r", False),
    (b"-NOAUTH Authentication required.\r", True),
    (b"-NOPERM this user has no permissions to run the 'ping' command\r", False),
    (b"-LOADING Redis is loading the dataset in memory\r", False),
    (b"-BUSY Redis is busy running a script.\r", False),
    (b"-MASTERDOWN Link with MASTER is down\r", False),
    (b"-DENIED Redis is running in protected mode\r", None),
    (b"-ERR max number of clients reached\r", None),
    (b"HTTP/1.1 400 Bad Request\r", None),
    (b"", None),
]


@pytest.mark.parametrize(("line", "expected"), TOLD)
def test_needs_password(line: bytes, expected: bool | None) -> None:
    assert needs_password(line) is expected
