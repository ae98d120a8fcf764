"""Fuzz targets of the framers: for every split of the bytes, the result equals that of a simple
parser, and no byte is lost.
"""

from __future__ import annotations

from rlproxy.resp import requests as f
from rlproxy.resp.commands import COMMANDS, UNKNOWN_COMMAND
from rlproxy.resp.inline import split_inline
from rlproxy.resp.replies import ReplyFramer
from rlproxy.resp.requests import RequestFramer

from tests.fuzz import reference
from tests.fuzz.choices import Choices, pieces
from tests.fuzz.reference import BrokenError, IncompleteError, ProtocolError

# A whole frame as callers see it: name of its row, number of words, bytes, arguments if requested.
Found = tuple[bytes, int, bytes, tuple[bytes, ...] | None]


def _cut(choices: Choices) -> tuple[bytes, list[list[bytes]]]:
    """Return the data and two ways to cut it."""
    places = [choices.below(65536) for _ in range(choices.below(8))]
    data = choices.rest()
    ways = [pieces(data, places)]
    if len(data) <= 48:
        ways.append([data[at : at + 1] for at in range(len(data))])
    return data, ways


def requests(data: bytes) -> None:
    """Bytes a client may send."""
    data, ways = _cut(Choices(data))
    whole = _Requests()
    whole.feed(data)
    whole.end()
    assert whole.out + whole.left == data, (whole.out, whole.left)
    for way in ways:
        other = _Requests()
        for piece in way:
            other.feed(piece)
        other.end()
        assert other.found == whole.found, (other.found, whole.found)
        assert other.malformed == whole.malformed
        assert other.out + other.left == data
    _compare(data, whole)


def _compare(data: bytes, whole: _Requests) -> None:
    """Compare with the simple parser: the framer finds the same requests, and an error where it
    finds one, possibly later.
    """
    pos = 0
    expected: list[tuple[int, bytes]] = []
    why: Exception | None = None
    while pos < len(data):
        try:
            one = reference.request(data, pos, 10**19)
        except (IncompleteError, ProtocolError) as error:
            why = error
            break
        if one.words:
            expected.append((len(one.words), data[pos : one.end]))
        pos = one.end
    got = [(argc, raw) for _, argc, raw, _ in whole.found]
    if whole.malformed:  # it may stop earlier: then the server decides
        assert got == expected[: len(got)], (got, expected)
        return
    assert got == expected, (got, expected)
    # Only within a command of an early name may an error be found late, when its bytes are read.
    assert not isinstance(why, ProtocolError), why
    for (name, _, raw, args), (argc, _) in zip(whole.found, expected, strict=True):
        words = reference.request(raw, 0, 10**19).words
        assert argc == len(words)
        assert name == COMMANDS.get(words[0].upper(), UNKNOWN_COMMAND).name
        if args is not None:
            assert args == words[1:], (args, words)


class _Requests:
    """Collects everything a RequestFramer returns."""

    def __init__(self) -> None:
        self.framer = RequestFramer()
        self.found: list[Found] = []
        self.out = b""
        self.left = b""
        self.malformed = False
        self._open: Found | None = None

    def feed(self, data: bytes) -> None:
        framer = self.framer
        framer.feed(data)
        while not self.malformed:
            before = framer.unread()
            code = framer.next()
            if code == f.NEED_MORE:
                break
            if code == f.MALFORMED:
                self.malformed = True
                return
            raw = framer.buf[framer.start : framer.pos]
            assert framer.unread() == before - len(raw)
            self.out += raw
            if code == f.EMPTY:
                continue
            if code in (f.COMMAND, f.OPEN):
                assert self._open is None
                asked = framer.command.whole and not framer.oversize
                args = tuple(framer.arguments()) if asked else None
                self._open = (framer.command.name, framer.argc, raw, args)
            else:
                assert self._open is not None
                name, argc, begun, args = self._open
                self._open = (name, argc, begun + raw, args)
            if code in (f.COMMAND, f.TAIL):
                assert not framer.in_command()
                self.found.append(self._open)
                self._open = None
            else:
                assert framer.in_command()
        if not self.malformed:
            framer.release()

    def end(self) -> None:
        framer = self.framer
        if not self.malformed:
            framer.start = framer.pos
        self.left = framer.rest()


def replies(data: bytes) -> None:
    """Bytes a server may send."""
    data, ways = _cut(Choices(data))
    frames: list[tuple[bytes, bool]] = []  # and whether it is a push
    pos = 0
    broken = False
    while pos < len(data):
        try:
            end = reference.frame(data, pos)
        except IncompleteError:
            break
        except BrokenError:
            broken = True
            break
        except RecursionError:
            return
        frames.append((data[pos:end], data[pos : pos + 1] == b">"))
        pos = end
    for way in [[data], *ways]:
        _count(way, frames, data, broken)
        _one_by_one(way, frames)


def _count(way: list[bytes], frames: list[tuple[bytes, bool]], data: bytes, broken: bool) -> None:
    framer = ReplyFramer()
    passed = b""
    done = 0
    for piece in way:
        framer.feed(piece)
        before = framer.pos
        done += framer.skip(1 << 30)
        passed += framer.buf[before : framer.pos]
        if framer.broken:
            break
        framer.release()
    assert framer.broken == broken
    assert done == sum(not push for _, push in frames)
    whole = b"".join(frame for frame, _ in frames)
    assert passed.startswith(whole)
    if not broken:
        assert data == passed + framer.rest()


def _one_by_one(way: list[bytes], frames: list[tuple[bytes, bool]]) -> None:
    framer = ReplyFramer()
    found: list[tuple[bytes, bool]] = []
    for piece in way:
        framer.feed(piece)
        while not framer.broken:
            push = framer.at_push()
            one = framer.frame()
            if not one:
                break
            found.append((one, push))
        framer.release()
    assert found == frames, (found, frames)


def inline(data: bytes) -> None:
    """One line of an inline request."""
    line = data.partition(b"\n")[0].partition(b"\0")[0]
    bare = line[:-1] if line.endswith(b"\r") else line
    assert split_inline(line) == reference.split(bare), line
