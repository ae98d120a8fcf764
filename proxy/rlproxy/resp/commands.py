"""The reviewed table of Redis commands: the state that each one leaves on its connection.

The table is a whitelist. A session stays *plain* only while every command that it sent is of one of
two sorts: in `READS` or `WRITES` (no state on its connection, exactly one reply), or with a handler
(the other kinds). Any other command makes its session private until a `RESET` is answered `+RESET`.
Examples are commands of most modules, DEBUG, and commands of future servers. A test compares this
table with COMMAND of real servers.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from rlproxy.resp.encoding import same

# The kinds of commands. They are integers because mypyc compares these as machine words.
PASS: Final = 0  # stateless: forwarded, one reply
UNKNOWN: Final = 1  # forwarded; from then on the state of the connection is unknown
OURS: Final = 2  # RL commands
AUTH: Final = 3
HELLO: Final = 4
SELECT: Final = 5
RESET: Final = 6
QUIT: Final = 7
MULTI: Final = 8
EXEC: Final = 9
DISCARD: Final = 10
CLIENT: Final = 11
SCRIPT: Final = 12
WAIT: Final = 13  # WAIT and WAITAOF: concern the writes of the connection they are sent on
PUBSUB: Final = 14  # any number of replies, each of them a frame
STREAM: Final = 15  # afterwards replies cannot be counted
INTROSPECT: Final = 16  # COMMAND: stateless, but the RL commands are added to its reply
OF_NODE: Final = 17  # READONLY, READWRITE, ASKING: stateless where the proxy answers them
BLOCKS: Final = 18  # as PASS, but its reply may be owed for ever

HANDSHAKE: Final = (HELLO, AUTH, SELECT, CLIENT)  # kinds that client libraries begin with

# Kinds of lanes. With --share, a command has one of these, or PRIVATE.
PRIVATE: Final = 0  # never on a command lane
SHARED_READ: Final = 1  # sent again on the private connection if its reply is large
SHARED_WRITE: Final = 2  # its reply is always small
HIT: Final = 3  # calls of RL commands
LANE_KINDS: Final = 4  # the number of these


class Ban:
    """The forms in which clients must not send a command, each with its error reply.

    whole: error for every form; empty if some forms are allowed.
    unseen: error if the deciding arguments are too long to be examined.
    subcommands: errors by subcommand, in upper case.
    configs: errors by parameter of the subcommand SET, in lower case.
    """

    def __init__(self) -> None:
        self.whole: bytes = b""
        self.unseen: bytes = b""
        self.subcommands: dict[bytes, bytes] = {}
        self.configs: dict[bytes, bytes] = {}

    def error(self, args: list[bytes], complete: bool) -> bytes:
        """Return the error for the command with these arguments; empty if it may be sent.

        complete: False if `args` lacks arguments, because the command is long or not all here.
        """
        if self.whole:
            return self.whole
        if not args:
            return b"" if complete else self.unseen
        # Redis compares these words as C strings, so a NUL ends them.
        subcommand = args[0].partition(b"\0")[0].upper()
        found = self.subcommands.get(subcommand, b"")
        if found or not self.configs or subcommand != b"SET":
            return found
        for word in args[1::2]:
            found = self.configs.get(word.partition(b"\0")[0].lower(), b"")
            if found:
                return found
        return b"" if complete else self.unseen


# The keys of commands of SHARED_READS and SHARED_WRITES, where they aren't the first argument:
# Command.last_key and key_step.
_OTHER_KEYS: Final = {
    **dict.fromkeys(b"ECHO TIME".split(), (0, 1)),
    **dict.fromkeys(b"RENAME RENAMENX SMOVE".split(), (2, 1)),
    **dict.fromkeys(b"DEL EXISTS MGET SDIFF SINTER SUNION TOUCH UNLINK".split(), (-1, 1)),
    **dict.fromkeys(b"MSET MSETNX".split(), (-1, 2)),
}


class Command:
    """One row of the table.

    kind: PASS, UNKNOWN, OURS ...
    reads: True if it changes no data and no rights.
    shared: PRIVATE, SHARED_READ or SHARED_WRITE.
    last_key: the number of the last argument that is a key, if it is shared and the first one is a
        key; 0: none; -1: the last argument.
    key_step: from one key to the next.
    ours: True for RL commands.
    report: True for the RL commands by which the proxy reports about itself.
    whole: True if its arguments are needed before it can be forwarded.
    ban: forms that clients must not send, if any.
    """

    def __init__(self, name: bytes, kind: int, reads: bool = False, shared: int = PRIVATE) -> None:
        self.name = name
        self.kind = kind
        self.reads = reads
        self.shared = shared
        keys = _OTHER_KEYS.get(name, (1, 1)) if shared != PRIVATE else (0, 1)
        self.last_key: i64 = keys[0]
        self.key_step: i64 = keys[1]
        self.ours = kind == OURS
        self.report = name in REPORTS
        self.ban: Ban | None = None
        self.whole = kind in (OURS, AUTH, HELLO, SELECT, RESET, CLIENT, SCRIPT, INTROSPECT, WAIT)


# Commands that leave no state on their connection and give one reply. WATCH counts as one: Redis
# notes a hit on a watched key, whichever connection it comes by. READS change no data, WRITES
# change data, rights or the server. With --share, those of SHARED_READS and SHARED_WRITES go by
# command lanes: they never block and do not depend on connection state. The replies of
# SHARED_WRITES are small. A command of SHARED_READS with a large reply is sent again on the private
# connection.
SHARED_READS: Final = b"""
    BITCOUNT BITPOS ECHO EXISTS EXPIRETIME GEODIST GEOHASH GEOPOS GEOSEARCH GET GETBIT GETRANGE
    HEXISTS HEXPIRETIME HGET HGETALL HKEYS HLEN HMGET HPEXPIRETIME HPTTL HSCAN HSTRLEN HTTL HVALS
    LINDEX LLEN LPOS LRANGE MGET PEXPIRETIME PTTL SCARD SDIFF SINTER SISMEMBER SMEMBERS
    SMISMEMBER SSCAN STRLEN SUBSTR SUNION TIME TOUCH TTL TYPE XLEN XRANGE XREVRANGE ZCARD ZCOUNT
    ZLEXCOUNT ZMSCORE ZRANGE ZRANGEBYLEX ZRANGEBYSCORE ZRANK ZREVRANGE ZREVRANGEBYLEX
    ZREVRANGEBYSCORE ZREVRANK ZSCAN ZSCORE
"""
_OTHER_READS: Final = b"""
    BITFIELD_RO CLUSTERSCAN COMMANDLOG DBSIZE DIGEST DUMP EVALSHA_RO EVAL_RO FCALL_RO
    GEORADIUSBYMEMBER_RO GEORADIUS_RO HRANDFIELD INFO KEYS LASTSAVE LCS LOLWUT MEMORY OBJECT PFCOUNT
    PING PUBSUB RANDOMKEY ROLE SCAN SINTERCARD SORT_RO SRANDMEMBER STRALGO UNWATCH VCARD VDIM VEMB
    VGETATTR VINFO VISMEMBER VLINKS VRANDMEMBER VRANGE VSIM WATCH XINFO XPENDING XREAD ZDIFF ZINTER
    ZINTERCARD ZRANDMEMBER ZUNION
"""
READS: Final = SHARED_READS + _OTHER_READS
SHARED_WRITES: Final = b"""
    APPEND DECR DECRBY DEL EXPIRE EXPIREAT GEOADD HDEL HINCRBY HINCRBYFLOAT HMSET HSET HSETNX INCR
    INCRBY INCRBYFLOAT LINSERT LPUSH LPUSHX LREM LSET LTRIM MSET MSETNX PERSIST PEXPIRE PEXPIREAT
    PFADD PSETEX RENAME RENAMENX RPUSH RPUSHX SADD SET SETBIT SETEX SETNX SETRANGE SMOVE SREM UNLINK
    XACK XACKDEL XADD XDEL XDELEX XTRIM ZADD ZINCRBY ZREM ZREMRANGEBYLEX ZREMRANGEBYRANK
    ZREMRANGEBYSCORE
"""
_OTHER_WRITES: Final = b"""
    ACL BGREWRITEAOF BGSAVE BITFIELD BITOP BLMOVE BLMPOP BLPOP BRPOP BRPOPLPUSH BZMPOP BZPOPMAX
    BZPOPMIN CLUSTER CONFIG COPY DELEX DELIFEQ EVAL EVALSHA FAILOVER FCALL FLUSHALL FLUSHDB FUNCTION
    GEORADIUS GEORADIUSBYMEMBER GEOSEARCHSTORE GETDEL GETEX GETSET HEXPIRE HEXPIREAT HGETDEL HGETEX
    HPERSIST HPEXPIRE HPEXPIREAT HSETEX INCREX LATENCY LMOVE LMPOP LPOP MIGRATE MODULE MOVE MSETEX
    PFMERGE PUBLISH REPLICAOF RESTORE RESTORE-ASKING RPOP RPOPLPUSH SAVE SDIFFSTORE SINTERSTORE
    SLAVEOF SLOWLOG SORT SPOP SPUBLISH SUNIONSTORE SWAPDB VADD VREM VSETATTR XAUTOCLAIM XCFGSET
    XCLAIM XGROUP XNACK XREADGROUP XSETID ZDIFFSTORE ZINTERSTORE ZMPOP ZPOPMAX ZPOPMIN ZRANGESTORE
    ZUNIONSTORE
"""
WRITES: Final = SHARED_WRITES + _OTHER_WRITES
BLOCKING: Final = (
    b"BLMOVE BLMPOP BLPOP BRPOP BRPOPLPUSH BZMPOP BZPOPMAX BZPOPMIN XREAD XREADGROUP".split()
)

# Commands with a handler: the session tracks their effect on the connection.
FOLLOWED: Final[dict[bytes, int]] = {
    b"AUTH": AUTH,
    b"HELLO": HELLO,
    b"SELECT": SELECT,
    b"RESET": RESET,
    b"QUIT": QUIT,
    b"MULTI": MULTI,
    b"EXEC": EXEC,
    b"DISCARD": DISCARD,
    b"CLIENT": CLIENT,
    b"SCRIPT": SCRIPT,
    b"COMMAND": INTROSPECT,
    **dict.fromkeys((b"ASKING", b"READONLY", b"READWRITE"), OF_NODE),
    **dict.fromkeys((b"WAIT", b"WAITAOF"), WAIT),
    **dict.fromkeys((b"SUBSCRIBE", b"PSUBSCRIBE", b"SSUBSCRIBE"), PUBSUB),
    **dict.fromkeys((b"UNSUBSCRIBE", b"PUNSUBSCRIBE", b"SUNSUBSCRIBE"), PUBSUB),
    # REPLCONF ACK and a SHUTDOWN that succeeds give no reply, DEBUG PROTOCOL replies with pushes.
    **dict.fromkeys((b"MONITOR", b"SYNC", b"PSYNC", b"REPLCONF", b"SHUTDOWN", b"DEBUG"), STREAM),
    # Redis closes the connection without a reply and drops unsent replies.
    **dict.fromkeys((b"POST", b"HOST:"), STREAM),
}

# Commands left out of every list on purpose: they leave state that the session does not track.
STATEFUL: Final = b"PFDEBUG PFSELFTEST"

# Subcommands of CLIENT that leave no state that affects hits on the same connection.
CLIENT_STATELESS: Final = frozenset(
    b"CAPA GETNAME GETREDIR HELP ID INFO KILL LIST NO-EVICT PAUSE SETINFO SETNAME TRACKINGINFO"
    b" UNBLOCK UNPAUSE".split()
)
# Subcommands of SCRIPT that leave no state. SCRIPT DEBUG starts the debugger on its connection.
SCRIPT_STATELESS: Final = frozenset(b"EXISTS FLUSH HELP KILL LOAD SHOW".split())

# The RL commands. Those that code compares with have a name of their own.
RL_HIT: Final = b"RL.HIT"
RL_RESET: Final = b"RL.RESET"
RL_HELP: Final = b"RL.HELP"
RL_STATS: Final = b"RL.STATS"
RL_TOP: Final = b"RL.TOP"
RL_POLICIES: Final = b"RL.POLICIES"
CL_THROTTLE: Final = b"CL.THROTTLE"  # of redis-cell; forwarded where the upstream implements it
REPORTS: Final = (RL_HELP, RL_STATS, RL_TOP, RL_POLICIES)
FAMILY: Final = (
    *(RL_HIT, b"RL.PEEK", b"RL.REFUND", RL_RESET, b"RL.BLOCK"),
    *(*REPORTS, b"RL.THROTTLE", CL_THROTTLE),
)

UNKNOWN_COMMAND: Final = Command(b"", UNKNOWN)


def _table() -> dict[bytes, Command]:
    shared = dict.fromkeys(SHARED_READS.split(), SHARED_READ)
    shared |= dict.fromkeys(SHARED_WRITES.split(), SHARED_WRITE)
    kinds = dict.fromkeys(BLOCKING, BLOCKS)
    rows: list[Command] = []
    for reads, names in ((True, READS.split()), (False, WRITES.split())):
        for name in names:
            kind, lane = kinds.get(name, PASS), shared.get(name, PRIVATE)
            rows.append(Command(name, kind, reads, lane))
    rows += [Command(name, kind, kind == INTROSPECT) for name, kind in FOLLOWED.items()]
    rows += [Command(name, OURS, name in REPORTS) for name in FAMILY]
    table: dict[bytes, Command] = {}
    for row in rows:
        assert row.name not in table, row.name
        table[row.name] = row
        table[row.name.lower()] = row
    return table


# The rows by name in upper and in lower case; a lookup of these two spellings needs no upper().
COMMANDS: Final[dict[bytes, Command]] = _table()

_CLASSES: Final = 32  # of names, by the low bits of the first byte


class CommandTable:
    """The rows of commands, by name in upper and in lower case.

    The latest name of each class is found without a copy of its bytes: clients repeat few names.

    strict: some commands are banned, and none may pass unrecognized. Any table but COMMANDS is
        taken to contain bans.
    """

    def __init__(self, rows: dict[bytes, Command]) -> None:
        self.rows = rows
        self.strict = rows is not COMMANDS
        self._names = [b""] * _CLASSES
        self._found = [UNKNOWN_COMMAND] * _CLASSES

    def find(self, data: bytes, start: i64, end: i64) -> Command:
        """Return the row of the name that stands in `data` from `start` to `end`."""
        place: i64 = data[start] & (_CLASSES - 1) if start < end else 0
        if not same(self._names[place], data, start, end):
            name = data[start:end]
            self._names[place] = name
            self._found[place] = self.rows.get(name) or self._unusual(name)
        return self._found[place]

    def _unusual(self, name: bytes) -> Command:
        """The row of a name that is in neither all upper nor all lower case, or unknown."""
        command = self.rows.get(name.upper())
        if command is not None:
            return command
        return self.banned(name) if self.strict else UNKNOWN_COMMAND

    def banned(self, name: bytes) -> Command:
        """Return the banned command that Redis may find by a `name` with a NUL in it, if any."""
        # Redis hashes the whole name but compares up to the NUL, so some such names match.
        word, found, _ = name.partition(b"\0")
        command = self.rows.get(word.upper()) if found else None
        if command is None or command.ban is None or command.ours:
            return UNKNOWN_COMMAND
        return command


UNRESTRICTED: Final = CommandTable(COMMANDS)
