"""Fuzz targets of the framers: for every split of the bytes, the result equals that of a simple
parser, and no byte is lost.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rlproxy.resp import requests as f
from rlproxy.resp.commands import COMMANDS, UNKNOWN_COMMAND
from rlproxy.resp.inline import split_inline
from rlproxy.resp.replies import ReplyFramer
from rlproxy.resp.requests import RequestFramer

from tests.fuzz import reference
from tests.fuzz.choices import Choices, pieces
from tests.fuzz.reference import BrokenError, IncompleteError, ProtocolError


@dataclass(frozen=True)
class Found:
    """One command as the framer reported it."""

    name: bytes  # that of its row
    argc: int
    raw: bytes
    args: tuple[bytes, ...] | None  # of a command whose row asks for them
    oversize: bool = False


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
    whole = Framed()
    whole.feed(data)
    assert whole.out + whole.left() == data, whole.out
    for way in ways:
        other = Framed()
        for piece in way:
            other.feed(piece)
        assert other.commands == whole.commands, (other.commands, whole.commands)
        assert other.malformed == whole.malformed
        assert other.out + other.left() == data
    _compare(data, whole)


def _compare(data: bytes, whole: Framed) -> None:
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
    got = [(found.argc, found.raw) for found in whole.commands]
    if whole.malformed:  # it may stop earlier: then the server decides
        assert got == expected[: len(got)], (got, expected)
        return
    assert got == expected, (got, expected)
    # Only within a command of an early name may an error be found late, when its bytes are read.
    assert not isinstance(why, ProtocolError), why
    for found, (argc, _) in zip(whole.commands, expected, strict=True):
        words = reference.request(found.raw, 0, 10**19).words
        assert argc == len(words)
        assert found.name == COMMANDS.get(words[0].upper(), UNKNOWN_COMMAND).name
        if found.args is not None and not found.oversize:
            assert found.args == words[1:], (found.args, words)


class Framed:
    """All that a RequestFramer returns of the bytes that it is fed.

    codes: of its steps, without NEED_MORE.
    """

    def __init__(self) -> None:
        self.framer = RequestFramer()
        self.commands: list[Found] = []
        self.codes: list[int] = []
        self.out = b""
        self.malformed = False
        self._open: Found | None = None

    def feed(self, data: bytes) -> None:
        framer = self.framer
        framer.feed(data)
        while not self.malformed:
            before = framer.unread()
            code = framer.next()
            if code == f.NEED_MORE:
                framer.release()
                return
            self.codes.append(code)
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
                whole = framer.command.whole
                args = tuple(framer.arguments()) if whole else None
                oversize = whole and framer.oversize
                self._open = Found(framer.command.name, framer.argc, raw, args, oversize)
            else:
                assert self._open is not None
                self._open = replace(self._open, raw=self._open.raw + raw)
            if code in (f.COMMAND, f.TAIL):
                assert not framer.in_command()
                self.commands.append(self._open)
                self._open = None
            else:
                assert framer.in_command()

    def left(self) -> bytes:
        """What was fed and not returned."""
        framer = self.framer
        if not self.malformed:
            framer.start = framer.pos
        return framer.rest()


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
