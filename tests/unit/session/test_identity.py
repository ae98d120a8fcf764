"""identity: what AUTH, HELLO and SELECT make of the identity of their connection."""

from __future__ import annotations

import pytest
from rlproxy.session import identity as ids

Key = tuple[bytes | None, bytes | None, int] | None
LONG = b"x" * (ids.MAX_CREDENTIAL_BYTES - 1)


def key(found: ids.Identity | None) -> Key:
    return found.key() if found is not None else None


@pytest.mark.parametrize(
    ("word", "number"),
    [(b"0", 0), (b"15", 15), (b"123456789", 123456789), (b"1234567890", -1), (b"03", -1)]
    + [(b"", -1), (b"-1", -1), (b"+1", -1), (b" 1", -1), (b"x", -1), (b"\xb2", -1)],
)
def test_database(word: bytes, number: int) -> None:
    assert ids.database(word) == number
    assert key(ids.of_select([word])) == ((None, None, number) if number >= 0 else None)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ([], None),
        ([b"pw"], (b"default", b"pw", 0)),
        ([b"bob", b"pw"], (b"bob", b"pw", 0)),
        ([b"bob", b"pw", b"x"], None),
        ([b"b", LONG], (b"b", LONG, 0)),
        ([b"bo", LONG], None),
    ],
)
def test_auth(args: list[bytes], expected: Key) -> None:
    assert key(ids.of_auth(args)) == expected


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
