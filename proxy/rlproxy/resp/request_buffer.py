"""The unread bytes of one client, joined only when a command can be framed."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

MAX_INLINE: Final = 65536  # longest inline request, bytes: PROTO_INLINE_MAX_SIZE of Redis
LINE_END: Final = 1 << 60  # in place of a number of bytes: an inline request needs its line end


class RequestBuffer:
    """The bytes that a client has sent, from the first that is not released on."""

    def __init__(self) -> None:
        self.buf: bytes = b""
        self.pos: i64 = 0  # offset of the first unread byte
        self.start: i64 = 0  # offset of the item that was framed last
        self._need: i64 = 0  # bytes from `pos` on that the next item needs, or LINE_END
        self._parts: list[bytes] | None = None  # received behind `buf`
        self._parts_len: i64 = 0

    def feed(self, data: bytes) -> None:
        """Append `data` to the unread bytes; copy nothing until an item can be framed."""
        if self._parts is None:
            if self.pos == len(self.buf):
                self.buf = data
                self.pos = 0
                return
            self._parts = []
        self._parts.append(data)
        self._parts_len += len(data)
        if self._need == LINE_END and (b"\n" in data or self.unread() > MAX_INLINE):
            self._need = 0

    def unread(self) -> int:
        """Return the number of unread bytes."""
        return len(self.buf) - self.pos + self._parts_len

    def _join(self) -> None:
        parts = self._parts or []
        self.buf = b"".join([self.buf[self.pos :], *parts])
        self.pos = 0
        self._parts = None
        self._parts_len = 0

    def gather(self) -> None:
        """Join the bytes fed so far: offsets stay valid until the next feed()."""
        if self._parts is not None and self.unread() >= self._need:
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
