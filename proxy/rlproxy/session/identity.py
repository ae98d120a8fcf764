"""The identity of a connection at Redis, and its parts as clients write them."""

from __future__ import annotations

from typing import Final

MAX_CREDENTIAL_BYTES: Final = 512  # stored until Redis replies; longer ones are not followed


class Identity:
    """The identity of a connection at Redis. `user` and `password` are None before any AUTH."""

    def __init__(self, user: bytes | None, password: bytes | None, db: int) -> None:
        self.user = user
        self.password = password
        self.db = db

    def key(self) -> tuple[bytes | None, bytes | None, int]:
        """Return the key that identifies a lane."""
        return (self.user, self.password, self.db)


ANONYMOUS: Final = Identity(None, None, 0)  # of a new connection


def database(word: bytes) -> int:
    """Return the number that SELECT reads in `word`; -1 for none, or for ten digits or more."""
    canonical = word.isdigit() and len(word) < 10 and (word == b"0" or word[:1] != b"0")
    return int(word) if canonical else -1


def of_select(args: list[bytes]) -> Identity | None:
    """Return the identity, without a user, in the database of `SELECT args`; None if uncertain."""
    number = database(args[0]) if len(args) == 1 else -1
    return Identity(None, None, number) if number >= 0 else None


def of_auth(args: list[bytes]) -> Identity | None:
    """Return the identity after `AUTH args`, in database 0; None if it is not certain."""
    if len(args) not in (1, 2):
        return None
    user, password = args if len(args) == 2 else (b"default", args[0])
    return Identity(user, password, 0) if len(user + password) <= MAX_CREDENTIAL_BYTES else None


def of_hello(args: list[bytes]) -> tuple[Identity | None, bool]:
    """Return the identity that `HELLO args` requests, if any, and whether that is certain."""
    found: Identity | None = None
    index = 1
    while index < len(args):
        # Redis compares these words as C strings, so a NUL ends them.
        word = args[index].upper().partition(b"\0")[0]
        if word == b"AUTH" and index + 2 < len(args):
            found = of_auth(args[index + 1 : index + 3])
            if found is None:
                return (None, False)
            index += 3
        elif word == b"SETNAME" and index + 1 < len(args):
            index += 2
        else:
            return (None, False)  # an unfamiliar option
    return (found, True)
