"""requests: however a client's bytes are cut, the same commands come out, and no byte is lost."""

from __future__ import annotations

import tracemalloc

import pytest
from rlproxy.resp import commands
from rlproxy.resp import requests as f
from rlproxy.resp.encoding import bulks
from rlproxy.resp.request_buffer import MAX_INLINE
from rlproxy.resp.requests import RequestFramer

from tests.fuzz.framing import Found, Framed
from tests.unit.resp.pieces import single_bytes

TRAILING = bulks(b"ECHO", b"behind")


def row_name(written: bytes) -> bytes:
    """The name of the row of a command; empty if the table has none."""
    return commands.COMMANDS.get(written.upper(), commands.UNKNOWN_COMMAND).name


def walk(pieces: list[bytes]) -> Framed:
    made = Framed()
    for piece in pieces:
        made.feed(piece)
    return made


def three_ways(data: bytes) -> list[tuple[str, Framed]]:
    """`data` whole, byte by byte, and with a command trailing in the same read."""
    return [
        ("whole", walk([data])),
        ("bytes", walk(single_bytes(data))),
        ("trailing", walk([data + TRAILING])),
    ]


# -- requests: what is a command -------------------------------------------------------------------

BIG = b"x" * 70000
LARGE_CASES = [
    pytest.param(bulks(b"SET", b"k", BIG), b"SET", 3, None, marks=pytest.mark.heavy),
    pytest.param(bulks(BIG), b"", 1, None, marks=pytest.mark.heavy),
]

# bytes -> (name, argc, arguments if the command's row asks for them)
COMMAND_CASES: list[tuple[bytes, bytes, int, tuple[bytes, ...] | None]] = [
    (b"*1\r\n$4\r\nPING\r\n", b"PING", 1, None),
    (b"*2\r\n$4\r\nECHO\r\n$0\r\n\r\n", b"ECHO", 2, None),
    (b"*2\r\n$4\r\nECHO\r\n$5\r\na\r\nbc\r\n", b"ECHO", 2, None),
    (b"*1\r\n$0\r\n\r\n", b"", 1, None),
    (b"*2\r\n$3\r\nFOO\r\n$10\r\n*1\r\n$4\r\nab\r\n", b"FOO", 2, None),
    (bulks(b"SET", b"k", b"v" * 11), b"SET", 3, None),
    (bulks(b"x" * 64, b"a"), b"x" * 64, 2, None),
    (bulks(b"x" * 65, b"a"), b"", 2, None),  # longer than any name of the table
    (bulks(b"AUTH", b"bob", b"p w"), b"AUTH", 3, (b"bob", b"p w")),
    (bulks(b"Auth", b""), b"Auth", 2, (b"",)),
    (bulks(b"SELECT"), b"SELECT", 1, ()),
    (bulks(b"RL.HIT", b"k", b"10", b"60"), b"RL.HIT", 4, (b"k", b"10", b"60")),
    (bulks(b"rl.peek", b"*1\r\n", b"10", b"60"), b"rl.peek", 4, (b"*1\r\n", b"10", b"60")),
    (bulks(b"Rl.Reset", b"k" * 40000), b"Rl.Reset", 2, (b"k" * 40000,)),
    # inline
    (b"PING\n", b"PING", 1, None),
    (b"  ping  \r\n", b"ping", 1, None),
    (b"rl.hit k 10 60\r\n", b"rl.hit", 4, (b"k", b"10", b"60")),
    (b"RL.HIT \"a b\" '1' 60\r\n", b"RL.HIT", 4, (b"a b", b"1", b"60")),
    (b'RL.HIT "\\x41\\n\\"" 1 60\r\n', b"RL.HIT", 4, (b'A\n"', b"1", b"60")),
    (b"POST / HTTP/1.1\r\n", b"POST", 3, None),
    (b"+OK\r\n", b"+OK", 1, None),
    # Redis does not look at the byte after a CR, nor at the two bytes after a bulk
    (b"*1\rX$4\rXPINGXX", b"PING", 1, None),
    (b"*4\rX$6\rXRL.HIT??$1\rXk??$2\rX10??$2\rX60??", b"RL.HIT", 4, (b"k", b"10", b"60")),
    (
        b"*4\r\n$6\r\nRL.HIT\r\n$1\r\nk\r\n$2\r\n10\r\n$2\r\n60\n\n",
        b"RL.HIT",
        4,
        (b"k", b"10", b"60"),
    ),
    (
        b"*4\r\n$6\r\nRL.HIT\n\r$1\r\nk\r\n$2\r\n10\r\n$2\r\n60\r\n",
        b"RL.HIT",
        4,
        (b"k", b"10", b"60"),
    ),
]


@pytest.mark.parametrize(("data", "name", "argc", "args"), [*COMMAND_CASES, *LARGE_CASES])
def test_command(data: bytes, name: bytes, argc: int, args: tuple[bytes, ...] | None) -> None:
    for way, found in three_ways(data):
        assert not found.malformed, way
        assert found.commands[0] == Found(row_name(name), argc, data, args), way
        assert len(found.commands) == (2 if way == "trailing" else 1), way
        assert found.left() == b"", way


NOT_OF_THE_PLAIN_FORM = [
    b"PING\r\n",
    b"*1\rX$4\r\nPING\r\n",
    b"*1\r\n$4\rXPING\r\n",
    b"*1\r\n$4\r\nPING\r ",
    b"*2\r\n$6\r\nSELECT\r\n$1\rX1\r\n",
    b"*2\r\n$6\r\nSELECT\r\n$1\r\n1 \n",
    b"*2\r\n$6\r\nSELECT\r\n$10\r 0123456789\r\n",
    b"*4\r\n$6\r\nRL.HIT  $1\r\nk\r\n$2\r\n10\r\n$2\r\n60\r\n",
]


@pytest.mark.parametrize("data", NOT_OF_THE_PLAIN_FORM)
def test_lenient_forms_are_reported(data: bytes) -> None:
    framer = RequestFramer()
    framer.feed(data + TRAILING)
    assert framer.next() == f.COMMAND
    assert framer.lenient
    assert framer.next() == f.COMMAND
    assert not framer.lenient


def test_command_row_by_name() -> None:
    for name, kind in (
        (b"GeT", commands.PASS),
        (b"rl.HIT", commands.OURS),
        (b"nope", commands.UNKNOWN),
    ):
        framer = RequestFramer()
        framer.feed(bulks(name, b"x"))
        assert framer.next() in (f.COMMAND, f.OPEN)
        assert framer.command.kind == kind
        framer = RequestFramer()
        framer.feed(name + b" x\r\n")
        assert framer.next() == f.COMMAND
        assert framer.command.kind == kind


@pytest.mark.parametrize(
    "data", [b"\r\n", b"\n", b"   \r\n", b"*0\r\n", b"*-1\r\n", b"*-10\r\n", b'""\r\n'[2:]]
)
def test_empty_gets_no_reply(data: bytes) -> None:
    for way, found in three_ways(data):
        assert f.EMPTY in found.codes, way
        assert [each.name for each in found.commands] == ([b"ECHO"] if way == "trailing" else [])
        assert found.left() == b""


MALFORMED = [
    b"*\r\n",
    b"*01\r\n",
    b"*+1\r\n",
    b"*-\r\n",
    b"*-0\r\n",
    b"*-99999999999999999999\r\n",
    b"*1\r\n$9999999999999999999\r\n",
    b"*abc\r\n",
    b"*1\n$4\r\nPING\r\n",
    b"*2147483648\r\n$4\r\nPING\r\n",
    b"*99999999999999999999\r\n",
    b"*1\r\nfoo\r\n",
    b"*1\r\n+4\r\nPING\r\n",
    b"*1\r\n$-1\r\n",
    b"*1\r\n$04\r\nPING\r\n",
    b"*1\r\n$\r\n",
    b"*1\r\n$4a\r\nPING\r\n",
    b"*2\r\n$4\r\nPING\r\nX1\r\na\r\n",
    b"*2\r\n$4\r\nPING\r\n$-\r\n\r\n",
    b"*2\r\n$4\r\nAUTH\r\n$-1\r\n",
    b"*4\r\n$6\r\nRL.HIT\r\n$1\r\nk\r\n:2\r\n10\r\n$2\r\n60\r\n",
    b'GET "a\r\n',
    b"GET 'a\r\n",
    b'GET "a"b\r\n',
    b"GET 'a\\\r\n",
    b"GE\0T a\r\n",
    b"x" * 65537,
    b"a " * 40000,
]


@pytest.mark.parametrize("data", MALFORMED, ids=lambda data: repr(data[:24]))
def test_malformed(data: bytes) -> None:
    pieces = single_bytes(data) if len(data) < 1000 else [data[:1000], data[1000:]]
    for way in ([data], pieces, [data + TRAILING]):
        found = walk(way)
        assert found.malformed
        assert found.commands == []
        # Whatever was not given out is still there for Redis to judge.
        assert found.out + found.left() == b"".join(way)


# -- requests: commands that are not whole ---------------------------------------------------------


def test_open_command_streams() -> None:
    framer = RequestFramer()
    data = bulks(b"SET", b"k", b"v" * 100)
    framer.feed(data[:40])
    assert framer.next() == f.OPEN
    assert (framer.command.name, framer.argc, framer.start, framer.pos) == (b"SET", 3, 0, 40)
    assert framer.in_command()
    assert framer.next() == f.NEED_MORE
    framer.release()
    framer.feed(data[40:60])
    assert framer.next() == f.BODY
    assert framer.buf[framer.start : framer.pos] == data[40:60]
    framer.release()
    framer.feed(data[60:] + TRAILING)
    assert framer.next() == f.TAIL
    assert framer.buf[framer.start : framer.pos] == data[60:]
    assert not framer.in_command()
    assert framer.next() == f.COMMAND
    assert framer.command.name == b"ECHO"


# -- requests: commands that must be whole, and are too long ---------------------------------------


def rl_of(size: int) -> bytes:
    """An RL.HIT of exactly `size` bytes."""
    bare = len(bulks(b"RL.HIT", b"k" * 10000, b"10", b"60"))
    data = bulks(b"RL.HIT", b"k" * (size - bare + 10000), b"10", b"60")
    assert len(data) == size
    return data


def test_bounds_of_the_contract() -> None:
    assert f.MAX_RL_BYTES == 64 * 1024
    assert MAX_INLINE == 64 * 1024  # of Redis: longer is its error
    assert f.MAX_ARGC == 1024 * 1024  # of Redis 6.2: others take more


def test_longest_rl_command() -> None:
    data = rl_of(f.MAX_RL_BYTES)
    for pieces in ([data], [data[:100], data[100:]], [data[:-1], data[-1:]]):
        found = walk(pieces)
        assert [each.oversize for each in found.commands] == [False]
        assert found.codes == [f.COMMAND]


OVERSIZE = [
    bulks(b"RL.HIT", b"k", b"10", b"x" * 200000),
    bulks(b"RL.RESET", *([b"key"] * 10000)),
    bulks(b"RL.PEEK", b"k" * 70000),
    bulks(b"AUTH", b"bob", b"p" * (f.MAX_STATE_BULK + 1)),
    bulks(b"CLIENT", b"SETNAME", b"n" * 100000, b"x"),
    bulks(b"HELLO", b"3", *([b"SETNAME", b"a" * 10000] * 10)),
    bulks(b"SCRIPT", b"LOAD", b"return 1" + b" " * 20000),
]


@pytest.mark.parametrize("data", OVERSIZE, ids=lambda data: repr(data[:24]))
def test_oversize(data: bytes) -> None:
    for size in (len(data), 30000, 7777):
        pieces = [data[at : at + size] for at in range(0, len(data), size)]
        found = walk([*pieces, TRAILING])
        assert [each.oversize for each in found.commands] == [True, False], size
        assert found.commands[0].raw == data
        assert found.commands[0].name == row_name(data.split(b"\r\n", 3)[2])


def test_oversize_command_is_never_held_whole() -> None:
    framer = RequestFramer()
    framer.feed(b"*4\r\n$6\r\nRL.HIT\r\n$1\r\nk\r\n$100000000\r\n")
    assert framer.next() == f.OPEN
    assert framer.oversize
    for _ in range(20):
        framer.release()
        framer.feed(b"x" * 65536)
        assert framer.next() == f.BODY
        assert framer.unread() == 0


# -- requests: rewind() ---------------------------------------------------------


def test_rewind_gives_out_again() -> None:
    framer = RequestFramer()
    framer.feed(TRAILING * 2 + b"PING\r\n")
    framer.next()
    at = framer.pos
    names = []
    for _ in range(3):
        framer.rewind(at)
        framer.next()
        names.append(framer.command.name)
        framer.next()
        names.append(framer.command.name)
    assert names == [b"ECHO", b"PING"] * 3


# -- bounds ----------------------------------------------------------------------------------------

PROMISES = [
    b"*2147483647\r\n",
    b"*1048577\r\n$536870912\r\n",
    b"*2\r\n$536870912\r\n",
    b"*2\r\n$4\r\nECHO\r\n$536870912\r\n",
    b"*2147483647\r\n$4\r\nECHO\r\n",
    b"*1000000\r\n$6\r\nRL.HIT\r\n$1\r\nk\r\n",
    b"*4\r\n$6\r\nRL.HIT\r\n$536870912\r\n",
    b"*2\r\n$4\r\nAUTH\r\n$536870912\r\n",
]


@pytest.mark.parametrize("header", PROMISES)
def test_a_request_header_allocates_nothing(header: bytes) -> None:
    tracemalloc.start()
    try:
        framer = RequestFramer()
        framer.feed(header)
        framer.next()
        framer.next()
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()
    assert framer.unread() <= len(header)
