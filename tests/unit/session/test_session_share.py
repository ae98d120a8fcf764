"""session with --share: which commands leave on a shared lane, and what becomes of them there, with
fake lanes and fed bytes. tests/fuzz/session.py walks at random.
"""

from __future__ import annotations

import pytest
from rlproxy.resp import commands
from rlproxy.resp.encoding import LOST, bulks
from rlproxy.session.call import Call, Lane
from rlproxy.session.context import ServerFacts
from rlproxy.session.identity import Identity
from rlproxy.session.sharing import MAX_SHARED, PRIVATE_AFTER_LARGE

from tests.contexts import worker_context
from tests.part_calls import PartCaller
from tests.unit.session.bench import GRAMMAR, PING, PONG, Bench

OK = b"+OK\r\n"
NIL = b"$-1\r\n"
GET = bulks(b"GET", b"k")
SET = bulks(b"SET", b"k", b"v")
WELCOME = b"%1\r\n$5\r\nproto\r\n:3\r\n"


class Shared(Bench):
    """A client whose private connection has answered a GET: the next one may leave.

    where: identity and protocol of the latest lane for ordinary commands that was requested.
    """

    def __init__(self) -> None:
        self.where: tuple[tuple[bytes | None, bytes | None, int], int] | None = None
        super().__init__(
            context=worker_context(
                grammar=GRAMMAR, server=ServerFacts("redis:1"), lane_of=self.any_lane, shares=True
            )
        )
        self.session.receive(GET)
        self.session.upstream_opened()
        assert self.up() == GET
        assert self.answer(NIL) == NIL

    def any_lane(self, identity: Identity, kind: int, protocol: int) -> Lane | None:
        if kind != commands.HIT:
            self.where = identity.key(), protocol
        return self.lane if protocol in (2, 3) else None

    def take(self) -> Call:
        """The one call that is on the lane; it is there no more."""
        (call,) = self.lane.calls
        self.lane.calls.clear()
        return call

    def shares(self, written: bytes, reply: bytes = NIL) -> bool:
        """Whether `written` leaves by lane, as it is; it is answered either way."""
        up = self.send(written)
        if not up:
            assert [call.key for call in self.lane.calls] == [written]
            assert self.settle(reply) == reply
            return True
        assert self.lane.calls == []
        assert up == written
        assert self.answer(reply) == reply
        return False


def end(call: Call, how: str) -> None:
    """An ordinary command gets no reply of its lane: it is returned, lost or declined."""
    caller = call.caller
    assert isinstance(caller, PartCaller)
    if how == "lost":
        caller.lane_answered(call, LOST)
    else:
        getattr(caller, f"lane_{how}")(call)


# -- what leaves -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "written",
    [
        b"GET k\r\n",
        b"*2\r\n$3\rXGET\r\n$1\r\nk\r\n",
        b"*2\rX$3\r\nGET\r\n$1\r\nk\r\n",
        b"*2\r\n$3\r\nGETXX$1\r\nk\r\n",
        b"*2\r\n$3\r\nGET\r\n$1\r\nk\rX",
        b"*3\r\n$3\r\nSET\r\n$1\r\nk--$1\r\nv\r\n",
        b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$100\r\n" + b"v" * 100 + b"--",
        b"\r\n" + GET,
        GET + GET,
        GET + b"*2\r\n$3\r\nGET\r\n",
        GET + b"\r\n",
        bulks(b"SET", b"k", b"x" * MAX_SHARED),
        bulks(b"SET", b"k", b"v", b"GET"),
        bulks(b"set", b"k", b"v", b"gEt", b"xx"),
        bulks(b"GETDEL", b"k"),
        bulks(b"BLPOP", b"k", b"0"),
        bulks(b"XREAD", b"BLOCK", b"0", b"STREAMS", b"s", b"0"),
        bulks(b"LPOP", b"k"),
        bulks(b"EVAL", b"return 1", b"0"),
        bulks(b"OBJECT", b"FREQ", b"k"),
        bulks(b"WAIT", b"0", b"0"),
        bulks(b"NEW.COMMAND", b"k"),
    ],
)
def test_stays(written: bytes) -> None:
    bench = Shared()
    assert bench.send(written) == written
    assert bench.lane.calls == []


def test_what_leaves_is_in_the_table_of_what_leaves_no_state() -> None:
    for row in commands.COMMANDS.values():
        if row.shared != commands.PRIVATE:
            assert row.kind == commands.PASS
        if row.shared == commands.SHARED_READ:
            assert row.reads  # it may be asked twice
    blocks = b"BLPOP BRPOP BLMOVE BLMPOP BRPOPLPUSH BZPOPMIN BZPOPMAX BZMPOP XREAD XREADGROUP WAIT"
    unbounded = b"GETSET GETDEL GETEX LPOP RPOP SPOP LMPOP ZMPOP ZPOPMIN ZPOPMAX HGETDEL SORT EVAL"
    for name in [*blocks.split(), *unbounded.split()]:
        assert commands.COMMANDS[name].shared == commands.PRIVATE, name


# -- whose lane ------------------------------------------------------------------------------------


def test_the_protocol_is_that_of_the_last_hello() -> None:
    bench = Shared()
    for words, reply, protocol in (
        ((b"3",), WELCOME, 3),
        ((b"4",), b"-NOPROTO unsupported protocol version\r\n", 3),
        ((), WELCOME, 3),
        ((b"2",), b"*2\r\n$5\r\nproto\r\n:2\r\n", 2),
        ((b"3", b"SETNAME", b"x"), WELCOME, 3),
    ):
        assert bench.send(bulks(b"HELLO", *words)) != b""
        bench.answer(reply)
        assert bench.send(GET) == b""
        assert bench.where == ((None, None, 0), protocol)
        bench.settle(NIL)
    assert not bench.shares(bulks(b"RESET"), b"+RESET\r\n")
    assert not bench.shares(GET)
    assert bench.send(GET) == b""
    assert bench.where == ((None, None, 0), 2)


# -- large replies ---------------------------------------------------------------------------------


def test_a_read_with_a_large_reply_is_sent_again_and_later_reads_stay_private() -> None:
    bench = Shared()
    bench.send(GET)
    call = bench.take()
    bench.session.receive(PING)  # waits
    end(call, "declined")
    bench.session.resume()
    assert bench.up() == GET + PING
    assert bench.answer(b"$3\r\n", b"abc\r\n", PONG) == b"$3\r\nabc\r\n" + PONG
    for _ in range(PRIVATE_AFTER_LARGE):
        assert not bench.shares(GET)
    assert bench.shares(GET)


# -- what is lost ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "how", "private_lost"),
    [(SET, "lost", False), *[(GET, how, True) for how in ("returned", "lost", "declined")]],
)
def test_a_client_whose_command_can_not_be_sent_again_is_closed(
    written: bytes, how: str, private_lost: bool
) -> None:
    """A write may have run. Without the private connection it is as if it had gone by that."""
    bench = Shared()
    bench.send(written)
    bench.session.receive(SET)
    call = bench.take()
    if private_lost:
        bench.session.upstream_lost()
    end(call, how)
    bench.session.resume()
    assert bench.session.closed
    assert bench.up() == b""
    assert bench.down() == b""
