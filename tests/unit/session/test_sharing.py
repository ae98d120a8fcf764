"""sharing: which single ordinary command takes a shared connection (--share)."""

from __future__ import annotations

import pytest
from rlproxy.resp import commands
from rlproxy.resp.encoding import EMPTY_REQUEST, bulks
from rlproxy.session.call import Lane
from rlproxy.session.private_stream import REFRESH_S
from rlproxy.session.sharing import MAX_SHARED, PRIVATE_AFTER_LARGE, Sharing

from tests.unit.session.bench import KnowingLane
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


def sized(size: int) -> bytes:
    """Return a GET of `size` bytes."""
    key = size - len(bulks(b"GET", b"")) - len(str(size)) + 1
    request = bulks(b"GET", b"k" * key)
    assert len(request) == size
    return request


@pytest.mark.parametrize(
    ("sent", "shared"),
    [
        (GET, True),
        (SET, True),
        (bulks(b"get", b"k"), True),
        (bulks(b"SET", b"k", b"v", b"EX", b"10"), True),
        (bulks(b"SET", b"k", b"v", b"GET"), False),  # its reply may be large
        (bulks(b"SET", b"k", b"v", b"EX", b"10", b"get"), False),
        (b"GET k\r\n", False),  # inline
        (GET + GET, False),  # a pipeline
        (GET + b"*", False),
        (bulks(b"MULTI"), False),
        (bulks(b"FOO"), False),
        (bulks(b"RL.HIT", b"k", b"10", b"60"), False),
        (sized(MAX_SHARED), True),
        (sized(MAX_SHARED + 1), False),
    ],
)
def test_what_takes_a_shared_connection(sent: bytes, shared: bool) -> None:
    parts = Shared()
    assert parts.sends(sent) == shared
    assert [call.key for call in parts.shared_lane.calls] == ([sent] if shared else [])
    assert parts.lanes.count == int(shared)
    assert parts.requests.unread() == (0 if shared else len(sent))
    assert parts.context.stats.commands == int(shared)


def test_a_command_in_pieces_goes_when_it_is_whole() -> None:
    parts = Shared()
    assert not parts.sends(GET[:7])
    assert parts.sends(GET[7:])
    assert [call.key for call in parts.shared_lane.calls] == [GET]


@pytest.mark.parametrize(
    ("sent", "kind"), [(GET, commands.SHARED_READ), (SET, commands.SHARED_WRITE)]
)
def test_reads_and_writes_take_the_lane_of_their_kind(sent: bytes, kind: int) -> None:
    parts = Shared()
    parts.sends(sent)
    assert parts.asked == [((None, None, 0), 2, kind)]
    assert len(parts.shared_lane.calls) == 1
    writes = kind == commands.SHARED_WRITE
    batch = parts.lanes.batch
    assert batch is not None and (batch.writes, batch.caller) == (writes, parts.caller)
    assert parts.caller.fenced == writes
    assert parts.private.cover.lane_wrote == writes


@pytest.mark.parametrize("ready", [True, False])
def test_without_a_lane_the_command_stays_unread(ready: bool) -> None:
    parts = Shared()
    parts.allowed = not ready
    parts.shared_lane.ready = ready
    assert not parts.sends(GET)
    assert parts.requests.unread() == len(GET)
    assert parts.lanes.count == 0


def test_a_shared_command_keeps_a_silent_private_connection_open() -> None:
    parts = Shared()
    for seconds, written in ((0.0, b""), (REFRESH_S, EMPTY_REQUEST), (0.0, b"")):
        parts.now += seconds
        assert parts.sends(GET)
        assert parts.up() == written


def test_the_last_command_of_a_client_goes_privately() -> None:
    """The private connection gets the end of file behind it."""
    parts = Shared()
    parts.requests.eof = True
    assert not parts.sends(GET)


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


def test_client_capa_does_not_end_sharing_in_a_cluster() -> None:
    parts = Shared()
    parts.context.server.in_cluster = True
    follow(parts, b"CLIENT", b"CAPA", b"REDIRECT")
    assert parts.sends(GET)


def test_reads_go_privately_after_a_large_reply() -> None:
    parts = Shared()
    parts.sharing.had_large_reply()
    for _ in range(PRIVATE_AFTER_LARGE):
        assert not parts.sends(GET)
        parts.requests.rest()
    assert parts.sends(GET)


def test_writes_share_after_a_large_reply() -> None:
    parts = Shared()
    parts.sharing.had_large_reply()
    assert parts.sends(SET)


def test_a_command_that_no_lane_takes_stays_private() -> None:
    parts = Shared()
    lanes: list[Lane | None] = [None, other := KnowingLane()]

    class Choosy(KnowingLane):
        def for_slot(self, slot: int) -> Lane | None:
            return lanes.pop(0)

    parts.shared_lane = Choosy()
    private = bulks(b"SET", b"private", b"v")
    assert not parts.sends(private)
    assert parts.requests.unread() == len(private)
    assert (parts.lanes.count, parts.context.stats.commands) == (0, 0)
    assert not parts.private.cover.lane_wrote and not parts.caller.fenced
    parts.requests.rest()
    assert parts.sends(SET)
    assert not lanes
    assert [call.key for call in other.calls] == [SET]
