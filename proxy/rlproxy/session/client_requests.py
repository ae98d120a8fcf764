"""The requests of one client that were received and not sent on yet. No I/O."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from rlproxy.observability.counters import Counters
from rlproxy.ratelimit.grammar import Rule, wrong_arity, wrong_report
from rlproxy.ratelimit.hit_replies import TOO_LONG
from rlproxy.ratelimit.outcomes import RESET, other
from rlproxy.resp import commands, encoding
from rlproxy.resp.key_slot import NO_SLOT, slot_of_bulk
from rlproxy.resp.requests import BODY, TAIL, RequestFramer
from rlproxy.session.call import Call, Caller
from rlproxy.session.context import WorkerContext

_R: Final = 82
_L: Final = 76
_DOT: Final = 46


class ClientRequests(RequestFramer):
    """The unread requests, and how far the client can be served.

    eof: the client has sent its end of file. Then no command waits for a reply that may not come,
        as Redis has to end a command that blocks. The replies to hits by EVALSHA come.
    discarding: the rest of a command that arrives in parts is dropped.
    """

    def __init__(self) -> None:
        super().__init__()
        self.eof = False
        self.discarding = False

    def looks_like_ours(self) -> bool:
        """Return whether the next request looks like an RL command, as most clients write it."""
        data = self.buf
        name: i64 = self.pos + 8  # behind `*n\r\n$n\r\n`
        if name + 2 >= len(data):
            return False
        return data[name] == _R and data[name + 1] == _L and data[name + 2] == _DOT

    def drops(self, code: int) -> bool:
        """Return whether the part `code`, just framed, belongs to a command that is dropped."""
        if not self.discarding or code not in (BODY, TAIL):
            return False
        self.discarding = code == BODY
        return True

    def denied(self, stats: Counters) -> bytes:
        """Return the error if the client must not send the framer's command, and count it."""
        ban = self.command.ban
        if ban is None:
            return b""
        args = self.arguments() if self.command.whole or self.oversize else []
        error = ban.error(args, not self.oversize)
        if error:
            stats.error("denied")
        return error

    def written(self) -> bytes:
        """Return the framer's command as the client wrote it."""
        return self.buf[self.start : self.pos]

    def hash_slot(self) -> int:
        """Return the hash slot of all keys of the framer's command, whole and not `lenient`.

        NO_SLOT if it is never shared, if it has no key, or if its keys are in several slots.
        """
        command = self.command
        last = command.last_key if command.last_key >= 0 else self.argc - 1
        if not 0 < last < self.argc:
            return NO_SLOT
        data = self.buf
        pos = self.start + self.first
        slot = slot_of_bulk(data, pos)
        at: i64
        for at in range(1, last):
            pos = encoding.content(data, pos)[1] + 2
            if at % command.key_step == 0 and slot_of_bulk(data, pos) != slot:
                return NO_SLOT
        return slot

    def size(self) -> int:
        """Return the length of the framer's command in bytes."""
        return self.pos - self.start

    def call(self, caller: Caller, context: WorkerContext) -> Call | None:
        """Return the call of the framer's command.

        None: a command that Redis implements itself, or a valid RL.HELP, RL.STATS or RL.TOP.

        An invalid command gives a call with its error as `reply`.
        """
        grammar = context.grammar
        name = self.command.name
        if context.server.implements(name):
            return None
        if self.oversize:
            return Call(caller, Rule(TOO_LONG), b"")
        if self.command.report:
            wrong = wrong_report(name, self.arguments())
            return Call(caller, Rule(wrong), b"") if wrong else None
        if self.argc < 2:
            return Call(caller, Rule(encoding.error(wrong_arity(name))), b"")
        if self.lenient:
            args = self.arguments()
            key = encoding.bulk(args[0])
            tail = b"".join([encoding.bulk(arg) for arg in args[1:]])
        else:
            first = self.start + self.first
            second = encoding.content(self.buf, first)[1] + 2
            key = self.buf[first:second]
            tail = self.buf[second : self.pos]
        if name == commands.RL_RESET:
            return self._reset(caller, key, tail)
        written = tail if name == commands.RL_HIT else name + tail
        known = grammar.known(written)
        if known is None:
            known = grammar.rule(written, name, self.arguments())
        return Call(caller, known, key)

    def _reset(self, caller: Caller, key: bytes, tail: bytes) -> Call:
        rule = Rule()
        rule.head = b"*%d\r\n$3\r\nDEL\r\n" % self.argc
        rule.tail = tail
        rule.frees = True
        rule.row = other(RESET)
        return Call(caller, rule, key)
