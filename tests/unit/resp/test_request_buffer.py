"""request_buffer: no byte is lost, and few are copied."""

from __future__ import annotations

import pytest
from rlproxy.resp import requests as f
from rlproxy.resp.encoding import bulks
from rlproxy.resp.requests import RequestFramer

TRAILING = bulks(b"ECHO", b"behind")


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
