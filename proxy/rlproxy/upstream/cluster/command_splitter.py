"""The command splitter: a client's bytes as whole commands in words, by which they are routed.

The framer passes on a large command in parts. The splitter joins them: a node gets it whole.
"""

from __future__ import annotations

from rlproxy.resp.encoding import bulks, content
from rlproxy.resp.requests import BODY, COMMAND, MAX_BULK, OPEN, TAIL, RequestFramer


class CommandSplitter(RequestFramer):
    """The splitter of one client's bytes into commands. It takes time linear in these bytes.

    argv: the command's words, its name included.
    written: the command as a request: as its client wrote it, an inline one as an array of bulks.
    """

    def __init__(self) -> None:
        super().__init__()
        self.argv: list[bytes] = []
        self.written: bytes = b""
        self._begun: list[bytes] = []  # the parts of an open command
        self._begun_bytes: int = 0

    def next(self) -> int:
        """Move past the first command.

        Returns NEED_MORE, COMMAND (`argv` and `written` are set), EMPTY or MALFORMED (see rest()).
        """
        code = super().next()
        while code in (OPEN, BODY):
            self._begun.append(self.buf[self.start : self.pos])
            self._begun_bytes += self.pos - self.start
            code = super().next()
        if code not in (COMMAND, TAIL):
            self.argv, self.written = [], b""  # which may be large
            return code
        if code == COMMAND and self.words is not None:
            self.argv, self.written = self.words, bulks(*self.words)
            return COMMAND
        written = self.buf[self.start : self.pos]
        if code == TAIL:
            written = b"".join([*self._begun, written])
            self._begun, self._begun_bytes = [], 0
        self.argv, self.written = words_of(written), written
        return COMMAND

    def _bulk(self, pos: int) -> int:
        """See RequestFramer. By default, servers reject a longer bulk without waiting for it."""
        length = super()._bulk(pos)
        return self._reject(pos) if length > MAX_BULK else length

    def unread(self) -> int:
        return self._begun_bytes + super().unread()

    def rest(self) -> bytes:
        begun, self._begun, self._begun_bytes = self._begun, [], 0
        return b"".join([*begun, super().rest()])


def words_of(written: bytes) -> list[bytes]:
    """Return the words of a whole command, which is an array of bulks."""
    words: list[bytes] = []
    pos = written.find(b"$")
    while pos < len(written):
        start, end = content(written, pos)
        words.append(written[start:end])
        pos = end + 2
    return words
