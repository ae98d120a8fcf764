"""framing: however the bytes are cut, the same commands and frames come out, no byte is lost."""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rlproxy.resp import commands as c
from rlproxy.resp import framing as f
from rlproxy.resp.encoding import bulks
from rlproxy.resp.framing import ReplyFramer, RequestFramer

CODES = {
    f.NEED_MORE: "NEED_MORE",
    f.COMMAND: "COMMAND",
    f.OPEN: "OPEN",
    f.TAIL: "TAIL",
    f.BODY: "BODY",
    f.EMPTY: "EMPTY",
    f.MALFORMED: "MALFORMED",
}

TRAILING = bulks(b"ECHO", b"behind")


@dataclass(frozen=True)
class Found:
    """One command as the framer told of it, however many pieces it came in."""

    name: bytes
    argc: int
    raw: bytes
    args: tuple[bytes, ...] | None  # of a command whose row asks for them
    oversize: bool = False


class Walk:
    """Everything a framer gives out of the bytes it is fed."""

    def __init__(self) -> None:
        self.framer = RequestFramer()
        self.commands: list[Found] = []
        self.codes: list[str] = []
        self.out = b""
        self.malformed = False
        self._open: Found | None = None
        self._raw = b""

    def feed(self, data: bytes) -> None:
        framer = self.framer
        framer.feed(data)
        while not self.malformed:
            code = framer.next()
            if code == f.NEED_MORE:
                break
            self.codes.append(CODES[code])
            if code == f.MALFORMED:
                self.malformed = True
                break
            raw = framer.buf[framer.start : framer.end]
            assert framer.end == framer.pos
            self.out += raw
            if code == f.EMPTY:
                continue
            if code in (f.COMMAND, f.OPEN):
                whole = framer.command.whole
                args = tuple(framer.arguments()) if whole else None
                found = Found(framer.name, framer.argc, b"", args, framer.oversize)
                self._raw = raw
                self._open = found
            else:
                self._raw += raw
            if code in (f.COMMAND, f.TAIL):
                assert self._open is not None
                done = self._open
                self.commands.append(
                    Found(done.name, done.argc, self._raw, done.args, done.oversize)
                )
                self._open = None
        if not self.malformed:
            framer.release()

    def left(self) -> bytes:
        """What was fed and not given out."""
        framer = self.framer
        if not self.malformed:
            framer.start = framer.pos
        return framer.rest()


def walk(pieces: list[bytes]) -> Walk:
    made = Walk()
    for piece in pieces:
        made.feed(piece)
    return made


def single_bytes(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


def three_ways(data: bytes) -> list[tuple[str, Walk]]:
    """`data` whole, byte by byte, and with a command trailing in the same read."""
    return [
        ("whole", walk([data])),
        ("bytes", walk(single_bytes(data))),
        ("trailing", walk([data + TRAILING])),
    ]


# -- requests: what is a command -------------------------------------------------------------------

BIG = b"x" * 70000

# bytes -> (name as written, argc, arguments if the command's row asks for them)
COMMAND_CASES: list[tuple[bytes, bytes, int, tuple[bytes, ...] | None]] = [
    (b"*1\r\n$4\r\nPING\r\n", b"PING", 1, None),
    (b"*1\r\n$4\r\nping\r\n", b"ping", 1, None),
    (b"*2\r\n$4\r\nECHO\r\n$0\r\n\r\n", b"ECHO", 2, None),
    (b"*2\r\n$4\r\nECHO\r\n$5\r\na\r\nbc\r\n", b"ECHO", 2, None),
    (b"*1\r\n$0\r\n\r\n", b"", 1, None),
    (b"*2\r\n$3\r\nFOO\r\n$10\r\n*1\r\n$4\r\nab\r\n", b"FOO", 2, None),
    (bulks(b"SET", b"k", b"v" * 11), b"SET", 3, None),
    (bulks(b"SET", b"k", BIG), b"SET", 3, None),
    (bulks(b"x" * 64, b"a"), b"x" * 64, 2, None),
    (bulks(b"x" * 65, b"a"), b"", 2, None),  # longer than any name of the table
    (bulks(BIG), b"", 1, None),
    (bulks(b"AUTH", b"bob", b"p w"), b"AUTH", 3, (b"bob", b"p w")),
    (bulks(b"auth", b"bob"), b"auth", 2, (b"bob",)),
    (bulks(b"Auth", b""), b"Auth", 2, (b"",)),
    (bulks(b"SELECT", b"1"), b"SELECT", 2, (b"1",)),
    (bulks(b"SELECT"), b"SELECT", 1, ()),
    (bulks(b"RL.HIT", b"k", b"10", b"60"), b"RL.HIT", 4, (b"k", b"10", b"60")),
    (bulks(b"rl.peek", b"*1\r\n", b"10", b"60"), b"rl.peek", 4, (b"*1\r\n", b"10", b"60")),
    (bulks(b"Rl.Reset", b"k" * 40000), b"Rl.Reset", 2, (b"k" * 40000,)),
    # inline
    (b"PING\r\n", b"PING", 1, None),
    (b"PING\n", b"PING", 1, None),
    (b"  ping  \r\n", b"ping", 1, None),
    (b"\tECHO\ta\n", b"ECHO", 2, None),
    (b"rl.hit k 10 60\r\n", b"rl.hit", 4, (b"k", b"10", b"60")),
    (b"RL.HIT \"a b\" '1' 60\r\n", b"RL.HIT", 4, (b"a b", b"1", b"60")),
    (b'RL.HIT "\\x41\\n\\"" 1 60\r\n', b"RL.HIT", 4, (b'A\n"', b"1", b"60")),
    (b"POST / HTTP/1.1\r\n", b"POST", 3, None),
    (b"$4\r\n", b"$4", 1, None),
    (b"+OK\r\n", b"+OK", 1, None),
    (b"\xff\xfe\r\n", b"\xff\xfe", 1, None),
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


@pytest.mark.parametrize(("data", "name", "argc", "args"), COMMAND_CASES)
def test_command(data: bytes, name: bytes, argc: int, args: tuple[bytes, ...] | None) -> None:
    for way, found in three_ways(data):
        assert not found.malformed, way
        assert found.commands[0] == Found(name, argc, data, args), way
        assert len(found.commands) == (2 if way == "trailing" else 1), way
        assert found.left() == b"", way


@pytest.mark.parametrize(("data", "name", "argc", "args"), COMMAND_CASES)
def test_every_cut_in_two(
    data: bytes, name: bytes, argc: int, args: tuple[bytes, ...] | None
) -> None:
    cuts = range(1, len(data)) if len(data) < 200 else [1, 4, 20, 30, 16400, len(data) - 1]
    for cut in cuts:
        found = walk([data[:cut], data[cut:] + TRAILING])
        assert found.commands[0] == Found(name, argc, data, args), cut
        assert found.commands[1].name == b"ECHO", cut


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
def test_lenient_is_told(data: bytes) -> None:
    framer = RequestFramer()
    framer.feed(data + TRAILING)
    assert framer.next() == f.COMMAND
    assert framer.lenient
    assert framer.next() == f.COMMAND
    assert not framer.lenient


def test_first_argument_is_where_its_header_begins() -> None:
    framer = RequestFramer()
    framer.feed(bulks(b"RL.HIT", b"key", b"10", b"60"))
    assert framer.next() == f.COMMAND
    assert framer.buf[framer.first :].startswith(b"$3\r\nkey\r\n")
    assert [framer.argument(at) for at in range(3)] == [b"key", b"10", b"60"]


def test_command_row_by_name() -> None:
    for name, kind in ((b"GeT", c.PASS), (b"rl.HIT", c.OURS), (b"nope", c.UNKNOWN)):
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
        assert "EMPTY" in found.codes, way
        assert [each.name for each in found.commands] == ([b"ECHO"] if way == "trailing" else [])
        assert found.left() == b""


MALFORMED = [
    b"*\r\n",
    b"*01\r\n",
    b"*00\r\n",
    b"*+1\r\n",
    b"*-\r\n",
    b"*-0\r\n",
    b"*--1\r\n",
    b"*-01\r\n",
    b"*-99999999999999999999\r\n",
    b"*1\r\n$9999999999999999999\r\n",
    b"*abc\r\n",
    b"* 1\r\n",
    b"*1 \r\n",
    b"*1\n$4\r\nPING\r\n",
    b"*3000000000\r\n",
    b"*2147483648\r\n$4\r\nPING\r\n",
    b"*99999999999999999999\r\n",
    b"*1\r\nfoo\r\n",
    b"*1\r\n+4\r\nPING\r\n",
    b"*1\r\n$-1\r\n",
    b"*1\r\n$-0\r\n",
    b"*1\r\n$+4\r\nPING\r\n",
    b"*1\r\n$04\r\nPING\r\n",
    b"*1\r\n$\r\n",
    b"*1\r\n$4a\r\nPING\r\n",
    b"*2\r\n$4\r\nPING\r\nX1\r\na\r\n",
    b"*2\r\n$4\r\nPING\r\n$x\r\na\r\n",
    b"*2\r\n$4\r\nPING\r\n$-\r\n\r\n",
    b"*2\r\n$4\r\nAUTH\r\n$-1\r\n",
    b"*4\r\n$6\r\nRL.HIT\r\n$1\r\nk\r\n:2\r\n10\r\n$2\r\n60\r\n",
    b'GET "a\r\n',
    b"GET 'a\r\n",
    b'GET "a"b\r\n',
    b"GET 'a'b\r\n",
    b"GET 'a\\\r\n",
    b"GE\0T a\r\n",
    b"x" * 65537,
    b"x" * 65537 + b"\r\n",
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


def test_malformed_after_whole_commands_begins_at_start() -> None:
    framer = RequestFramer()
    framer.feed(TRAILING * 3 + b"*x\r\nmore")
    assert [framer.next() for _ in range(4)] == [f.COMMAND] * 3 + [f.MALFORMED]
    framer.feed(b" and more")
    assert framer.rest() == b"*x\r\nmore and more"
    assert framer.unread() == 0


SPLITS: list[tuple[bytes, list[bytes] | None]] = [
    (b"", []),
    (b" \t ", []),
    (b"a b", [b"a", b"b"]),
    (b"a\tb\rc", [b"a", b"b", b"c"]),
    (b"a\x0bb \x0bc\x0c d", [b"a\x0bb", b"c\x0c", b"d"]),
    (b'"a b" c', [b"a b", b"c"]),
    (b"'a b' c", [b"a b", b"c"]),
    (b'""', [b""]),
    (b"''", [b""]),
    (b"\"\" '' x", [b"", b"", b"x"]),
    (b'"\\n\\r\\t\\b\\a\\\\\\"\\q"', [b'\n\r\t\b\a\\"q']),
    (b'"\\x41\\xfF\\x00"', [b"A\xff\0"]),
    (b'"\\xg1\\x4"', [b"xg1x4"]),
    (b"'\\n\\x41\\''", [b"\\n\\x41'"]),
    (b"'\\\\'", None),
    (b'a"b c"', [b"ab c"]),
    (b"a'b c' d", [b"ab c", b"d"]),
    (b'"a', None),
    (b"'a", None),
    (b'"a\\"', None),
    (b"'a\\'", None),
    (b'"a"b', None),
    (b"'a''b'", None),
    (b'a"b"c', None),
    (b'x "', None),
]


@pytest.mark.parametrize(("line", "words"), SPLITS)
def test_split_inline(line: bytes, words: list[bytes] | None) -> None:
    assert f.split_inline(line) == words


# -- requests: commands that are not whole ---------------------------------------------------------


def test_open_command_streams() -> None:
    framer = RequestFramer()
    data = bulks(b"SET", b"k", b"v" * 100)
    framer.feed(data[:40])
    assert framer.next() == f.OPEN
    assert (framer.name, framer.argc, framer.start, framer.end) == (b"SET", 3, 0, 40)
    assert framer.in_command()
    assert framer.next() == f.NEED_MORE
    framer.release()
    framer.feed(data[40:60])
    assert framer.next() == f.BODY
    assert framer.buf[framer.start : framer.end] == data[40:60]
    framer.release()
    framer.feed(data[60:] + TRAILING)
    assert framer.next() == f.TAIL
    assert framer.buf[framer.start : framer.end] == data[60:]
    assert not framer.in_command()
    assert framer.next() == f.COMMAND
    assert framer.name == b"ECHO"


def test_open_command_keeps_back_a_header_it_cannot_read() -> None:
    framer = RequestFramer()
    framer.feed(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$10")
    assert framer.next() == f.OPEN
    assert framer.buf[: framer.end] == b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n"
    assert framer.unread() == 3
    framer.release()
    framer.feed(b"0\r\n" + b"v" * 50)
    assert framer.next() == f.BODY
    assert framer.buf[framer.start : framer.end] == b"$100\r\n" + b"v" * 50
    framer.release()
    framer.feed(b"v" * 50 + b"\r")
    assert framer.next() == f.BODY
    framer.release()
    framer.feed(b"\nPING\r\n")
    assert framer.next() == f.TAIL
    assert framer.next() == f.COMMAND


def test_open_command_with_a_broken_header_later() -> None:
    framer = RequestFramer()
    framer.feed(b"*4\r\n$3\r\nSET\r\n$1\r\nk\r\n$6\r\nabc")
    assert framer.next() == f.OPEN
    framer.release()
    framer.feed(b"def\r\nX1\r\n")
    assert framer.next() == f.MALFORMED
    assert framer.rest() == b"def\r\nX1\r\n"


def test_more_arguments_than_any_table_needs() -> None:
    framer = RequestFramer()
    framer.feed(b"*1048577\r\n$6\r\nRL.HIT\r\n$1\r\na\r\n")
    assert framer.next() == f.OPEN
    assert framer.command.kind == c.UNKNOWN
    assert framer.name == b""


# -- requests: commands that must be whole, and are too long ---------------------------------------


def rl_of(size: int) -> bytes:
    """An RL.HIT of exactly `size` bytes."""
    bare = len(bulks(b"RL.HIT", b"k" * 10000, b"10", b"60"))
    data = bulks(b"RL.HIT", b"k" * (size - bare + 10000), b"10", b"60")
    assert len(data) == size
    return data


def test_bounds_of_the_contract() -> None:
    assert f.MAX_RL_BYTES == 64 * 1024
    assert f.MAX_INLINE == 64 * 1024  # of Redis: longer is its error
    assert f.MAX_ARGC == 1024 * 1024  # of Redis 6.2: others take more


def test_longest_rl_command() -> None:
    data = rl_of(f.MAX_RL_BYTES)
    for pieces in ([data], [data[:100], data[100:]], [data[:-1], data[-1:]]):
        found = walk(pieces)
        assert [each.oversize for each in found.commands] == [False]
        assert found.codes == ["COMMAND"]


def test_one_byte_longer_than_the_longest_rl_command() -> None:
    data = rl_of(f.MAX_RL_BYTES + 1)
    for pieces in ([data], [data[:100], data[100:]], [data[:-1], data[-1:]]):
        found = walk([*pieces, TRAILING])
        assert [each.oversize for each in found.commands] == [True, False]
        assert found.out == data + TRAILING


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
        assert found.commands[0].name == data.split(b"\r\n", 3)[2]


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


def test_state_argument_of_the_largest_size_that_is_looked_at() -> None:
    found = walk([bulks(b"AUTH", b"p" * f.MAX_STATE_BULK)])
    assert found.commands[0].args == (b"p" * f.MAX_STATE_BULK,)
    assert not found.commands[0].oversize


def test_oversize_keeps_the_arguments_before_the_long_one() -> None:
    found = walk([bulks(b"CLIENT", b"REPLY", b"x" * 20000)])
    assert found.commands[0].args == (b"REPLY",)


# -- requests: rest(), rewind(), release() ---------------------------------------------------------


def test_rewind_gives_out_again() -> None:
    framer = RequestFramer()
    framer.feed(TRAILING * 2 + b"PING\r\n")
    framer.next()
    at = framer.pos
    names = []
    for _ in range(3):
        framer.rewind(at)
        framer.next()
        names.append(framer.name)
        framer.next()
        names.append(framer.name)
    assert names == [b"ECHO", b"PING"] * 3


def test_rewind_leaves_an_open_command() -> None:
    framer = RequestFramer()
    framer.feed(b"*2\r\n$4\r\nECHO\r\n$100\r\nabc")
    assert framer.next() == f.OPEN
    framer.rewind(framer.start)
    assert not framer.in_command()
    framer.feed(b"def")
    assert framer.next() == f.OPEN
    assert framer.buf[framer.start : framer.end].endswith(b"abcdef")


def test_rewind_of_an_inline_beginning() -> None:
    framer = RequestFramer()
    framer.feed(b"PING\r\nPI")
    assert framer.next() == f.COMMAND
    assert framer.next() == f.NEED_MORE
    framer.rewind(0)
    assert framer.next() == f.COMMAND
    assert framer.next() == f.NEED_MORE
    framer.feed(b"NG\r\n")
    assert framer.next() == f.COMMAND
    assert framer.unread() == 0


def test_rest_is_everything_from_the_last_start() -> None:
    framer = RequestFramer()
    framer.feed(b"PING\r\nPING x\r\nPI")
    framer.next()
    framer.next()
    framer.feed(b"NG")
    assert framer.rest() == b"PING x\r\nPING"
    assert framer.unread() == 0


def test_release_keeps_what_is_unread() -> None:
    framer = RequestFramer()
    framer.feed(TRAILING + b"*1\r\n$4")
    framer.next()
    framer.release()
    assert (framer.pos, framer.buf, framer.unread()) == (0, b"*1\r\n$4", 6)
    framer.release()
    framer.feed(b"\r\nPING\r\n")
    assert framer.next() == f.COMMAND
    framer.release()
    assert (framer.pos, framer.buf, framer.unread()) == (0, b"", 0)


def test_unread_counts_what_waits_in_pieces() -> None:
    framer = RequestFramer()
    framer.feed(b"*2\r\n$4\r\nAUTH\r\n$50\r\n")
    assert framer.next() == f.NEED_MORE
    for size in range(1, 20):
        framer.feed(b"p")
        assert framer.next() == f.NEED_MORE
        assert framer.unread() == 19 + size


# -- replies ---------------------------------------------------------------------------------------

FRAMES = [
    b"+OK\r\n",
    b"+\r\n",
    b"-ERR no\r\n",
    b":0\r\n",
    b":-12\r\n",
    b"$0\r\n\r\n",
    b"$5\r\na\r\nbc\r\n",
    b"$12\r\n+OK\r\n-ERR\r\n \r\n",
    b"$-1\r\n",
    b"*0\r\n",
    b"*-1\r\n",
    b"*2\r\n+a\r\n:1\r\n",
    b"*3\r\n*0\r\n*-1\r\n*2\r\n$1\r\nx\r\n*1\r\n+y\r\n",
    b"_\r\n",
    b"#t\r\n",
    b",1.5\r\n",
    b",inf\r\n",
    b"(123456789012345678901234567890\r\n",
    b"!8\r\nERR a\r\nb\r\n",
    b"=7\r\ntxt:a\r\n\r\n",
    b"%0\r\n",
    b"%2\r\n+a\r\n:1\r\n+b\r\n*1\r\n:2\r\n",
    b"~2\r\n+a\r\n+b\r\n",
    b"|1\r\n+ttl\r\n:3\r\n$1\r\nx\r\n",
    b"|0\r\n+x\r\n",
    b"*2\r\n|1\r\n+ttl\r\n:3\r\n:1\r\n:2\r\n",
    b"|1\r\n+a\r\n%1\r\n+b\r\n+c\r\n|1\r\n+d\r\n+e\r\n*1\r\n+f\r\n",
    b"*2\r\n:1\r\n>1\r\n+a\r\n:2\r\n",  # Redis 7.0 can write a push between EXEC's elements
    b"$70000\r\n" + BIG + b"\r\n",
]
PUSH = b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n"


def frames_of(pieces: list[bytes]) -> tuple[int, bytes, ReplyFramer]:
    """How many replies ended, what was moved over, and the framer."""
    framer = ReplyFramer()
    count = 0
    out = b""
    for piece in pieces:
        framer.feed(piece)
        before = framer.pos
        count += framer.skip(1 << 30)
        out += framer.buf[before : framer.pos]
        framer.release()
    return count, out, framer


@pytest.mark.parametrize("frame", FRAMES, ids=lambda data: repr(data[:24]))
def test_frame_three_ways(frame: bytes) -> None:
    pieces = single_bytes(frame) if len(frame) < 1000 else [frame[:50], frame[50:-1], frame[-1:]]
    for way, replies in (([frame], 1), (pieces, 1), ([frame + b"+behind\r\n"], 2)):
        count, out, framer = frames_of(way)
        assert count == replies
        assert out == b"".join(way)
        assert not framer.mid
        assert not framer.broken


@pytest.mark.parametrize("frame", FRAMES, ids=lambda data: repr(data[:24]))
def test_pushes_are_not_counted(frame: bytes) -> None:
    stream = PUSH + frame + PUSH + PUSH + frame + PUSH
    for pieces in ([stream], single_bytes(stream) if len(stream) < 1000 else [stream]):
        count, out, framer = frames_of(pieces)
        assert (count, out, framer.mid) == (2, stream, False)


@pytest.mark.parametrize("frame", FRAMES, ids=lambda data: repr(data[:24]))
def test_an_unfinished_frame_is_told(frame: bytes) -> None:
    for cut in [1, 2, len(frame) // 2, len(frame) - 1]:
        framer = ReplyFramer()
        framer.feed(frame[:cut])
        assert framer.skip(5) == 0
        assert framer.mid or framer.pos == 0
        framer.feed(frame[cut:])
        assert framer.skip(5) == 1
        assert not framer.mid


def test_skip_stops_at_its_limit() -> None:
    framer = ReplyFramer()
    framer.feed(b"+1\r\n" + PUSH + b"+2\r\n+3\r\n")
    assert framer.skip(0) == 0
    assert framer.pos == 0
    assert framer.skip(1) == 1
    assert framer.skip(1) == 1
    assert framer.buf[framer.pos :] == b"+3\r\n"
    assert framer.skip(7) == 1


def test_skip_of_none_moves_over_pushes() -> None:
    framer = ReplyFramer()
    framer.feed(PUSH + PUSH + b"+1\r\n")
    assert framer.at_push()
    assert framer.skip(0) == 0
    assert not framer.at_push()
    assert framer.line() == b"+1\r\n"


def test_half_a_push() -> None:
    framer = ReplyFramer()
    framer.feed(PUSH[:-3])
    assert framer.at_push()
    framer.skip(0)
    assert framer.mid
    assert not framer.at_push()
    framer.feed(PUSH[-3:] + b"+1\r\n")
    framer.skip(0)
    assert not framer.mid
    assert framer.line() == b"+1\r\n"


def test_line_and_frame() -> None:
    framer = ReplyFramer()
    framer.feed(b"*2\r\n+a\r\n$2\r\nb")
    assert framer.line() == b"*2\r\n"
    assert framer.frame() == b""
    assert (framer.pos, framer.mid) == (0, False)
    framer.feed(b"c\r\n-ERR")
    assert framer.frame() == b"*2\r\n+a\r\n$2\r\nbc\r\n"
    assert framer.line() == b""
    assert framer.frame() == b""
    framer.feed(b" x\r\n")
    assert framer.line() == framer.frame() == b"-ERR x\r\n"


@pytest.mark.parametrize("behind", [PUSH, PUSH[:3], PUSH[:-3], PUSH + PUSH + b"+2\r\n"])
def test_frame_is_one_reply_and_leaves_a_push_behind_it(behind: bytes) -> None:
    framer = ReplyFramer()
    framer.feed(b"+1\r\n" + behind)
    assert framer.frame() == b"+1\r\n"
    assert framer.buf[framer.pos :] == behind
    assert not framer.mid
    assert framer.rest() == behind


PUSHES = [
    PUSH,
    b">2\r\n$10\r\ninvalidate\r\n_\r\n",
    b">0\r\n",
    b">1\r\n+x\r\n",
    b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$12\r\n>1\r\n+x\r\n\r\n\r\n\r\n",
    b">2\r\n*2\r\n:1\r\n*0\r\n%1\r\n+a\r\n>1\r\n+b\r\n+c\r\n",
]


@pytest.mark.parametrize("push", PUSHES)
@pytest.mark.parametrize("behind", [b"", b"+1\r\n", b"+1", b">", PUSH, PUSH[:4], PUSH + b"+1\r\n"])
def test_push_is_one_and_leaves_what_is_behind_it(push: bytes, behind: bytes) -> None:
    framer = ReplyFramer()
    framer.feed(push + behind)
    assert framer.at_push()
    assert framer.push() == push
    assert framer.buf[framer.pos :] == behind
    assert not framer.mid
    assert framer.at_push() == behind.startswith(b">")


@pytest.mark.parametrize("push", PUSHES)
def test_a_push_that_is_not_all_here_stays(push: bytes) -> None:
    for cut in range(1, len(push)):
        framer = ReplyFramer()
        framer.feed(b"+1\r\n" + push[:cut])
        assert framer.frame() == b"+1\r\n"
        framer.release()
        for _ in range(2):
            assert framer.at_push()
            assert framer.push() == b""
            assert (framer.pos, framer.mid, framer.broken) == (0, False, False)
        framer.feed(push[cut:] + b"+2\r\n")
        assert framer.push() == push
        assert framer.frame() == b"+2\r\n"


def test_push_where_there_is_none_takes_nothing() -> None:
    framer = ReplyFramer()
    assert not framer.at_push()
    assert framer.push() == b""
    framer.feed(b"+1\r\n" + PUSH)
    assert not framer.at_push()
    assert framer.push() == b""
    assert framer.frame() == b"+1\r\n"


@pytest.mark.parametrize("push", [b">x\r\n", b">-2\r\n", b">1\r\n@\r\n", b">" + b"1" * 40])
def test_a_broken_push_is_told(push: bytes) -> None:
    framer = ReplyFramer()
    framer.feed(push)
    assert framer.push() == b""
    assert framer.broken


BROKEN = [
    b"PING\r\n",
    b"\r\n",
    b"x",
    b"$-2\r\n",
    b"*-2\r\n",
    b"$a\r\n",
    b"$\r\n",
    b"*1\r\n@\r\n",
    b"$?\r\n",
    b"$1x\r\n",
    b"$99999999999999999999\r\n",
    b"$" + b"1" * 40,
    b"*1 \r\n",
]


@pytest.mark.parametrize("data", BROKEN)
def test_broken_reply(data: bytes) -> None:
    for pieces in ([b"+OK\r\n" + data], single_bytes(b"+OK\r\n" + data)):
        framer = ReplyFramer()
        out = b""
        count = 0
        for piece in pieces:
            framer.feed(piece)
            before = framer.pos
            count += framer.skip(9)
            out += framer.buf[before : framer.pos]
            if framer.broken:
                break
        assert framer.broken
        assert count == 1
        assert (out + framer.rest()).startswith(b"+OK\r\n")


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


@pytest.mark.parametrize("header", [b"*2147483647\r\n", b"$536870912\r\n", b"%999999999\r\n:1\r\n"])
def test_a_reply_header_allocates_nothing(header: bytes) -> None:
    tracemalloc.start()
    try:
        framer = ReplyFramer()
        framer.feed(header)
        assert framer.skip(1) == 0
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()
    assert framer.mid
    assert framer.pos == len(header)


class Joins(RequestFramer if not f.__file__.endswith(".so") else object):  # type: ignore[misc]
    """Counts how often the interpreted framer copies what it holds."""

    __slots__ = ("copied",)

    def __init__(self) -> None:
        super().__init__()
        self.copied = 0

    def _join(self) -> None:
        super()._join()
        self.copied += len(self.buf)


@pytest.mark.skipif(f.__file__.endswith(".so"), reason="compiled methods can't be counted")
@pytest.mark.parametrize(
    ("head", "body"),
    [
        (b"*4\r\n$6\r\nRL.HIT\r\n$60000\r\n", b"k" * 60000),
        (b"*2\r\n$4\r\nAUTH\r\n$16000\r\n", b"k" * 16000),
        (b"", b"inline " * 9000),
        (b"*2\r\n$4\r\nECHO\r\n$200000\r\n", b"k" * 200000),
    ],
)
def test_small_pieces_are_not_copied_again_and_again(head: bytes, body: bytes) -> None:
    framer = Joins()
    framer.feed(head)
    for at in range(0, len(body), 10):
        framer.feed(body[at : at + 10])
        while framer.next() not in (f.NEED_MORE, f.MALFORMED):
            framer.release()
    assert framer.copied < 5 * (len(head) + len(body))


# -- any stream, cut anywhere ----------------------------------------------------------------------

names = st.sampled_from(
    [b"GET", b"set", b"PING", b"Auth", b"SELECT", b"rl.hit", b"RL.PEEK", b"MULTI", b"nope", b""]
)
words = st.binary(max_size=30) | st.sampled_from([b"*1\r\n", b"$4\r\n", b"\r\n", b"x" * 300])
multibulk = st.builds(lambda name, rest: bulks(name, *rest), names, st.lists(words, max_size=5))
inline = st.sampled_from(
    [b"PING\r\n", b"get a\n", b'set "a b" c\r\n', b"rl.hit k 10 60\r\n", b" ping \r\n"]
)
blank = st.sampled_from([b"\r\n", b"*0\r\n", b"*-1\r\n", b"\n"])
streams = st.lists(multibulk | inline | blank, max_size=12).map(b"".join)
cut_places = st.lists(st.integers(0, 2000), max_size=30)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    marks = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[a:b] for a, b in pairwise(marks)]


@settings(max_examples=200, deadline=None)
@given(streams, cut_places)
def test_any_cutting_gives_the_same_commands(data: bytes, places: list[int]) -> None:
    whole = walk([data])
    pieces = walk(cut(data, places))
    assert pieces.commands == whole.commands
    assert pieces.out == whole.out == data
    assert not pieces.malformed


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), cut_places)
def test_of_any_bytes_none_is_lost(data: bytes, places: list[int]) -> None:
    found = walk(cut(data, places))
    assert found.out + found.left() == data


@settings(max_examples=200, deadline=None)
@given(streams, st.sampled_from(MALFORMED[:30]), cut_places)
def test_malformed_is_found_behind_any_stream(data: bytes, wrong: bytes, places: list[int]) -> None:
    whole = walk([data + wrong])
    pieces = Walk()
    for piece in cut(data + wrong, places):
        pieces.feed(piece)
    assert whole.malformed
    assert pieces.malformed
    assert pieces.commands == whole.commands
    assert pieces.out + pieces.framer.rest() == data + wrong


reply_trees = st.recursive(
    st.sampled_from([frame for frame in FRAMES if len(frame) < 100]),
    lambda inner: st.lists(inner, max_size=4).map(
        lambda items: b"*%d\r\n" % len(items) + b"".join(items)
    ),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(reply_trees, st.booleans()), max_size=8), cut_places)
def test_any_cutting_gives_the_same_frames(
    items: list[tuple[bytes, bool]], places: list[int]
) -> None:
    data = b"".join(frame + (PUSH if pushed else b"") for frame, pushed in items)
    count, out, framer = frames_of(cut(data, places) or [b""])
    assert count == len(items)
    assert out == data
    assert not framer.mid


@settings(max_examples=100, deadline=None)
@given(st.lists(reply_trees, min_size=1, max_size=6), cut_places)
def test_frame_by_frame(items: list[bytes], places: list[int]) -> None:
    framer = ReplyFramer()
    found: list[bytes] = []
    for piece in cut(b"".join(items), places):
        framer.feed(piece)
        while frame := framer.frame():
            found.append(frame)
    assert found == items


@settings(max_examples=100, deadline=None)
@given(st.lists(reply_trees | st.sampled_from(PUSHES), max_size=8), cut_places)
def test_pushes_and_frames_one_by_one(items: list[bytes], places: list[int]) -> None:
    framer = ReplyFramer()
    found: list[bytes] = []
    for piece in cut(b"".join(items), places):
        framer.feed(piece)
        while each := framer.push() if framer.at_push() else framer.frame():
            found.append(each)
        framer.release()
    assert found == items
