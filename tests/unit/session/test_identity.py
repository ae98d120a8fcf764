"""identity: what AUTH, HELLO and SELECT make of the identity of their connection."""

from __future__ import annotations

import pytest
from rlproxy.session import identity as ids

Key = tuple[bytes | None, bytes | None, int] | None
LONG = b"x" * (ids.MAX_CREDENTIAL_BYTES - 1)


def key(found: ids.Identity | None) -> Key:
    return found.key() if found is not None else None


@pytest.mark.parametrize(
    ("args", "expected", "certain"),
    [
        ([b"3"], None, True),
        ([b"3", b"SETNAME", b"x"], None, True),
        ([b"3", b"auth", b"bob", b"pw"], (b"bob", b"pw", 0), True),
        ([b"3", b"AUTH\0x", b"bob", b"pw"], (b"bob", b"pw", 0), True),
        ([b"3", b"SETNAME", b"AUTH", b"AUTH", b"bob", b"pw"], (b"bob", b"pw", 0), True),
        ([b"3", b"AUTH", b"a", b"b", b"AUTH", b"bob", b"pw"], (b"bob", b"pw", 0), True),
        ([b"3", b"AUTH", b"bob"], None, False),
        ([b"3", b"SETNAME"], None, False),
        ([b"3", b"FOO"], None, False),
        ([b"3", b"AUTH", b"bob", b"pw", b"FOO"], None, False),
        ([b"3", b"AUTH", b"bo", LONG], None, False),
        ([b"3", b"AUTH", b"bo", LONG, b"AUTH", b"bob", b"pw"], None, False),
    ],
)
def test_hello(args: list[bytes], expected: Key, certain: bool) -> None:
    found, sure = ids.of_hello(args)
    assert (key(found), sure) == (expected, certain)
