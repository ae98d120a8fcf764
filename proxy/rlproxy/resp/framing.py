"""RESP framing: where requests and replies begin and end, in both directions.

Both framers are incremental, and take time linear in the bytes that they are fed:

- `RequestFramer` splits the bytes of a client: multibulk and inline requests. It finds the name of
  each command, and the arguments of commands that require it. A command that is larger than any
  buffer is passed on in pieces (an *open* command).
- `ReplyFramer` splits the bytes of a server: every RESP2 and RESP3 type, nested, with attributes
  and pushes. It counts top-level frames without decoding their values.

The framers are as lenient as Redis: they do not check the byte after a CR, nor the two bytes after
a bulk. They accept the widest limits of any server. Any other deviation is `MALFORMED`: the caller
stops framing, and the server replies with the error. Lengths in headers cause no allocation.

The module is compiled with mypyc where a compiler is present, and also runs interpreted.
"""

from __future__ import annotations

from typing import Final

from rlproxy.resp.commands import COMMANDS, UNKNOWN_COMMAND, Command

# The results of RequestFramer.next(). They are integers, not an enum, because mypyc compares
# integers as machine words.
NEED_MORE: Final = 0  # no bytes left, or an incomplete command
COMMAND: Final = 1  # a whole command: `start`, `end`, `command`, `argc` and its arguments are set
OPEN: Final = 2  # the first part of a command whose end is not here yet: forward or discard it
TAIL: Final = 3  # the last part of an open command
BODY: Final = 4  # a middle part of an open command
EMPTY: Final = 5  # bytes without a command and without a reply: blank lines, *0, *-1
MALFORMED: Final = 6  # framing is impossible from `start` on; Redis replies with the error

# The part of a malformed line that is still to be forwarded; see mistake().
MORE_NOTHING: Final = 0
MORE_BYTE: Final = 1  # one byte
MORE_LINE: Final = 2  # all bytes up to the first CR, and the byte after it

MAX_RL_BYTES: Final = 65536  # longest RL command, bytes
MAX_STATE_BULK: Final = 16384  # longest examined argument of AUTH, CLIENT ..., bytes
MAX_INLINE: Final = 65536  # longest inline request, bytes: PROTO_INLINE_MAX_SIZE of Redis
MAX_HEADER: Final = 32  # longest header `*<count>` or `$<length>` with a valid number, bytes
MAX_NAME: Final = 64  # longest first word that is looked up in a table of commands, bytes
MAX_BULK: Final = 536870912  # default limit of servers for one bulk string, bytes
# Number of words that every server accepts. The names of longer commands are looked up only if some
# commands are banned.
MAX_ARGC: Final = 1048576

# Requests that every parser rejects as malformed.
_BROKEN_BULK: Final = b"*1\r\n$-1\r\n"
_UNBALANCED: Final = b'"\r\n'

_CR: Final = 13
_LF: Final = 10
_STAR: Final = 42
_DOLLAR: Final = 36
_INCOMPLETE: Final = -1
_BAD: Final = -2
_INT_MAX: Final = 2147483647


class RequestFramer:
    """The splitter of one client's bytes into commands.

    feed() appends bytes; next() returns the kind of the first item and moves past it. After COMMAND
    and OPEN, these attributes describe the command:

    start, end: offsets of its bytes in `buf`.
    command: row of the table of commands; UNKNOWN_COMMAND if there is none.
    name: name as the client wrote it.
    argc: number of words, name included.
    args: offset pairs (first byte, byte after the last) of the arguments after the name, counted
        from `start`; only if `command.whole`.
    words: unquoted words of an inline command, name included; None for a multibulk one.
    """

    __slots__ = (
        "_args_left",
        "_enough",
        "_missing_line_end",
        "_need",
        "_parts",
        "_parts_len",
        "_resume_at",
        "_resume_left",
        "_scan",
        "_skip",
        "argc",
        "args",
        "bad",
        "buf",
        "command",
        "commands",
        "end",
        "first",
        "lenient",
        "more",
        "name",
        "oversize",
        "pos",
        "start",
        "strict",
        "words",
    )

    def __init__(self) -> None:
        self.buf: bytes = b""
        self.pos: int = 0  # offset of the first byte that next() has not returned
        self.start: int = 0
        self.end: int = 0
        self.first: int = 0  # offset of the first argument's header, counted from `start`
        self.argc: int = 0
        self.command: Command = UNKNOWN_COMMAND
        self.name: bytes = b""
        self.args: list[int] = []
        self.words: list[bytes] | None = None
        self.lenient: bool = False  # the command is not in the form that every parser accepts
        self.oversize: bool = False  # the command is too long to be whole; `args` is partial
        self.commands: dict[bytes, Command] = COMMANDS
        self.strict: bool = False  # some commands are banned: none may pass unrecognized
        self.more: int = MORE_NOTHING  # missing part of a malformed line; see mistake()
        self.bad: int = 0  # offset in `buf` of the malformed header; -1: a malformed inline command
        self._args_left: int = 0  # arguments of an open command still to come
        self._skip: int = 0  # bytes of the open command's current argument still to come
        # The place in an incomplete command at which to resume: its offset from `start` (0: none),
        # and the number of arguments from there on.
        self._resume_at: int = 0
        self._resume_left: int = 0
        self._need: int = 0  # bytes from `pos` on that next() needs for progress
        self._scan: int = 0  # bytes from `pos` on that hold no line end (inline command)
        self._missing_line_end: bool = False  # next() needs the line end of an inline command
        self._enough: bool = False  # next() can make progress with the bytes in `_parts`
        self._parts: list[bytes] = []
        self._parts_len: int = 0

    # -- bytes in ------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """Append `data` to the unread bytes; copy nothing until next() can make progress."""
        unread = len(self.buf) - self.pos
        if unread == 0 and not self._parts:
            self.buf = data
            self.pos = 0
            self._enough = True
            return
        self._parts.append(data)
        self._parts_len += len(data)
        if self._missing_line_end:
            if data.find(b"\n") >= 0 or unread + self._parts_len > MAX_INLINE:
                self._enough = True
        elif unread + self._parts_len >= self._need:
            self._enough = True

    def _join(self) -> None:
        if self.pos < len(self.buf):
            self._parts.insert(0, self.buf[self.pos :])
        self.buf = b"".join(self._parts)
        self.pos = 0
        self._parts = []
        self._parts_len = 0

    def unread(self) -> int:
        """Return the number of unread bytes."""
        return len(self.buf) - self.pos + self._parts_len

    def in_command(self) -> bool:
        """Return whether an open command has not ended yet."""
        return self._args_left > 0 or self._skip > 0

    def rewind(self, pos: int) -> None:
        """Move back to `pos`, a value that `start` has had since the last feed()."""
        self.pos = pos
        self._args_left = 0
        self._skip = 0
        self._resume_at = 0
        self._need = 0
        self._missing_line_end = False
        self._scan = 0
        self._enough = True

    def again(self, data: bytes) -> None:
        """Insert `data` before the unread bytes.

        data: whole commands.
        Must not be called while a command is open.
        """
        self.buf = data + self.buf[self.pos :]
        self.rewind(0)

    def release(self) -> None:
        """Free the bytes before `pos`; offsets into `buf` become invalid."""
        if self.pos:
            self.buf = self.buf[self.pos :] if self.pos < len(self.buf) else b""
            self.pos = 0

    def gather(self) -> None:
        """Join the bytes fed so far: offsets stay valid until the next feed()."""
        if self._parts and self._enough:
            self._join()
            self._enough = False

    def use(self, commands: dict[bytes, Command]) -> None:
        """Look up names in `commands`, from the next command on.

        Any table but COMMANDS is taken to contain bans, and makes the framer strict.
        """
        self.commands = commands
        self.strict = commands is not COMMANDS

    def rest(self) -> bytes:
        """Remove and return all bytes from the last `start` on."""
        self.pos = self.start
        if self._parts:
            self._join()
        out = self.buf[self.pos :] if self.pos else self.buf
        self.buf = b""
        self.pos = 0
        return out

    def overlong(self) -> bool:
        """Return whether the malformed item is a line longer than servers accept."""
        data, start = self.buf, self.start
        if len(data) - start <= MAX_INLINE or data[start] == _STAR:
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
        return _BROKEN_BULK if b"\0" in line else _UNBALANCED

    def more_of_line(self, data: bytes, more: int) -> bytes:
        """Return the part of `data` that belongs to the malformed line.

        more: part that was still missing: MORE_NOTHING, MORE_BYTE or MORE_LINE. Sets `more` to the
            part that is missing after `data`.
        """
        at = data.find(b"\r") if more == MORE_LINE else -1
        if more == MORE_LINE and at < 0:
            self.more = MORE_LINE
            return data
        end = 0 if more == MORE_NOTHING else at + 2  # servers wait for one byte after the CR
        self.more = MORE_BYTE if len(data) < end else MORE_NOTHING
        return data[:end]

    # -- commands out --------------------------------------------------------------------------

    def next(self) -> int:
        """Move past the first item of the unread bytes.

        Returns its kind: NEED_MORE, COMMAND, OPEN, TAIL, BODY, EMPTY or MALFORMED.
        """
        if self._args_left > 0 or self._skip > 0:
            return self._next_of_open()
        if self._parts:
            if not self._enough:
                return NEED_MORE
            self._join()
            self._enough = False
        data = self.buf
        pos = self.pos
        self.start = pos
        size = len(data)
        if pos >= size:
            return NEED_MORE
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
            and 49 <= data[pos + 1] <= 57
            and 48 <= data[pos + 5] <= 57
        ):
            argc = data[pos + 1] - 48
            length = data[pos + 5] - 48
            pos += 8
        else:
            argc = self._number(pos + 1, True)
            if argc < 0:
                return self._unfinished(argc, 0)
            pos = self.end
            if argc == 0:
                self.pos = pos
                self._need = 0
                return EMPTY
            if argc > MAX_ARGC and (not self.strict or argc > _INT_MAX):
                return self._open_unnamed(argc, pos, argc)
            header = pos
            length = self._bulk(pos)
            if length < 0:
                return self._unfinished(length, 0)
            pos = self.end
            if length > MAX_NAME:
                # By default, servers reject this header without waiting for the name.
                if self.strict and length > MAX_BULK:
                    self.bad = header
                    return self._unfinished(_BAD, 0)
                if self.strict and pos + MAX_NAME + 1 > size:
                    return self._unfinished(_INCOMPLETE, pos + MAX_NAME + 1 - self.start)
                return self._open_unnamed(argc, pos + length + 2, argc - 1, pos)
        if pos + length > size:
            return self._unfinished(_INCOMPLETE, pos + length - self.start)
        name = data[pos : pos + length]
        command = self.commands.get(name)
        if command is None:
            command = self.commands.get(name.upper())
            if command is None:
                command = self._banned(name) if self.strict else UNKNOWN_COMMAND
        self.command = command
        self.name = name
        self.argc = argc
        self.first = pos + length + 2 - self.start
        if pos + length + 2 <= size and (
            data[pos + length] != _CR or data[pos + length + 1] != _LF
        ):
            self.lenient = True
        if command.whole:
            self.args = []
        return self._arguments(argc - 1, pos + length + 2, command.whole)

    def _arguments(self, left: int, pos: int, whole: bool) -> int:
        """Frame `left` arguments from `pos` on; the name of the command is parsed already.

        whole: collect the offsets of the arguments, and do not open the command while it is short
            enough to be whole.
        """
        data = self.buf
        size = len(data)
        limit = MAX_RL_BYTES if self.command.ours else MAX_STATE_BULK
        args = self.args
        self.oversize = False
        while left > 0:
            header = pos
            if pos + 3 < size and data[pos] == _DOLLAR and data[pos + 2] == _CR:
                length = data[pos + 1] - 48  # `$n\r\n`, a common header, parsed without a call
                if length < 0 or length > 9:
                    self.bad = pos
                    return self._unfinished(_BAD, 0)
                if data[pos + 3] != _LF:
                    self.lenient = True
                pos += 4
            elif (  # `$nn\r\n`, the other common header
                pos + 4 < size
                and data[pos + 3] == _CR
                and data[pos + 4] == _LF
                and data[pos] == _DOLLAR
                and 49 <= data[pos + 1] <= 57
                and 48 <= data[pos + 2] <= 57
            ):
                length = 10 * data[pos + 1] + data[pos + 2] - 528
                pos += 5
            else:
                length = self._bulk(pos)
                if length == _BAD:
                    return self._unfinished(_BAD, 0)
                if length < 0:
                    if not whole:
                        return self._open(pos, left)
                    if size - self.start > MAX_RL_BYTES:
                        return self._too_long(pos, left)
                    return self._pause(header, left, 0)
                pos = self.end
            left -= 1
            end = pos + length + 2
            if whole:
                if length > limit or end - self.start > MAX_RL_BYTES:
                    return self._too_long(end, left)
                if end > size:
                    return self._pause(header, left + 1, end - self.start)
                args.append(pos - self.start)
                args.append(pos + length - self.start)
            if end <= size and (data[end - 2] != _CR or data[end - 1] != _LF):
                self.lenient = True
            pos = end
        if pos > size:
            if whole:
                return self._unfinished(_INCOMPLETE, pos - self.start)
            return self._open(pos, 0)
        self.end = pos
        self.pos = pos
        self._need = 0
        return COMMAND

    def _number(self, pos: int, negative: bool) -> int:
        """Parse the number of a header, by Redis' rules: no leading zero and no plus.

        pos: offset of the first digit. Sets `end` to the byte after the line end.
        negative: a minus is allowed; a negative number is returned as 0, because no items follow.
        Returns the number, _INCOMPLETE or _BAD.
        """
        data = self.buf
        size = len(data)
        value = 0
        first = pos
        while pos < size:
            byte = data[pos]
            if byte == _CR:
                if pos + 1 >= size:
                    return _INCOMPLETE
                if pos == first or (pos > first + 1 and data[first] == 48):
                    self.bad = first
                    return _BAD
                if data[pos + 1] != _LF:
                    self.lenient = True
                self.end = pos + 2
                return value
            if byte < 48 or byte > 57:
                if byte == 45 and negative and pos == first:
                    return self._negative(pos + 1)
                self.bad = first
                return _BAD
            if pos - first > 17:
                self.bad = first
                return _BAD  # more than 18 digits: above the limit of every server
            value = value * 10 + (byte - 48)
            pos += 1
        return _INCOMPLETE

    def _negative(self, pos: int) -> int:
        value = self._number(pos, False)
        if value == 0:
            self.bad = pos
            return _BAD  # -0
        return min(value, 0)

    def _bulk(self, pos: int) -> int:
        """Parse the header of a bulk at `pos`; set `end` to the first byte of the bulk.

        Returns the length, _INCOMPLETE or _BAD.
        """
        if pos >= len(self.buf):
            return _INCOMPLETE
        if self.buf[pos] != _DOLLAR:
            self.bad = pos
            return _BAD
        return self._number(pos + 1, False)

    def _banned(self, name: bytes) -> Command:
        """Return the banned command that Redis may find by a `name` with a NUL in it, if any."""
        # Redis hashes the whole name but compares up to the NUL, so some such names match.
        word, found, _ = name.partition(b"\0")
        command = self.commands.get(word.upper()) if found else None
        if command is None or command.ban is None or command.ours:
            return UNKNOWN_COMMAND
        return command

    def _unfinished(self, why: int, need: int) -> int:
        if why == _BAD:
            self._need = 0
            return MALFORMED
        self._need = need
        return NEED_MORE

    def _open(self, pos: int, left: int) -> int:
        """Open an incomplete command.

        pos: offset at which `left` more arguments begin; may lie beyond the buffer. An incomplete
            header at `pos` stays in the buffer.
        """
        size = len(self.buf)
        self._args_left = left
        if pos > size:
            self._skip = pos - size
            self.end = size
        else:
            self._skip = 0
            self.end = pos
        self.pos = self.end
        self._need = 0
        return OPEN

    def _open_unnamed(self, argc: int, pos: int, left: int, name: int = -1) -> int:
        """Frame a command whose name is too long for any table, or whose `argc` is above MAX_ARGC.

        pos: offset of the next `left` words; may lie beyond the buffer.
        name: offset of the name, -1 if unknown.
        """
        if argc > _INT_MAX:
            self.bad = self.start
            return self._unfinished(_BAD, 0)
        self.command = UNKNOWN_COMMAND
        if self.strict and name >= 0:
            self.command = self._banned(self.buf[name : name + MAX_NAME + 1])
        self.name = b""
        self.argc = argc
        self.args = []
        code = self._arguments(left, pos, False)
        self.oversize = self.command is not UNKNOWN_COMMAND
        return code

    def _pause(self, header: int, left: int, need: int) -> int:
        """Resume at `header`, with `left` arguments to come, after the next bytes."""
        self._resume_at = header - self.start
        self._resume_left = left
        self._need = need
        return NEED_MORE

    def _too_long(self, pos: int, left: int) -> int:
        """Frame the rest of a command that is too long to be whole."""
        code = self._arguments(left, pos, False)
        self.oversize = True
        return code

    def _next_of_open(self) -> int:
        """Frame more of an open command."""
        if self._parts:
            self._join()
        data = self.buf
        size = len(data)
        pos = self.pos
        self.start = pos
        while True:
            if self._skip > 0:
                here = size - pos
                if here < self._skip:
                    self._skip -= here
                    pos = size
                    break
                pos += self._skip
                self._skip = 0
            if self._args_left == 0:
                self.pos = pos
                self.end = pos
                return TAIL
            if pos >= size:
                break
            length = self._bulk(pos)
            if length == _BAD:
                self._args_left = 0
                return MALFORMED
            if length < 0:
                break
            pos = self.end
            self._args_left -= 1
            self._skip = length + 2
        self.pos = pos
        self.end = pos
        return BODY if pos > self.start else NEED_MORE

    def _next_inline(self) -> int:
        self.bad = -1
        data = self.buf
        start = self.pos
        at = data.find(b"\n", start + self._scan)
        if at < 0:
            waiting = len(data) - start
            if waiting > MAX_INLINE:
                return MALFORMED
            self._scan = waiting
            self._missing_line_end = True
            self._need = waiting + 1
            return NEED_MORE
        self._scan = 0
        self._missing_line_end = False
        if at - start > MAX_INLINE:
            return MALFORMED
        line = data[start:at]
        if line.find(b"\0") >= 0:
            return MALFORMED  # C strings end at a NUL: some servers do not find the line's end
        words = split_inline(line)
        if words is None:
            return MALFORMED
        self._need = 0
        self.pos = at + 1
        self.end = at + 1
        if not words:
            return EMPTY
        name = words[0]
        self.name = name
        self.command = self.commands.get(name.upper(), UNKNOWN_COMMAND)
        self.argc = len(words)
        self.words = words
        self.lenient = True
        self.oversize = False
        return COMMAND

    # -- arguments of the command just returned --------------------------------------------------

    def argument(self, index: int) -> bytes:
        """Return argument `index` of a whole command; 0 is the first after the name."""
        words = self.words
        if words is not None:
            return words[index + 1]
        start = self.start
        return self.buf[start + self.args[2 * index] : start + self.args[2 * index + 1]]

    def arguments(self) -> list[bytes]:
        """Return the arguments after the name of a whole command.

        For an oversize command, returns those before the argument that exceeded the limit.
        """
        words = self.words
        if words is not None:
            return words[1:]
        return [self.argument(index) for index in range(len(self.args) // 2)]


_ESCAPES: Final = {110: 10, 114: 13, 116: 9, 98: 8, 97: 7}
_SPACES: Final = b" \t\n\r\x0b\x0c\0"
_ENDS: Final = b" \t\n\r\0"  # bytes that end a word; a vertical tab neither begins nor ends one
_NOT_PLAIN: Final = (b'"', b"'", b"\x0b", b"\x0c")
_HEX: Final = b"0123456789abcdefABCDEF"


def split_inline(line: bytes) -> list[bytes] | None:
    """Split an inline request into words, by the quoting rules of Redis' sdssplitargs.

    Returns None if a quote is unbalanced, or is followed by anything but a blank.
    """
    if not any(byte in line for byte in _NOT_PLAIN):
        return line.split()
    words: list[bytes] = []
    pos = 0
    size = len(line)
    while True:
        while pos < size and line[pos] in _SPACES:
            pos += 1
        if pos >= size:
            return words
        word = bytearray()
        while pos < size and line[pos] not in _ENDS:
            byte = line[pos]
            if byte == 34 or byte == 39:
                pos = _quoted(line, pos + 1, byte, word)
                if pos < 0:
                    return None
                if pos < size and line[pos] not in _SPACES:
                    return None
                break
            word.append(byte)
            pos += 1
        words.append(bytes(word))


def _quoted(line: bytes, pos: int, quote: int, word: bytearray) -> int:
    """Append the quoted text at `pos` to `word`.

    Returns the offset after the closing quote, -1 if there is none.
    """
    size = len(line)
    while pos < size:
        byte = line[pos]
        if byte == quote:
            return pos + 1
        if byte == 92 and pos + 1 < size:
            follows = line[pos + 1]
            if quote == 39:
                if follows == 39:
                    word.append(39)
                    pos += 2
                    continue
            elif (
                follows == 120
                and pos + 3 < size
                and line[pos + 2] in _HEX
                and line[pos + 3] in _HEX
            ):
                word.append(int(line[pos + 2 : pos + 4], 16))
                pos += 4
                continue
            else:
                word.append(_ESCAPES.get(follows, follows))
                pos += 2
                continue
        word.append(byte)
        pos += 1
    return -1


# ------------------------------------------------------------------------------------------------

_PUSH: Final = 62
_BYTES_TYPES: Final = b"$=!"
_LIST_TYPES: Final = b"*~>"
_COUNTED_TYPES: Final = b"$=!*~>%|"
_LINE_TYPES: Final = b"+-:_#,("
_MAX_LENGTH: Final = 24  # longest header, type included, bytes
_NEAR: Final = 40  # bytes of a line that are searched for its end one by one, before find()
_NEAR_LENGTH: Final = 12  # bytes of a header that are parsed in place, before find()


class ReplyFramer:
    """The counter of top-level frames in one server's byte stream.

    feed() appends bytes. skip(n) moves `pos` over up to n replies, and stops early where the bytes
    end. Pushes are skipped without being counted; an attribute belongs to the reply behind it.
    The caller may forward all bytes before `pos`.

    mid: True if `pos` is inside a frame.
    broken: True if the stream is not RESP.
    """

    __slots__ = ("_in_line", "_items", "_push", "_skip", "broken", "buf", "last", "mid", "pos")

    def __init__(self) -> None:
        self.buf: bytes = b""
        self.pos: int = 0
        self.last: int = -1  # offset in `buf` of the latest top-level frame; -1: before `buf`
        self.mid: bool = False
        self.broken: bool = False
        self._items: int = 0  # values missing from the top-level frame
        self._skip: int = 0  # bytes missing from a bulk
        self._in_line: bool = False  # inside a line whose end is not here yet
        self._push: bool = False  # the top-level frame is a push

    def feed(self, data: bytes) -> None:
        """Append `data` to the unread bytes; offsets into `buf` become invalid."""
        if self.pos >= len(self.buf):
            self.buf = data
        else:
            self.buf = self.buf[self.pos :] + data
        self.pos = 0
        self.last = -1

    def skip(self, limit: int, pushes: bool = True, one_push: bool = False) -> int:
        """Move over up to `limit` replies.

        pushes: move over pushes behind the last reply too.
        one_push: stop after the first push.
        Returns the number of replies that ended.
        """
        data = self.buf
        size = len(data)
        pos = self.pos
        done = 0
        items = self._items
        while pos < size:
            if self._skip > 0:
                if size - pos < self._skip:
                    self._skip -= size - pos
                    pos = size
                    break
                pos += self._skip
                self._skip = 0
            elif self._in_line:
                at = data.find(b"\r\n", pos)
                if at < 0:
                    pos = size - 1 if data[size - 1] == _CR else size
                    break
                pos = at + 2
                self._in_line = False
            else:
                kind = data[pos]
                first = items == 0
                if first:
                    if done >= limit and (kind != _PUSH or not pushes):
                        break
                    self.last = pos
                if kind == 58 or kind == 43 or kind == 45 or kind in _LINE_TYPES:
                    if first:
                        self._push = False
                        items = 1
                    pos += 1
                    at = pos  # most lines are short: search for their end without a call
                    near = size - 1 if size - pos <= _NEAR else pos + _NEAR
                    while at < near and data[at] != _CR:
                        at += 1
                    if at >= near or data[at + 1] != _LF:
                        self._in_line = True
                        continue
                    pos = at + 2
                    items -= 1
                    if items == 0:
                        if not self._push:
                            done += 1
                        elif one_push:
                            break
                    continue
                at = pos + 1
                count = 0
                near = size - 1 if size - pos <= _NEAR_LENGTH else pos + _NEAR_LENGTH
                while at < near and 48 <= data[at] <= 57:
                    count = 10 * count + data[at] - 48
                    at += 1
                if at >= near or at == pos + 1 or data[at] != _CR or data[at + 1] != _LF:
                    at = data.find(b"\r\n", pos)
                    count = _length(data, pos + 1, at) if at >= 0 else 0
                if (
                    kind not in _COUNTED_TYPES
                    or count < -1
                    or (at < 0 and size - pos > _MAX_LENGTH)
                ):
                    self.broken = True
                    break
                if at < 0:
                    break
                if first:
                    self._push = kind == _PUSH
                    items = 1
                pos = at + 2
                if count > 0:
                    if kind in _BYTES_TYPES:
                        self._skip = count + 2
                        continue
                    items += count if kind in _LIST_TYPES else 2 * count
                elif count == 0 and kind in _BYTES_TYPES:
                    self._skip = 2
                    continue
                if kind == 124 or (kind == _PUSH and not first):
                    # An attribute is not a value; its value follows. A push is not one either:
                    # Redis before 7.2 writes pushes between the elements of EXEC's array.
                    items += 1
            items -= 1
            if items == 0:
                if not self._push:
                    done += 1
                elif one_push:
                    break
        self._items = items
        self.mid = items > 0
        self.pos = pos
        return done

    def at_push(self) -> bool:
        """Return whether a push begins at `pos`."""
        return not self.mid and self.pos < len(self.buf) and self.buf[self.pos] == _PUSH

    def line(self) -> bytes:
        """Return the first line of the frame at `pos`, with its CRLF; empty if it is incomplete."""
        at = self.buf.find(b"\r\n", self.pos)
        return self.buf[self.pos : at + 2] if at >= 0 else b""

    def open(self) -> None:
        """Move past the first line of the aggregate at `pos`; its values count as frames then."""
        self.last = self.pos
        self.pos = self.buf.find(b"\r\n", self.pos) + 2

    def frame(self) -> bytes:
        """Return the frame at `pos` and move past it; return nothing if it is incomplete."""
        start = self.pos
        if self.skip(1, False) == 1:
            return self.buf[start : self.pos]
        self._back(start)
        return b""

    def push(self) -> bytes:
        """Return the push at `pos` and move past it; return nothing if it is incomplete."""
        start = self.pos
        self.skip(0, True, True)
        if not self.mid:
            return self.buf[start : self.pos]
        self._back(start)
        return b""

    def _back(self, start: int) -> None:
        self.pos = start
        self._items = 0
        self._skip = 0
        self._in_line = False
        self.mid = False

    def release(self) -> None:
        """Free the bytes before `pos`; offsets into `buf` become invalid."""
        if self.pos:
            self.buf = self.buf[self.pos :] if self.pos < len(self.buf) else b""
            self.pos = 0

    def rest(self) -> bytes:
        """Remove and return all unread bytes."""
        out = self.buf[self.pos :] if self.pos else self.buf
        self.buf = b""
        self.pos = 0
        return out


def _length(data: bytes, first: int, end: int) -> int:
    """Parse the number of a reply's header: -1 for nil, -2 if it is invalid."""
    if end == first + 2 and data[first] == 45 and data[first + 1] == 49:
        return -1
    if first >= end or end - first > 18:
        return -2
    value = 0
    while first < end:
        byte = data[first]
        if byte < 48 or byte > 57:
            return -2
        value = value * 10 + (byte - 48)
        first += 1
    return value
