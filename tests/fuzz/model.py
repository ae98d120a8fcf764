"""A small Redis for fuzzing: one connection's state and one log of executed commands, without data.

As the server behind a session it does not implement RL.*. With `native` it is the reference: a
Redis that implements the family, and gets the client's bytes directly. Every reply follows from the
request's words and the connection's state alone, so the two must return the same.
"""

from __future__ import annotations

from zlib import crc32

from rlproxy.ratelimit import policies, scripts
from rlproxy.ratelimit.grammar import Grammar, wrong_report
from rlproxy.ratelimit.hit_replies import five
from rlproxy.ratelimit.outcomes import shadow
from rlproxy.resp import commands, encoding
from rlproxy.resp.encoding import bulks
from rlproxy.session.wait_cover import REWRITE, not_covered, refusal

from tests.fuzz import reference
from tests.fuzz.reference import IncompleteError, ProtocolError

# Name, rule and shadow of each policy.
TEXTS = (
    ("login", "5 60 PENALTY 300 AND 20 3600", False),
    ("queue", "3 1000 MS WAIT 50", False),
    ("shape", "3 60 ALGO LEAKY WAIT 2", False),
    ("tries", "2 60 STRICT PENALTY 9 WAIT 5 COST 2 GAP 1", True),
    ("trial", "10 60 ALGO GCRA BURST 4", True),
    ("trial:log", "10 60", True),
)
POLICIES, _ = policies.parse(TEXTS)
GRAMMAR = Grammar(scripts.load())
GRAMMAR.use(POLICIES)
OK = b"+OK\r\n"
PUSH = b">2\r\n$6\r\nfuzzed\r\n$4\r\npush\r\n"  # sent at any time, in RESP3
REFUSALS = {refusal(name): name for name in (b"WAIT", b"WAITAOF")}
NOSCRIPT = b"-NOSCRIPT No matching script. Please use EVAL.\r\n"
REPORT = b"*1\r\n+report\r\n"
SUBSCRIBED = {
    *(b"SUBSCRIBE", b"PSUBSCRIBE", b"SSUBSCRIBE", b"UNSUBSCRIBE", b"PUNSUBSCRIBE"),
    *(b"SUNSUBSCRIBE", b"PING", b"QUIT", b"RESET"),
}
NOT_QUEUED = {b"EXEC", b"DISCARD", b"MULTI", b"WATCH", b"QUIT", b"RESET"}
KNOWN = {row.name for row in commands.COMMANDS.values() if not row.ours}
# Names in the errors with which Redis refuses an RL command in a RESP2 subscription: the command
# sent in its place.
AS_SENT = ["eval", "eval_ro", "del"]
# The end of the text of a hit under shadow whose refusal the server answers as an admission.
ADMITS = b"if r[1]==1 then r[1],r[4]=0,-1 end return r"
HELD_US = 50_000  # a shy key admits its first waiting attempt only after this

Context = tuple[bytes | None, bytes | None, int]
Entry = tuple[object, ...]
# One reply: the permitted replies, most likely first, and whether it is a hit's.
Item = tuple[tuple[bytes, ...], bool]


class Model:
    """See the module docstring. `items` are the replies so far, in order."""

    def __init__(self, native: bool, locked: bool, throttle: bool) -> None:
        self.native = native
        self.locked = locked  # no command runs without AUTH
        self.throttle = throttle  # implements CL.THROTTLE itself
        self.context: Context = (None, None, 0)
        self.protocol = 2
        self.items: list[Item] = []
        self.out = b""  # the same as bytes
        self.log: list[Entry] = []
        self.closed = False
        self.silent = False  # closed without a reply: unread bytes may be lost
        # A report in MULTI aborts it where the proxy can report it; an invalid hit's error may come
        # behind a confirmation that is a push.
        self.vague = False
        self._refused = False
        self.shy: set[bytes] = set()
        self.missing = 0  # this many calls by EVALSHA find no script
        self.missed = False  # one has found none
        self.left: list[Context] = []  # of those that are to be sent again
        self._data = b""
        self._queued: list[tuple[bytes, ...]] | None = None
        self._dirty = False
        self._watching = False
        self._off = False
        self._skips = False
        self._skips_next = False
        self._channels: set[tuple[bytes, bytes]] = set()

    @property
    def idle(self) -> bool:
        """Whether no command is partly received."""
        return not self._data

    @property
    def quiet(self) -> bool:
        """Whether its connection has no state that another connection would lack."""
        hidden = self._queued is not None or self._off or self._channels
        return not hidden and not self._data

    def feed(self, data: bytes) -> None:
        """Receive bytes; every whole command is executed."""
        self._data += data
        pos = 0
        while not self.closed:
            try:
                one = reference.request(self._data, pos)
            except IncompleteError:
                break
            except ProtocolError as error:
                self._say(encoding.error(f"ERR Protocol error: {error}"))
                self.closed = True
                break
            pos = one.end
            if one.words:
                self._skips, self._skips_next = self._skips_next, False
                self._process(one.words)
        self._data = self._data[pos:]

    def _say(self, *may_be: bytes, hit: bool = False) -> None:
        if not self._off and not self._skips:
            self.items.append((may_be, hit))
            self.out += may_be[0]

    def _reject(self, *may_be: bytes, hit: bool = False) -> None:
        self._dirty = True
        self._say(*may_be, hit=hit)

    # -- one command -------------------------------------------------------------------------------

    def _process(self, words: tuple[bytes, ...]) -> None:
        name = words[0].upper()
        if name == b"RL.DENIED" and not self.native:  # it stands for a WAIT
            words = words[1:]
            name = words[0].upper()
        stands_for = REFUSALS.get(bulks(*words))
        if stands_for is not None and not self.native:
            words = (stands_for,)
            name = stands_for
        if name in (b"POST", b"HOST:"):
            self.closed = self.silent = True
            return
        ours = name in commands.FAMILY and not (self.throttle and name == commands.CL_THROTTLE)
        unknown = encoding.error(f"ERR unknown command '{words[0].decode('latin-1')}'")
        if ours and not self.native:
            self._reject(b"-ERR unknown command 'RL'\r\n")
            return
        if ours:
            wrong = self._wrong(name, words)
            if wrong:
                self._refused = True
                self._reject(wrong, b"-ERR unknown command 'RL'\r\n")
                return
        elif name not in KNOWN and name != commands.CL_THROTTLE:
            self._reject(unknown)
            return
        hit = ours and name not in commands.REPORTS
        if name in commands.REPORTS:
            # Whether MULTI was refused is not yet known when this one must be.
            self._report(name)
            return
        entrance = (b"AUTH", b"HELLO", b"QUIT", b"RESET")
        if self.locked and self.context[0] is None and name not in entrance:
            self._reject(b"-NOAUTH Authentication required.\r\n", hit=hit)
            return
        if self.protocol == 2 and self._channels and name not in SUBSCRIBED:
            text = "ERR Can't execute '%s': only (P|S)SUBSCRIBE are allowed in this context"
            names = AS_SENT if ours else [name.decode("latin-1").lower()]
            self._reject(*[encoding.error(text % each) for each in names], hit=hit)
            return
        if self._queued is not None and name not in NOT_QUEUED:
            self._queued.append(words)
            self._say(b"+QUEUED\r\n", hit=hit)
            return
        handler = getattr(self, "_" + name.decode("latin-1").lower(), None)
        if name in (b"EXEC", b"DISCARD", b"MULTI", b"WATCH", b"UNWATCH", b"QUIT", b"RESET"):
            assert handler is not None
            handler(words[1:])
            return
        if name in (b"WAIT", b"WAITAOF"):  # the proxy may refuse it
            self._say(b":0\r\n", not_covered(name), hit=True)
            return
        for reply in self._run(name, words[1:]):
            self._say(reply, hit=hit)

    def _wrong(self, name: bytes, words: tuple[bytes, ...]) -> bytes:
        """The error of a command of the family that is refused without a script call."""
        text = f"ERR wrong number of arguments for '{name.decode().lower()}' command"
        if name in commands.REPORTS:
            wrong = wrong_report(name, list(words[1:]))
            self.vague = self.vague or (not wrong and self._queued is not None)
            return wrong
        if len(words) < 2:
            return encoding.error(text)
        if name == commands.RL_RESET:
            return b""
        return GRAMMAR.rule(b"\0" * 600, name, list(words[1:])).error

    def _report(self, name: bytes) -> None:
        refused = (
            encoding.error(f"ERR {name.decode()} is not allowed in transactions"),
            b"-ERR unknown command 'RL'\r\n",
        )
        if self.locked and self.context[0] is None:
            self._reject(b"-NOAUTH Authentication required.\r\n", *refused)
        elif self.protocol == 2 and self._channels:
            text = "ERR Can't execute '%s': only (P|S)SUBSCRIBE are allowed in this context"
            self._reject(*[encoding.error(text % each) for each in AS_SENT], *refused)
        else:
            self._say(REPORT, *refused)

    def _run(self, name: bytes, args: tuple[bytes, ...]) -> list[bytes]:
        """Execute the command and add its replies."""
        if (
            name in commands.FAMILY
            and self.native
            and not (self.throttle and name == commands.CL_THROTTLE)
        ):
            return [self._family(name, args)]
        if name in (b"EVALSHA", b"EVALSHA_RO") and self.missing > 0:
            self.missing -= 1
            self.missed = True
            self.left.append(self.context)
            return [NOSCRIPT]
        if name in (b"EVAL", b"EVAL_RO", b"EVALSHA", b"EVALSHA_RO"):
            return [self._eval(args)]
        if name in (b"SELECT", b"AUTH", b"HELLO", b"CLIENT"):
            return self._connection(name, args)
        if name in (b"SUBSCRIBE", b"PSUBSCRIBE", b"SSUBSCRIBE"):
            return self._subscribe(name, args)
        if name in (b"UNSUBSCRIBE", b"PUNSUBSCRIBE", b"SUNSUBSCRIBE"):
            return self._unsubscribe(name, args)
        if name == b"REPLCONF":
            return [] if args[:1] == (b"ACK",) else [OK]
        if name == b"PING" and self._channels and self.protocol == 2:
            return [b"*2\r\n$4\r\npong\r\n$0\r\n\r\n"]
        return [self.ordinary(name, args, self.context, self.protocol)]

    def ordinary(
        self, name: bytes, args: tuple[bytes, ...], context: Context, protocol: int
    ) -> bytes:
        """A command that leaves no state; its reply identifies the request."""
        if name in (b"WAIT", b"WAITAOF"):
            return b":0\r\n"
        if name in (b"COMMAND", b"SHUTDOWN", b"DEBUG", b"SCRIPT", b"MONITOR", b"SYNC", b"PSYNC"):
            return OK if name != b"COMMAND" else b"-ERR not here\r\n"
        words = (name, *args)
        self.log.append((*words, context))
        text = b" ".join(words)[:200]
        kind = crc32(text) % 16
        if kind == 0:
            return b"-WRONGTYPE " + text.replace(b"\r", b"?").replace(b"\n", b"?") + b"\r\n"
        if kind == 1:
            return b"*3\r\n*0\r\n*2\r\n:1\r\n" + encoding.bulk(text) + b"*-1\r\n"
        if kind == 2 and protocol == 3:
            return b"|1\r\n+ttl\r\n:1\r\n%1\r\n" + encoding.bulk(text) + b"#t\r\n"
        if kind == 3:
            return b":%d\r\n" % crc32(text)
        if kind == 4:
            return b"_\r\n" if protocol == 3 else b"$-1\r\n"
        if kind == 5:
            return encoding.bulk(text * 600)
        return encoding.bulk(text)

    # -- hits --------------------------------------------------------------------------------------

    def _family(self, name: bytes, args: tuple[bytes, ...]) -> bytes:
        if name in commands.REPORTS:
            return REPORT
        if name == commands.RL_RESET:
            return self.ordinary(b"DEL", args, self.context, self.protocol)
        rule = GRAMMAR.rule(b"\0" * 600, name, list(args))
        argv = reference.request(b"*%d\r\n" % rule.tail.count(b"$") + rule.tail, 0).words
        return self.hit(args[0], argv, self.context, False, shadow(rule.row))

    def _eval(self, args: tuple[bytes, ...]) -> bytes:
        if len(args) == 3 and bulks(b"EVAL", *args[:2]).endswith(REWRITE[4:]):
            return b":1\r\n"  # it changes nothing
        if len(args) < 4 or args[1] != b"1":
            return REPORT
        argv = args[3:]
        attempt = len(argv) > 2 and argv[2] == b"1"
        return self.hit(args[2], argv, self.context, attempt, args[0].endswith(ADMITS))

    def hit(
        self,
        key: bytes,
        argv: tuple[bytes, ...],
        context: Context,
        attempt: bool,
        admits: bool = False,
    ) -> bytes:
        """A script's call.

        attempt: of a waiting hit, whose first call is refused on a shy key.
        admits: of a hit under shadow, whose refusal is answered as an admission.
        """
        limit = int(argv[0]) if argv[0].isdigit() else 0
        if refuses(key):
            return five(1 - admits, limit, 0, -1, 1)
        looks = b"peek" in argv
        if attempt and len(argv) > 5 and argv[5].isdigit():  # its script returns a time to hold it
            self.log.append(("hit", key, argv[0], context))
            return b"*6" + five(0, limit, 1, -1, 1)[2:] + b":%d\r\n" % (crc32(key) % HELD_US)
        if attempt and not looks and crc32(key) % 8 == 1 and key not in self.shy:
            self.shy.add(key)
            return five(1, limit, 0, HELD_US, 1)
        if not attempt or not looks:
            self.log.append(("hit", key, argv[0], context))
        return five(0, limit, 1, -1, 1)

    # -- state -------------------------------------------------------------------------------------

    def _multi(self, _args: tuple[bytes, ...]) -> None:
        if self._queued is not None:
            self._say(b"-ERR MULTI calls can not be nested\r\n")
            return
        self._queued = []
        self._dirty = False
        self._say(OK)

    def _exec(self, _args: tuple[bytes, ...]) -> None:
        queued, watched = self._queued, self._watching
        if queued is None:
            self._say(b"-ERR EXEC without MULTI\r\n")
            return
        self._queued = None
        self._watching = False
        if self._dirty:
            self._say(b"-EXECABORT Transaction discarded because of previous errors.\r\n")
            return
        if watched and len(queued) % 3 == 2:
            self._say(b"_\r\n" if self.protocol == 3 else b"*-1\r\n")
            return
        inside = b""
        if self.protocol == 3 and len(queued) % 4 == 1 and not self.native:
            inside += PUSH  # 7.0 may write one there
        heard = not self._off and not self._skips
        header = b"*%d\r\n" % len(queued)
        for words in queued:
            inside += b"".join(self._run(words[0].upper(), words[1:]))
        if heard:
            self.items.append(((header + inside,), False))
            self.out += header + inside

    def _discard(self, args: tuple[bytes, ...]) -> None:
        if args:
            self._reject(b"-ERR wrong number of arguments for 'discard' command\r\n")
        elif self._queued is None:
            self._say(b"-ERR DISCARD without MULTI\r\n")
        else:
            self._queued = None
            self._watching = False
            self._say(OK)

    def _watch(self, _args: tuple[bytes, ...]) -> None:
        if self._queued is not None:
            self._say(b"-ERR WATCH inside MULTI is not allowed\r\n")
            return
        self._watching = True
        self._say(OK)

    def _unwatch(self, _args: tuple[bytes, ...]) -> None:
        self._watching = False
        self._say(OK)

    def _quit(self, _args: tuple[bytes, ...]) -> None:
        self._say(OK)
        self.closed = True

    def _reset(self, args: tuple[bytes, ...]) -> None:
        if args:
            self._reject(b"-ERR wrong number of arguments for 'reset' command\r\n")
            return
        self.context = (None, None, 0)
        self.protocol = 2
        self._queued = None
        self._dirty = self._watching = self._off = self._skips = self._skips_next = False
        self._channels.clear()
        self._say(b"+RESET\r\n")

    def _connection(self, name: bytes, args: tuple[bytes, ...]) -> list[bytes]:
        user, password, _ = self.context
        if name == b"SELECT":
            db = reference.integer(args[0]) if len(args) == 1 else None
            if db is None or not 0 <= db < 16:
                return [b"-ERR DB index is out of range\r\n"]
            self.context = (user, password, db)
            return [OK]
        if name == b"AUTH":
            return [self._log_in(args)]
        if name == b"HELLO":
            return [self._hello(args)]
        word = args[0].upper() if args else b""
        if word == b"REPLY" and len(args) == 2:
            what = args[1].upper()
            if what == b"OFF":
                self._off = True
                return []
            if what == b"SKIP":
                self._skips_next = not self._off
                return []
            if what == b"ON":
                self._off = self._skips = False
                return [OK]
        if word in (b"ID", b"GETNAME", b"SETNAME", b"SETINFO", b"TRACKING", b"INFO"):
            return [b":7\r\n" if word == b"ID" else OK]
        if word == b"MAINT_NOTIFICATIONS" and args[1:] == (b"ON",):
            return [OK]
        return [b"-ERR unknown subcommand\r\n"]

    def _log_in(self, args: tuple[bytes, ...]) -> bytes:
        if len(args) == 1:
            args = (b"default", args[0])
        if len(args) != 2:
            return b"-ERR syntax error\r\n"
        if args[1] != b"pw":
            return b"-WRONGPASS invalid username-password pair\r\n"
        self.context = (args[0], args[1], self.context[2])
        return OK

    def _hello(self, args: tuple[bytes, ...]) -> bytes:
        asked = self.protocol
        if args:
            if args[0] not in (b"2", b"3"):
                return b"-NOPROTO unsupported protocol version\r\n"
            asked = int(args[0])
            at = 1
            while at < len(args):
                word = args[at].upper().partition(b"\0")[0]
                if word == b"AUTH" and at + 2 < len(args):
                    reply = self._log_in(args[at + 1 : at + 3])
                    if reply != OK:
                        return reply
                    at += 3
                elif word == b"SETNAME" and at + 1 < len(args):
                    if b" " in args[at + 1]:
                        return b"-ERR Client names cannot contain spaces\r\n"
                    at += 2
                else:
                    return b"-ERR Syntax error in HELLO option\r\n"
        if self.locked and self.context[0] is None:
            return b"-NOAUTH HELLO must be called with the client already authenticated\r\n"
        self.protocol = asked
        return (b"%1\r\n" if asked == 3 else b"*2\r\n") + b"$5\r\nproto\r\n:%d\r\n" % asked

    def _subscribe(self, name: bytes, args: tuple[bytes, ...]) -> list[bytes]:
        if not args:
            return [b"-ERR wrong number of arguments for 'subscribe' command\r\n"]
        replies = []
        for channel in args:
            self._channels.add((name[:1], channel))
            replies.append(self._confirm(name, encoding.bulk(channel)))
        return self._loud(replies)

    def _unsubscribe(self, name: bytes, args: tuple[bytes, ...]) -> list[bytes]:
        kind = b"S" if name == b"UNSUBSCRIBE" else name[:1]
        channels = list(args) or sorted(each for of, each in self._channels if of == kind)
        replies = []
        for channel in channels:
            self._channels.discard((kind, channel))
            replies.append(self._confirm(name, encoding.bulk(channel)))
        if not channels:
            replies.append(self._confirm(name, b"_\r\n" if self.protocol == 3 else b"$-1\r\n"))
        return self._loud(replies)

    def _confirm(self, name: bytes, channel: bytes) -> bytes:
        self.vague = self.vague or (self._refused and self.protocol == 3)
        head = b">3\r\n" if self.protocol == 3 else b"*3\r\n"
        return head + encoding.bulk(name.lower()) + channel + b":%d\r\n" % len(self._channels)

    def _loud(self, replies: list[bytes]) -> list[bytes]:
        """Confirmations come even where replies are off."""
        if not self._off and not self._skips:
            return replies
        for reply in replies:
            self.items.append(((reply,), False))
            self.out += reply
        return []


def refuses(key: bytes) -> bool:
    """Whether every hit on `key` is refused."""
    return crc32(key) % 8 == 0


def is_subsequence(some: list[Entry], whole: list[Entry]) -> bool:
    """Whether `some` is `whole` with entries left out."""
    rest = iter(whole)
    return all(any(entry == other for other in rest) for entry in some)
