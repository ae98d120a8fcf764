"""sharing: which single ordinary command takes a shared connection (--share)."""

from __future__ import annotations

import pytest
from rlproxy.resp.encoding import bulks
from rlproxy.session.sharing import Sharing

from tests.unit.session.parts import Parts

GET = bulks(b"GET", b"k")
SET = bulks(b"SET", b"k", b"v")


class Shared(Parts):
    """The parts of a client of --share that may leave its private connection."""

    def __init__(self) -> None:
        super().__init__(share=True)
        self.opened()
        self.sharing = Sharing(self.parts)

    def sends(self, data: bytes) -> bool:
        """Whether `data`, fed now, goes by a shared connection."""
        self.requests.feed(data)
        return self.sharing.send()


def test_a_command_in_pieces_goes_when_it_is_whole() -> None:
    parts = Shared()
    assert not parts.sends(GET[:7])
    assert parts.sends(GET[7:])
    assert [call.key for call in parts.shared_lane.calls] == [GET]


def follow(parts: Shared, *words: bytes) -> None:
    """Have a command of the client followed, as the router does before it forwards it."""
    parts.requests.feed(bulks(*words))
    parts.requests.next()
    parts.sharing.note()
    parts.requests.rest()


@pytest.mark.parametrize("last", [(b"WAIT", b"0", b"0"), (b"client", b"capa", b"redirect")])
def test_a_client_shares_no_more_behind(last: tuple[bytes, ...]) -> None:
    parts = Shared()
    follow(parts, *last)
    follow(parts, b"CLIENT", b"ID")
    assert not parts.sends(GET)
    assert not parts.sends(SET)


@pytest.mark.parametrize("words", [(b"CLIENT", b"ID"), (b"CLIENT",), (b"SELECT", b"1")])
def test_other_commands_do_not_end_sharing(words: tuple[bytes, ...]) -> None:
    parts = Shared()
    follow(parts, *words)
    assert parts.sends(GET)
