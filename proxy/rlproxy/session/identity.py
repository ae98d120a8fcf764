"""The identity of a connection at Redis, and its parts as clients write them."""

from __future__ import annotations

from typing import Final

MAX_CREDENTIAL_BYTES: Final = 512  # stored until Redis replies; longer ones are not followed


class Identity:
    """The identity of a connection at Redis. `user` and `password` are None before any AUTH."""

    __slots__ = ("db", "password", "user")

    def __init__(self, user: bytes | None, password: bytes | None, db: int) -> None:
        self.user = user
        self.password = password
        self.db = db

    def key(self) -> tuple[bytes | None, bytes | None, int]:
        """Return the key that identifies a lane."""
        return (self.user, self.password, self.db)


def database(word: bytes) -> int:
    """Return the number that SELECT reads in `word`; -1 for none, or for ten digits or more."""
    written_so = word.isdigit() and len(word) < 10 and (word == b"0" or word[:1] != b"0")
    return int(word) if written_so else -1


def credential(user: bytes, password: bytes) -> Identity | None:
    """Return the identity of an AUTH in database 0; None if it is too long to be stored."""
    if len(user) + len(password) > MAX_CREDENTIAL_BYTES:
        return None
    return Identity(user, password, 0)
