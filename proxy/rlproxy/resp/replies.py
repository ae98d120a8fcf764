"""The reply framer: where the frames of a server's byte stream begin and end.

It frames every RESP2 and RESP3 type, nested, with attributes and pushes. It counts top-level frames
without decoding their values. It is incremental, and takes time linear in the bytes that it is fed.
Lengths in headers cause no allocation.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

_CR: Final = 13
_LF: Final = 10
PUSH: Final = 62  # first byte of a push
AGGREGATES: Final = b"*~>"  # first bytes of arrays, sets and pushes
_ATTRIBUTE: Final = 124
_MAX_LENGTH: Final = 24  # longest header, type included, bytes
_NEAR: Final = 40  # bytes of a line that are searched for its end one by one, before find()
_NEAR_LENGTH: Final = 12  # bytes of a header that are parsed in place, before find()
_LINE: Final = -1  # `_missing` inside a line
_NOT_HERE: Final = 1 << 60  # end of a line whose end is not here yet; above every length


class ReplyFramer:
    """The counter of top-level frames in one server's byte stream.

    feed() appends bytes. skip(n) moves `pos` over up to n replies, and stops early where the bytes
    end. Pushes are skipped without being counted; an attribute belongs to the reply behind it.
    The caller may forward all bytes before `pos`.

    mid: True if `pos` is inside a frame.
    broken: True if the stream is not RESP.
    """

    def __init__(self) -> None:
        self.buf: bytes = b""
        self.pos: i64 = 0
        self.last: i64 = -1  # offset in `buf` of the latest top-level frame; -1: before `buf`
        self.mid: bool = False
        self.broken: bool = False
        self._push: bool = False  # the top-level frame is a push
        self._items: i64 = 0  # values that the top-level frame still lacks, behind a cut one
        self._missing: i64 = 0  # bytes that a cut bulk lacks, or _LINE
        self._end: i64 = 0  # result of _header()

    def feed(self, data: bytes) -> None:
        """Append `data` to the unread bytes; offsets into `buf` become invalid."""
        if self.pos >= len(self.buf):
            self.buf = data
        else:
            self.buf = self.buf[self.pos :] + data
        self.pos = 0
        self.last = -1

    def skip(self, limit: i64, pushes: bool = True, uncounted: i64 = PUSH) -> int:
        """Move over up to `limit` replies.

        pushes: move over pushes behind the last reply too.
        uncounted: PUSH, or 0 if a push counts as a reply.
        Returns the number of replies that ended.
        """
        if self._missing != 0 and not self._finish():
            return 0
        data = self.buf
        size: i64 = len(data)
        pos: i64 = self.pos
        items: i64 = self._items
        begun: i64 = 1 if self.mid and not self._push else 0
        while pos < size:
            kind: i64 = data[pos]
            if items > 0:
                items -= 1
            elif begun >= limit and (kind != uncounted or not pushes):
                break
            else:
                self.last = pos
                self._push = kind == uncounted
                begun += kind != uncounted
            if kind in (58, 43, 45, 95, 35, 44, 40):  # : + - _ # , (
                end: i64 = pos + 1  # most lines are short: search for their end without a call
                near: i64 = size - 1 if size - pos <= _NEAR else pos + _NEAR
                while end < near and data[end] != _CR:
                    end += 1
                if end >= near or data[end + 1] != _LF:
                    end = self._line_end(pos)
                end += 2
            else:
                added = self._header(pos)
                if added < 0:
                    # The value is not begun.
                    items += pos != self.last
                    begun -= pos == self.last and kind != uncounted
                    break
                items += added
                end = self._end
            pos = end
            if end > size:
                pos = self._cut(end)
                break
        self._items = items
        self.mid = items > 0 or self._missing != 0
        self.pos = pos
        return begun - 1 if self.mid and not self._push else begun

    def skip_all(self) -> None:
        """Move over all bytes, whatever they are."""
        self.pos = len(self.buf)
        self._items = 0
        self._missing = 0
        self.mid = False

    def _header(self, pos: i64) -> i64:
        """Parse the header at `pos` of a value that is not a line. Sets `_end` to its end.

        Returns the number of values to come inside it or, because it is no value itself, after it.
        Returns -1 if the header is incomplete or not RESP.
        """
        data = self.buf
        size: i64 = len(data)
        kind: i64 = data[pos]
        at = pos + 1
        count: i64 = 0
        near: i64 = size - 1 if size - pos <= _NEAR_LENGTH else pos + _NEAR_LENGTH
        while at < near and 48 <= data[at] <= 57:
            count = 10 * count + data[at] - 48
            at += 1
        if at < near and at > pos + 1 and data[at] == _CR and data[at + 1] == _LF:
            if kind == 36:  # $, the most common one
                self._end = at + count + 4
                return 0
        elif (  # `$-1\r\n`, the nil of RESP2, parsed without a call
            kind == 36
            and size - pos >= 5
            and data[pos + 1] == 45
            and data[pos + 2] == 49
            and data[pos + 3] == _CR
            and data[pos + 4] == _LF
        ):
            self._end = pos + 5
            return 0
        else:
            at = data.find(b"\r\n", pos + 1)  # compiled slices must not end before they begin
            count = _length(data[pos + 1 : at]) if at >= 0 else 0
        bulk = kind in (36, 61, 33)  # $ = !
        array = kind in (42, 126, PUSH)  # * ~ >
        if not (bulk or array or kind in (37, _ATTRIBUTE)) or count < -1:  # %
            self.broken = True
        elif at < 0:
            self.broken = size - pos > _MAX_LENGTH
        else:
            self._end = at + 2
            values = 0 if count < 0 else count if array else 2 * count
            if bulk:
                self._end += count + 2 if count >= 0 else 0
                return 0
            # An attribute is not a value, its value follows. A push inside a frame is not one
            # either: Redis before 7.2 writes pushes between the elements of EXEC's array.
            nested_push = kind == PUSH and pos != self.last
            return values + 1 if kind == _ATTRIBUTE or nested_push else values
        return -1

    def _line_end(self, pos: int) -> int:
        """Return the offset of the line end after `pos`, _NOT_HERE if it has not come yet."""
        at = self.buf.find(b"\r\n", pos)
        return at if at >= 0 else _NOT_HERE

    def _cut(self, end: int) -> int:
        """Record that the value that ends at `end` is cut. Return the new `pos`."""
        size = len(self.buf)
        if end < _NOT_HERE:
            self._missing = end - size
            return size
        self._missing = _LINE
        return size - 1 if self.buf.endswith(b"\r") else size  # the CR may begin the line end

    def _finish(self) -> bool:
        """Move over the rest of a cut value. Return whether it has come."""
        pos = self.pos
        end = self._line_end(pos) + 2 if self._missing == _LINE else pos + self._missing
        self._missing = 0
        self.pos = end if end <= len(self.buf) else self._cut(end)
        return self._missing == 0

    def at_push(self) -> bool:
        """Return whether a push begins at `pos`."""
        return not self.mid and self.pos < len(self.buf) and self.buf[self.pos] == PUSH

    def line(self) -> bytes:
        """Return the first line of the frame at `pos`, with its CRLF; empty if it is incomplete."""
        at = self.buf.find(b"\r\n", self.pos)
        return self.buf[self.pos : at + 2] if at >= 0 else b""

    def frame(self) -> bytes:
        """Return the reply or push at `pos` and move past it; nothing if it is incomplete."""
        start = self.pos
        if self.skip(1, False, 0) == 1:
            return self.buf[start : self.pos]
        self.pos = start
        self._items = 0
        self._missing = 0
        self.mid = False
        return b""

    def release(self) -> None:
        """Free the bytes before `pos`; offsets into `buf` become invalid."""
        if self.pos:
            self.buf = self.buf[self.pos :] if self.pos < len(self.buf) else b""
            self.pos = 0
            self.last = -1

    def rest(self) -> bytes:
        """Remove and return all unread bytes."""
        out = self.buf[self.pos :] if self.pos else self.buf
        self.buf = b""
        self.pos = 0
        return out


def elements(replies: list[bytes]) -> list[bytes] | None:
    """Return the frames in arrays, sets or pushes; None if one has another type."""
    framer = ReplyFramer()
    found: list[bytes] = []
    for frame in replies:
        if frame[0] not in AGGREGATES:
            return None
        framer.feed(frame)
        framer.pos = frame.find(b"\r\n") + 2
        while element := framer.frame():
            found.append(element)
    return found


def _length(digits: bytes) -> int:
    """Parse the number of a reply's header: -1 for nil, -2 if it is invalid."""
    if digits == b"-1":
        return -1
    return int(digits) if digits.isdigit() and len(digits) <= 18 else -2
