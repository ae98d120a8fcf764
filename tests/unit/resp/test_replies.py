"""replies: however a server's bytes are cut, the same frames come out, and no byte is lost."""

from __future__ import annotations

import tracemalloc

import pytest
from rlproxy.resp.replies import ReplyFramer

from tests.unit.resp.pieces import single_bytes

FRAMES = [
    b"+OK\r\n",
    b"-ERR no\r\n",
    b":0\r\n",
    b"$0\r\n\r\n",
    b"$5\r\na\r\nbc\r\n",
    b"$12\r\n+OK\r\n-ERR\r\n \r\n",
    b"$-1\r\n",
    b"*0\r\n",
    b"*2\r\n+a\r\n:1\r\n",
    b"*3\r\n*0\r\n*-1\r\n*2\r\n$1\r\nx\r\n*1\r\n+y\r\n",
    b"_\r\n",
    b"#t\r\n",
    b",1.5\r\n",
    b"(123456789012345678901234567890\r\n",
    b"!8\r\nERR a\r\nb\r\n",
    b"=7\r\ntxt:a\r\n\r\n",
    b"%2\r\n+a\r\n:1\r\n+b\r\n*1\r\n:2\r\n",
    b"~2\r\n+a\r\n+b\r\n",
    b"|1\r\n+ttl\r\n:3\r\n$1\r\nx\r\n",
    b"*2\r\n|1\r\n+ttl\r\n:3\r\n:1\r\n:2\r\n",
    b"|1\r\n+a\r\n%1\r\n+b\r\n+c\r\n|1\r\n+d\r\n+e\r\n*1\r\n+f\r\n",
    b"*2\r\n:1\r\n>1\r\n+a\r\n:2\r\n",  # Redis 7.0 can write a push between EXEC's elements
    b"$70000\r\n" + b"x" * 70000 + b"\r\n",
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
    assert framer.frame() == push
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
            assert framer.frame() == b""
            assert (framer.pos, framer.mid, framer.broken) == (0, False, False)
        framer.feed(push[cut:] + b"+2\r\n")
        assert framer.frame() == push
        assert framer.frame() == b"+2\r\n"


BROKEN = [
    b"PING\r\n",
    b"\r\n",
    b"x",
    b"$-2\r\n",
    b"*-2\r\n",
    b"$\r\n",
    b"*1\r\n@\r\n",
    b"$1x\r\n",
    b"$99999999999999999999\r\n",
    b"$" + b"1" * 40,
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


# -- frames that are cut ---------------------------------------------------------------------------


def test_a_header_cut_inside_a_released_frame_is_not_taken_for_a_frame() -> None:
    framer = ReplyFramer()
    framer.feed(b"*2\r\n:1\r\n$1")
    assert framer.skip(5) == 0
    framer.release()
    assert framer.skip(5) == 0
    assert (framer.pos, framer.mid) == (0, True)
    framer.feed(b"\r\nx\r\n+behind\r\n")
    assert framer.skip(1) == 1
    assert framer.line() == b"+behind\r\n"
