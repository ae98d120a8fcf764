"""The request framer: the bytes of a client, split into multibulk and inline commands.

It finds the name of each command, and the arguments of commands that require it. It is incremental,
and takes time linear in the bytes that it is fed. A command that is larger than any buffer is
passed on in pieces (an *open* command). Lengths in headers cause no allocation.

The framer is as lenient as Redis: it does not check the byte after a CR, nor the two bytes after a
bulk. It accepts the widest limits of any server. Any other deviation is `MALFORMED`: the caller
stops framing, and the server replies with the error.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from rlproxy.resp.commands import UNKNOWN_COMMAND, UNRESTRICTED, Command
from rlproxy.resp.encoding import content
from rlproxy.resp.inline import split_inline
from rlproxy.resp.request_buffer import LINE_END, MAX_INLINE, RequestBuffer

# The results of RequestFramer.next(). They are integers, not an enum, because mypyc compares
# integers as machine words. They are negative, so that the parser of a header can return one in
# place of its number.
NEED_MORE: Final = -1  # no bytes left, or an incomplete command
COMMAND: Final = -2  # a whole command: `start`, `command`, `argc` and its arguments are set
OPEN: Final = -3  # the first part of a command whose end is not here yet: forward or discard it
TAIL: Final = -4  # the last part of an open command
BODY: Final = -5  # a middle part of an open command
EMPTY: Final = -6  # bytes without a command and without a reply: blank lines, *0, *-1
MALFORMED: Final = -7  # framing is impossible from `start` on; Redis replies with the error

MAX_RL_BYTES: Final = 65536  # longest RL command, bytes
MAX_STATE_BULK: Final = 16384  # longest examined argument of AUTH, CLIENT ..., bytes
MAX_NAME: Final = 64  # longest first word that is looked up in a table of commands, bytes
MAX_BULK: Final = 536870912  # default limit of servers for one bulk string, bytes
# Number of words that every server accepts. The names of longer commands are looked up only if some
# commands are banned.
MAX_ARGC: Final = 1048576

# Requests that every parser rejects as malformed.
BROKEN_BULK: Final = b"*1\r\n$-1\r\n"
_UNBALANCED: Final = b'"\r\n'

_CR: Final = 13
_LF: Final = 10
_STAR: Final = 42
_DOLLAR: Final = 36
_INT_MAX: Final = 2147483647


class RequestFramer(RequestBuffer):
    """The splitter of one client's bytes into commands.

    feed() appends bytes; next() returns the kind of the first item and moves past it. After COMMAND
    and OPEN, these attributes describe the command:

    start: offset of its first byte in `buf`; `pos` is the offset behind its last one.
    command: row of the table of commands; UNKNOWN_COMMAND if there is none.
    argc: number of words, name included.
    words: unquoted words of an inline command, name included; None for a multibulk one.

    mistake: after MALFORMED, the bytes that make the server reply with its protocol error. No
        parser could execute a part of them as a command.

    `commands` is the table in which the names of later commands are looked up.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lenient: bool = False  # the command is not in the form that every parser accepts
        self.oversize: bool = False  # the command is too long; arguments() is partial
        self.first: i64 = 0  # offset of the first argument's header, counted from `start`
        self.argc: i64 = 0
        self.mistake: bytes = b""
        self.command: Command = UNKNOWN_COMMAND
        self._end: i64 = 0  # end of the header that was parsed last
        self._args_end: i64 = 0  # end of the last argument that arguments() returns
        self.words: list[bytes] | None = None
        self.commands = UNRESTRICTED
        self._args_left: i64 = 0  # arguments of an open command still to come
        self._skip: i64 = 0  # bytes of the open command's current argument still to come
        # The place in an incomplete command at which to resume: its offset from `start` (0: none),
        # and the number of arguments from there on.
        self._resume_at: i64 = 0
        self._resume_left: i64 = 0
        self._scan: i64 = 0  # bytes from `pos` on that hold no line end (inline command)

    def in_command(self) -> bool:
        """Return whether an open command has not ended yet: after OPEN and BODY."""
        return self._args_left > 0 or self._skip > 0

    def rewind(self, pos: int) -> None:
        """Move back to `pos`, a value that `start` has had since the last feed()."""
        self.pos = pos
        self._args_left = 0
        self._skip = 0
        self._resume_at = 0
        self._need = 0
        self._scan = 0

    # -- commands out --------------------------------------------------------------------------

    def next(self) -> int:
        """Move past the first item of the unread bytes.

        Returns its kind: NEED_MORE, COMMAND, OPEN, TAIL, BODY, EMPTY or MALFORMED.
        """
        if self._args_left > 0 or self._skip > 0:
            return self._next_of_open()
        if self._parts is not None:
            if self.unread() < self._need:
                return NEED_MORE
            self._join()
        data = self.buf
        pos: i64 = self.pos
        self.start = pos
        size: i64 = len(data)
        if pos >= size:
            return NEED_MORE
        argc: i64
        length: i64
        if self._resume_at > 0:
            at = self._resume_at
            self._resume_at = 0
            return self._arguments(self._resume_left, pos + at, True)
        if data[pos] != _STAR:
            return self._next_inline()
        self.words = None
        self.lenient = False
        if (  # `*n\r\n$n\r\n`, the beginning of most commands, parsed without a call
            pos + 8 <= size
            and data[pos + 2] == _CR
            and data[pos + 3] == _LF
            and data[pos + 4] == _DOLLAR
            and data[pos + 6] == _CR
            and data[pos + 7] == _LF
            and 49 <= (argc := data[pos + 1]) <= 57
            and 48 <= (length := data[pos + 5]) <= 57
        ):
            self.argc = argc - 48
            length -= 48
            pos += 8
        else:
            length = self._headers(pos + 1)
            if length < 0:
                return length
            pos = self._end
        end: i64 = pos + length + 2
        if end - 2 > size:
            return self._wait(end - 2 - self.start)
        command = self.commands.find(data, pos, end - 2)
        self.command = command
        self.first = end - self.start
        if end <= size and (data[end - 2] != _CR or data[end - 1] != _LF):
            self.lenient = True
        return self._arguments(self.argc - 1, end, command.whole)

    def _headers(self, pos: int) -> int:
        """Parse the headers of a command and of its name. Sets `argc`, and `_end` to their end.

        pos: offset of the first digit.
        Returns the length of the name or the result that next() returns at once.
        """
        self._need = 0
        minus = pos < len(self.buf) and self.buf[pos] == 45
        argc = self._number(pos + 1 if minus else pos)
        if minus and argc == 0:
            return self._reject(pos)  # -0
        if argc < 0:
            return argc
        if minus or argc == 0:
            self.pos = self._end
            return EMPTY
        self.argc = argc
        if argc > _INT_MAX:
            return self._reject(self.start)
        pos = self._end
        if argc > MAX_ARGC and not self.commands.strict:
            self.command = UNKNOWN_COMMAND
            return self._too_long(self.start, pos, argc)
        length = self._bulk(pos)
        if length < 0:
            return length
        if length <= MAX_NAME:
            return length
        self.command = UNKNOWN_COMMAND
        if self.commands.strict:
            # By default, servers reject this header without waiting for the name.
            if length > MAX_BULK:
                return self._reject(pos)
            if self._end + MAX_NAME + 1 > len(self.buf):
                return self._wait(self._end + MAX_NAME + 1 - self.start)
            self.command = self.commands.banned(self.buf[self._end : self._end + MAX_NAME + 1])
        return self._too_long(self.start, self._end + length + 2, argc - 1)

    def _arguments(self, left: i64, pos: i64, whole: bool) -> int:
        """Frame `left` arguments from `pos` on; the name of the command is parsed already.

        whole: do not open the command while it is short enough to be whole.
        """
        data = self.buf
        size: i64 = len(data)
        start: i64 = self.start
        length: i64
        tens: i64
        units: i64
        self.oversize = False
        while left > 0:
            header = pos
            if (  # `$n\r\n`, a common header, parsed without a call
                pos + 3 < size
                and data[pos] == _DOLLAR
                and data[pos + 2] == _CR
                and data[pos + 3] == _LF
                and 48 <= (length := data[pos + 1]) <= 57
            ):
                length -= 48
                pos += 4
            elif (  # `$nn\r\n`, the other common header
                pos + 4 < size
                and data[pos + 3] == _CR
                and data[pos + 4] == _LF
                and data[pos] == _DOLLAR
                and 49 <= (tens := data[pos + 1]) <= 57
                and 48 <= (units := data[pos + 2]) <= 57
            ):
                length = 10 * (tens - 48) + units - 48
                pos += 5
            else:
                length = self._bulk(pos)
                if length < 0:
                    return self._cut_header(length, left, pos, whole)
                pos = self._end
            left -= 1
            end: i64 = pos + length + 2
            if whole:
                limit = MAX_RL_BYTES if self.command.ours else MAX_STATE_BULK
                if length > limit or end - start > MAX_RL_BYTES:
                    return self._too_long(header, end, left)
                if end > size:
                    return self._pause(header, left + 1, end - start)
            if end <= size and (data[end - 2] != _CR or data[end - 1] != _LF):
                self.lenient = True
            pos = end
        if pos > size:
            return self._wait(pos - start) if whole else self._open(pos, 0)
        self.pos = self._args_end = pos
        self._need = 0
        return COMMAND

    def _cut_header(self, why: int, left: int, pos: int, whole: bool) -> int:
        """Frame a command whose header at `pos` cannot be parsed, for the reason `why`."""
        if why == MALFORMED:
            return MALFORMED
        if not whole:
            return self._open(pos, left)
        if len(self.buf) - self.start > MAX_RL_BYTES:
            return self._too_long(pos, pos, left)
        return self._pause(pos, left, 0)

    def _number(self, pos: int) -> int:
        """Parse the number of a header, by Redis' rules: no sign and no leading zero.

        pos: offset of the first digit. Sets `_end` to the byte after the line end.
        Returns the number, NEED_MORE or MALFORMED.
        """
        data = self.buf
        size = len(data)
        value = 0
        first = pos
        while pos < size:
            byte = data[pos]
            if byte == _CR:
                if pos + 1 >= size:
                    break
                if pos == first or (pos > first + 1 and data[first] == 48):
                    return self._reject(first)
                if data[pos + 1] != _LF:
                    self.lenient = True
                self._end = pos + 2
                return value
            if byte < 48 or byte > 57 or pos - first > 17:
                return self._reject(first)  # over 18 digits: above the limit of every server
            value = value * 10 + (byte - 48)
            pos += 1
        return NEED_MORE

    def _bulk(self, pos: int) -> int:
        """Parse the header of a bulk at `pos`; set `_end` to the first byte of the bulk.

        Returns the length, NEED_MORE or MALFORMED.
        """
        if pos >= len(self.buf):
            return NEED_MORE
        if self.buf[pos] != _DOLLAR:
            return self._reject(pos)
        return self._number(pos + 1)

    def _reject(self, pos: int) -> int:
        """Reject the header at `pos`: MALFORMED, or NEED_MORE while servers wait for more.

        They wait for the byte after a CR, or for more than MAX_INLINE bytes.
        """
        data = self.buf
        end = data.find(b"\r", pos, pos + MAX_INLINE) + 2
        if end < 2:
            end = pos + MAX_INLINE + 1
        if end > len(data):
            return NEED_MORE
        self.mistake = data[self.start : end]
        return MALFORMED

    def _wait(self, need: int) -> int:
        """Wait for more bytes: next() can make progress with `need` bytes from `start` on."""
        self._need = need
        return NEED_MORE

    def _open(self, pos: int, left: int) -> int:
        """Open an incomplete command.

        pos: offset at which `left` more arguments begin; may lie beyond the buffer. An incomplete
            header at `pos` stays in the buffer.
        """
        self._args_left = left
        self._skip = max(pos - len(self.buf), 0)
        self.pos = pos - self._skip
        self._need = 0
        return OPEN

    def _pause(self, header: int, left: int, need: int) -> int:
        """Resume at `header`, with `left` arguments to come, after the next bytes."""
        self._resume_at = header - self.start
        self._resume_left = left
        return self._wait(need)

    def _too_long(self, args_end: int, pos: int, left: int) -> int:
        """Frame the rest of a command that is too long to be whole, or to have its name looked up.

        args_end: end of the last argument that arguments() returns.
        pos: offset of the next `left` words; may lie beyond the buffer.
        """
        code = self._arguments(left, pos, False)
        self._args_end = args_end
        self.oversize = True
        return code

    def _next_of_open(self) -> int:
        """Frame more of an open command."""
        if self._parts is not None:
            self._join()
        size = len(self.buf)
        self.start = pos = self.pos
        while True:
            pos += self._skip
            self._skip = max(pos - size, 0)
            if self._skip > 0:
                pos = size
                break
            if self._args_left == 0:
                self.pos = pos
                return TAIL
            length = self._bulk(pos)
            if length == MALFORMED:
                self._args_left = 0
                return MALFORMED
            if length < 0:
                break
            pos = self._end
            self._args_left -= 1
            self._skip = length + 2
        self.pos = pos
        return BODY if pos > self.start else NEED_MORE

    def _next_inline(self) -> int:
        data = self.buf
        start = self.pos
        at = data.find(b"\n", start + self._scan)
        self._scan = len(data) - start if at < 0 else 0
        if self._scan > MAX_INLINE or at - start > MAX_INLINE:
            self.mistake = data[start : start + MAX_INLINE + 1]
            return MALFORMED
        if at < 0:
            return self._wait(LINE_END)
        line = data[start:at]
        words = split_inline(line)
        if words is None:
            self.mistake = BROKEN_BULK if b"\0" in line else _UNBALANCED
            return MALFORMED
        self._need = 0
        self.pos = at + 1
        if not words:
            return EMPTY
        self.command = self.commands.rows.get(words[0].upper(), UNKNOWN_COMMAND)
        self.argc = len(words)
        self.words = words
        self.lenient = True
        self.oversize = False
        return COMMAND

    # -- arguments of the command just returned --------------------------------------------------

    def arguments(self) -> list[bytes]:
        """Return the arguments after the name of a whole command.

        For an oversize command, returns those before the argument that exceeded the limit.
        """
        words = self.words
        if words is not None:
            return words[1:]
        data, pos = self.buf, self.start + self.first
        found = []
        while pos < self._args_end:
            start, end = content(data, pos)
            found.append(data[start:end])
            pos = end + 2
        return found
