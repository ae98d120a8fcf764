"""The unread bytes of one client, joined only when a command can be framed. After a malformed
command, it returns the rest.
"""

from __future__ import annotations

from typing import Final

MAX_INLINE: Final = 65536  # longest inline request, bytes: PROTO_INLINE_MAX_SIZE of Redis
LINE_END: Final = -1  # bytes that an incomplete inline request needs: up to its line end

# The part of a malformed line that is still to be forwarded; see mistake().
MORE_NOTHING: Final = 0
MORE_BYTE: Final = 1  # one byte
MORE_LINE: Final = 2  # all bytes up to the first CR, and the byte after it

# Requests that every parser rejects as malformed.
BROKEN_BULK: Final = b"*1\r\n$-1\r\n"
_UNBALANCED: Final = b'"\r\n'


class RequestBuffer:
    """The bytes that a client has sent, from the first that is not released on."""

    __slots__ = (
        "_enough",
        "_need",
        "_parts",
        "_parts_len",
        "bad",
        "buf",
        "more",
        "pos",
        "start",
    )

    def __init__(self) -> None:
        self.buf: bytes = b""
        self.pos: int = 0  # offset of the first unread byte
        self.start: int = 0  # offset of the item that was framed last
        self.bad: int = 0  # offset of the malformed header; -1: a malformed inline command
        self.more: int = MORE_NOTHING  # missing part of a malformed line; see mistake()
        self._need: int = 0  # bytes from `pos` on that the next item needs, or LINE_END
        self._parts: list[bytes] | None = None  # received behind `buf`
        self._parts_len: int = 0
        self._enough: bool = False  # the next item can be framed with the bytes in `_parts`

    def feed(self, data: bytes) -> None:
        """Append `data` to the unread bytes; copy nothing until an item can be framed."""
        unread = len(self.buf) - self.pos
        if unread == 0 and self._parts is None:
            self.buf = data
            self.pos = 0
            self._enough = True
            return
        if self._parts is None:
            self._parts = []
        self._parts.append(data)
        self._parts_len += len(data)
        unread += self._parts_len
        if self._need == LINE_END:
            self._enough = self._enough or unread > MAX_INLINE or b"\n" in data
        elif unread >= self._need:
            self._enough = True

    def unread(self) -> int:
        """Return the number of unread bytes."""
        return len(self.buf) - self.pos + self._parts_len

    def _join(self) -> None:
        parts = self._parts or []
        self.buf = b"".join([self.buf[self.pos :], *parts])
        self.pos = 0
        self._parts = None
        self._parts_len = 0
        self._enough = False

    def gather(self) -> None:
        """Join the bytes fed so far: offsets stay valid until the next feed()."""
        if self._parts is not None and self._enough:
            self._join()

    def release(self) -> None:
        """Free the bytes before `pos`; offsets into `buf` become invalid."""
        if self.pos:
            self.buf = self.buf[self.pos :] if self.pos < len(self.buf) else b""
            self.pos = self.start = 0

    def rest(self) -> bytes:
        """Remove and return all bytes from the last `start` on."""
        self.pos = self.start
        if self._parts is not None:
            self._join()
        out = self.buf[self.pos :] if self.pos else self.buf
        self.buf = b""
        self.pos = 0
        return out

    def overlong(self) -> bool:
        """Return whether the malformed item is a line longer than servers accept."""
        data, start = self.buf, self.start
        if len(data) - start <= MAX_INLINE or data.startswith(b"*", start):
            return False
        return data.find(b"\n", start, start + MAX_INLINE + 1) < 0

    def mistake(self) -> bytes:
        """Remove and return the bytes that make the server reply with its protocol error.

        The alternative to rest() where commands are banned or a line is overlong: no parser could
        execute a part of the result as a command. Sets `more` to the part that is still missing;
        see more_of_line().
        """
        bad = self.bad - self.start
        inline = self.bad < 0
        rest = self.rest()
        if not inline:
            return rest[:bad] + self.more_of_line(rest[bad:], MORE_LINE)
        self.more = MORE_NOTHING
        line = rest.partition(b"\n")[0]
        if len(line) > MAX_INLINE:
            return line[: MAX_INLINE + 1]
        return BROKEN_BULK if b"\0" in line else _UNBALANCED

    def more_of_line(self, data: bytes, more: int) -> bytes:
        """Return the part of `data` that belongs to the malformed line.

        more: part that was still missing: MORE_NOTHING, MORE_BYTE or MORE_LINE. Sets `more` to the
            part that is missing after `data`.
        """
        end = more
        if more == MORE_LINE:
            end = data.find(b"\r") + 2  # servers wait for one byte after the CR
            if end < 2:
                self.more = MORE_LINE
                return data
        self.more = MORE_BYTE if len(data) < end else MORE_NOTHING
        return data[:end]
