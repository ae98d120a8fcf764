"""The command splitter: a client's bytes as whole commands in words, by which they are routed.

The bytes come from a session, which has framed them before: what it couldn't frame comes last.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from rlproxy.resp.encoding import bulks
from rlproxy.resp.inline import split_inline
from rlproxy.resp.request_buffer import LINE_END, MAX_INLINE, RequestBuffer
from rlproxy.resp.requests import COMMAND, EMPTY, MALFORMED, MAX_BULK, NEED_MORE

_MAX_ARGC: Final = 2147483647  # words of a command: the widest limit of any server
_CR: Final = 13
_LF: Final = 10
_STAR: Final = 42
_MINUS: Final = 45
_DOLLAR: Final = 36
_INCOMPLETE: Final = -1
_BAD: Final = -2


class CommandSplitter(RequestBuffer):
    """The splitter of one client's bytes into commands. It takes time linear in these bytes.

    words: the command's words, its name included.
    written: the command as a request: as its client wrote it, an inline one as an array of bulks.
    """

    def __init__(self) -> None:
        super().__init__()
        self.words: list[bytes] = []
        self.written: bytes = b""
        self._words: list[bytes] = []  # of an incomplete command
        self._left: int = 0  # words that it still lacks; 0: at the beginning of a command
        self._at: int = 0  # offset of the next one, counted from `pos`
        self._end: int = 0  # result of _number(): the byte after the line

    def next(self) -> int:
        """Move past the first command.

        Returns NEED_MORE, COMMAND (`words` and `written` are set), EMPTY or MALFORMED (see rest()).
        """
        if self._parts:
            if not self._enough:
                return NEED_MORE
            self._join()
        self.start = start = self.pos
        data = self.buf
        if start >= len(data):
            return NEED_MORE
        if self._left == 0:
            if data[start] != _STAR:
                return self._inline()
            minus = len(data) > start + 1 and data[start + 1] == _MINUS
            argc = self._number(start + 2 if minus else start + 1)
            if argc == _INCOMPLETE:
                return self._wait(0)
            if argc == _BAD or argc > _MAX_ARGC:
                return MALFORMED
            if argc == 0 or minus:
                self.pos = self._end
                return EMPTY
            self._words = []
            self._left = argc
            self._at = self._end - start
        return self._bulks(start + self._at)

    def _bulks(self, pos: i64) -> int:
        """Read the words that are still missing, from `pos` on."""
        data = self.buf
        size: i64 = len(data)
        words, left, start = self._words, self._left, self.start
        need = 0
        while left > 0:
            if pos + 1 >= size:
                break
            if data[pos] != _DOLLAR:
                return MALFORMED
            length = self._number(pos + 1)
            if length == _BAD or length > MAX_BULK:
                return MALFORMED
            if length == _INCOMPLETE:
                break
            first = self._end
            if first + length + 2 > size:
                need = first + length + 2 - start
                break
            words.append(data[first : first + length])
            pos = first + length + 2
            left -= 1
        self._left, self._at = left, pos - start
        if left > 0:
            return self._wait(need)
        self._need = 0
        self.pos = pos
        self.words = words
        self.written = data[start:pos] if start > 0 or pos < size else data
        return COMMAND

    def _number(self, pos: i64) -> i64:
        """Parse the line of a header from `pos` on; set `_end` to its end."""
        data = self.buf
        size: i64 = len(data)
        value: i64 = 0
        first = pos
        while pos < size and 48 <= data[pos] <= 57 and pos - first < 18:
            value = value * 10 + data[pos] - 48
            pos += 1
        if pos + 1 >= size:
            return _INCOMPLETE if pos >= size or data[pos] == _CR else _BAD
        if pos == first or data[pos] != _CR or data[pos + 1] != _LF:
            return _BAD
        self._end = pos + 2
        return value

    def _wait(self, need: int) -> int:
        self._need = need
        return NEED_MORE

    def _inline(self) -> int:
        data, start = self.buf, self.pos
        at = data.find(b"\n", start)
        if at < 0:
            return MALFORMED if len(data) - start > MAX_INLINE else self._wait(LINE_END)
        words = split_inline(data[start:at])
        if words is None:
            return MALFORMED
        self._need = 0
        self.pos = at + 1
        if not words:
            return EMPTY
        self.words = words
        self.written = bulks(*words)
        return COMMAND
