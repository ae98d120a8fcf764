"""The reviewed table of Redis commands: the state that each one leaves on its connection.

A whitelist. A session stays *plain* only while every command it sent is in `STATELESS` (leaves
nothing on its connection, gives exactly one reply) or has a handler of its own (the other kinds).
Whatever is not here (most modules, DEBUG, commands of servers to come) makes its session private
until a `RESET` that was answered `+RESET`. A test holds this table against COMMAND of real servers.
"""

from __future__ import annotations

from typing import Final

# What a session does about a command. (Integers: mypyc compares them as machine words.)
PASS: Final = 0  # stateless: forward, count one reply
UNKNOWN: Final = 1  # forward, and trust nothing about this connection any more
OURS: Final = 2  # the RL family
AUTH: Final = 3
HELLO: Final = 4
SELECT: Final = 5
RESET: Final = 6
QUIT: Final = 7
MULTI: Final = 8
EXEC: Final = 9
DISCARD: Final = 10
WATCH: Final = 11
UNWATCH: Final = 12
CLIENT: Final = 13
SCRIPT: Final = 14
ASKING: Final = 15
WAIT: Final = 16  # speaks of the writes of its own connection
PUBSUB: Final = 17  # the number of replies is not one, but each is a frame
STREAM: Final = 18  # from here on replies can't be counted
HTTP: Final = 19  # Redis closes its connection without a word, unsent replies included
INTROSPECT: Final = 20  # COMMAND: stateless, but its reply is to know the RL family too

# What a client says about itself before it asks for anything.
GREETS: Final = (AUTH, HELLO, SELECT, CLIENT)

# Whether a command may travel on a connection that many share.
PRIVATE: Final = 0
SHARED_READ: Final = 1  # should its reply be large, it is asked again on the private connection
SHARED_WRITE: Final = 2  # its reply is small by nature


class Ban:
    """Why a command must not be sent, each with its error: in any form (`whole`), with one of some
    `subcommands` (upper case), as SET of one of some `configs` (lower case), or because what
    decides is too long to be looked at (`unseen`).
    """

    __slots__ = ("configs", "subcommands", "unseen", "whole")

    def __init__(self) -> None:
        self.whole: bytes = b""
        self.unseen: bytes = b""
        self.subcommands: dict[bytes, bytes] = {}
        self.configs: dict[bytes, bytes] = {}

    def error(self, args: list[bytes], complete: bool) -> bytes:
        """What to answer to the command with these arguments; nothing if it may be sent."""
        if self.whole:
            return self.whole
        if not args:
            return b"" if complete else self.unseen
        # (Redis compares these words as C strings, so a NUL ends them)
        subcommand = args[0].partition(b"\0")[0].upper()
        found = self.subcommands.get(subcommand, b"")
        if found or not self.configs or subcommand != b"SET":
            return found
        for word in args[1::2]:
            found = self.configs.get(word.partition(b"\0")[0].lower(), b"")
            if found:
                return found
        return b"" if complete else self.unseen


class Command:
    """One row: how a session treats the command `name`."""

    __slots__ = ("ban", "kind", "name", "ours", "reads", "shared", "whole")

    def __init__(self, name: bytes, kind: int, reads: bool = False, shared: int = PRIVATE) -> None:
        self.name = name
        self.kind = kind
        self.reads = reads  # changes no data and no rights
        self.shared = shared  # whether it may travel on a shared connection (--share)
        self.ours = kind == OURS
        self.ban: Ban | None = None
        # Its arguments are needed before it can be forwarded.
        self.whole = kind in (OURS, AUTH, HELLO, SELECT, RESET, CLIENT, SCRIPT, INTROSPECT, WAIT)


# Leaves no state on its connection, gives one reply, and changes no data.
READS: Final = b"""
    BITCOUNT BITFIELD_RO BITPOS CLUSTERSCAN COMMANDLOG DBSIZE DIGEST DUMP ECHO EVALSHA_RO EVAL_RO
    EXISTS EXPIRETIME FCALL_RO GEODIST GEOHASH GEOPOS GEORADIUSBYMEMBER_RO GEORADIUS_RO GEOSEARCH
    GET GETBIT GETRANGE HEXISTS HEXPIRETIME HGET HGETALL HKEYS HLEN HMGET HPEXPIRETIME HPTTL
    HRANDFIELD HSCAN HSTRLEN HTTL HVALS INFO KEYS LASTSAVE LCS LINDEX LLEN LOLWUT LPOS LRANGE MEMORY
    MGET OBJECT PEXPIRETIME PFCOUNT PING PTTL PUBSUB RANDOMKEY ROLE SCAN SCARD SDIFF SINTER
    SINTERCARD SISMEMBER SMEMBERS SMISMEMBER SORT_RO SRANDMEMBER SSCAN STRALGO STRLEN SUBSTR SUNION
    TIME TOUCH TTL TYPE VCARD VDIM VEMB VGETATTR VINFO VISMEMBER VLINKS VRANDMEMBER VRANGE VSIM
    XINFO XLEN XPENDING XRANGE XREAD XREVRANGE ZCARD ZCOUNT ZDIFF ZINTER ZINTERCARD ZLEXCOUNT
    ZMSCORE ZRANDMEMBER ZRANGE ZRANGEBYLEX ZRANGEBYSCORE ZRANK ZREVRANGE ZREVRANGEBYLEX
    ZREVRANGEBYSCORE ZREVRANK ZSCAN ZSCORE ZUNION
"""

# Leaves no state on its connection and gives one reply, but changes data, rights or the server.
WRITES: Final = b"""
    ACL APPEND BGREWRITEAOF BGSAVE BITFIELD BITOP BLMOVE BLMPOP BLPOP BRPOP BRPOPLPUSH BZMPOP
    BZPOPMAX BZPOPMIN CLUSTER CONFIG COPY DECR DECRBY DEL DELEX DELIFEQ EVAL EVALSHA EXPIRE EXPIREAT
    FAILOVER FCALL FLUSHALL FLUSHDB FUNCTION GEOADD GEORADIUS GEORADIUSBYMEMBER GEOSEARCHSTORE
    GETDEL GETEX GETSET HDEL HEXPIRE HEXPIREAT HGETDEL HGETEX HINCRBY HINCRBYFLOAT HMSET HPERSIST
    HPEXPIRE HPEXPIREAT HSET HSETEX HSETNX INCR INCRBY INCRBYFLOAT INCREX LATENCY LINSERT LMOVE
    LMPOP LPOP LPUSH LPUSHX LREM LSET LTRIM MIGRATE MODULE MOVE MSET MSETEX MSETNX PERSIST PEXPIRE
    PEXPIREAT PFADD PFMERGE PSETEX PUBLISH RENAME RENAMENX REPLICAOF RESTORE RESTORE-ASKING RPOP
    RPOPLPUSH RPUSH RPUSHX SADD SAVE SDIFFSTORE SET SETBIT SETEX SETNX SETRANGE SINTERSTORE SLAVEOF
    SLOWLOG SMOVE SORT SPOP SPUBLISH SREM SUNIONSTORE SWAPDB UNLINK VADD VREM VSETATTR XACK XACKDEL
    XADD XAUTOCLAIM XCFGSET XCLAIM XDEL XDELEX XGROUP XNACK XREADGROUP XSETID XTRIM ZADD ZDIFFSTORE
    ZINCRBY ZINTERSTORE ZMPOP ZPOPMAX ZPOPMIN ZRANGESTORE ZREM ZREMRANGEBYLEX ZREMRANGEBYRANK
    ZREMRANGEBYSCORE ZUNIONSTORE
"""

# Of those, what --share puts on shared connections: never blocks, looks at no connection. What
# writes has a small reply there; what reads is asked again where the reply turns out to be large.
SHARED_READS: Final = b"""
    BITCOUNT BITPOS ECHO EXISTS EXPIRETIME GEODIST GEOHASH GEOPOS GEOSEARCH GET GETBIT GETRANGE
    HEXISTS HEXPIRETIME HGET HGETALL HKEYS HLEN HMGET HPEXPIRETIME HPTTL HSCAN HSTRLEN HTTL HVALS
    LINDEX LLEN LPOS LRANGE MGET PEXPIRETIME PTTL SCARD SDIFF SINTER SINTERCARD SISMEMBER
    SMEMBERS SMISMEMBER SSCAN STRLEN SUBSTR SUNION TIME TOUCH TTL TYPE XLEN XRANGE XREVRANGE ZCARD
    ZCOUNT ZLEXCOUNT ZMSCORE ZRANGE ZRANGEBYLEX ZRANGEBYSCORE ZRANK ZREVRANGE ZREVRANGEBYLEX
    ZREVRANGEBYSCORE ZREVRANK ZSCAN ZSCORE
"""
SHARED_WRITES: Final = b"""
    APPEND DECR DECRBY DEL EXPIRE EXPIREAT GEOADD HDEL HINCRBY HINCRBYFLOAT HMSET HSET HSETNX INCR
    INCRBY INCRBYFLOAT LINSERT LPUSH LPUSHX LREM LSET LTRIM MSET MSETNX PERSIST PEXPIRE PEXPIREAT
    PFADD PSETEX RENAME RENAMENX RPUSH RPUSHX SADD SET SETBIT SETEX SETNX SETRANGE SMOVE SREM UNLINK
    XACK XACKDEL XADD XDEL XDELEX XTRIM ZADD ZINCRBY ZREM ZREMRANGEBYLEX ZREMRANGEBYRANK
    ZREMRANGEBYSCORE
"""

# Commands whose effect on their connection the session follows.
FOLLOWED: Final[dict[bytes, int]] = {
    b"AUTH": AUTH,
    b"HELLO": HELLO,
    b"SELECT": SELECT,
    b"RESET": RESET,
    b"QUIT": QUIT,
    b"MULTI": MULTI,
    b"EXEC": EXEC,
    b"DISCARD": DISCARD,
    b"WATCH": WATCH,
    b"UNWATCH": UNWATCH,
    b"CLIENT": CLIENT,
    b"SCRIPT": SCRIPT,
    b"ASKING": ASKING,
    b"COMMAND": INTROSPECT,
    b"WAIT": WAIT,
    b"WAITAOF": WAIT,
    b"SUBSCRIBE": PUBSUB,
    b"PSUBSCRIBE": PUBSUB,
    b"SSUBSCRIBE": PUBSUB,
    b"UNSUBSCRIBE": PUBSUB,
    b"PUNSUBSCRIBE": PUBSUB,
    b"SUNSUBSCRIBE": PUBSUB,
    b"MONITOR": STREAM,
    b"SYNC": STREAM,
    b"PSYNC": STREAM,
    b"REPLCONF": STREAM,  # REPLCONF ACK gives no reply
    b"SHUTDOWN": STREAM,  # no reply where it succeeds
    b"DEBUG": STREAM,  # DEBUG PROTOCOL answers with pushes
    b"POST": HTTP,
    b"HOST:": HTTP,
}

# Known, and left out of every list on purpose: they leave state that the session does not follow.
STATEFUL: Final = b"READONLY READWRITE PFDEBUG PFSELFTEST"

# Subcommands of CLIENT that leave nothing on their connection that a hit could notice.
CLIENT_STATELESS: Final = frozenset(
    b"GETNAME GETREDIR HELP ID INFO KILL LIST PAUSE SETINFO SETNAME TRACKINGINFO UNBLOCK"
    b" UNPAUSE".split()
)
# Those that leave something only where the server knows them and agrees.
CLIENT_IF_REFUSED: Final = frozenset([b"MAINT_NOTIFICATIONS"])
# SCRIPT DEBUG puts its connection under the debugger.
SCRIPT_STATELESS: Final = frozenset(b"EXISTS FLUSH HELP KILL LOAD SHOW".split())

# The commands that are answered by the proxy's own scripts.
RL_HIT: Final = b"RL.HIT"
RL_PEEK: Final = b"RL.PEEK"
RL_REFUND: Final = b"RL.REFUND"
RL_RESET: Final = b"RL.RESET"
RL_HELP: Final = b"RL.HELP"
RL_STATS: Final = b"RL.STATS"
RL_TOP: Final = b"RL.TOP"
RL_THROTTLE: Final = b"RL.THROTTLE"
CL_THROTTLE: Final = b"CL.THROTTLE"  # redis-cell's; the upstream's own where it has it
TOLD: Final = (RL_HELP, RL_STATS, RL_TOP)  # what the proxy tells of itself
FAMILY: Final = (RL_HIT, RL_PEEK, RL_REFUND, RL_RESET, *TOLD, RL_THROTTLE, CL_THROTTLE)

UNKNOWN_COMMAND: Final = Command(b"", UNKNOWN)


def _table() -> dict[bytes, Command]:
    reads, writes = set(SHARED_READS.split()), set(SHARED_WRITES.split())
    rows = [
        Command(name, PASS, True, SHARED_READ if name in reads else PRIVATE)
        for name in READS.split()
    ]
    rows += [
        Command(name, PASS, False, SHARED_WRITE if name in writes else PRIVATE)
        for name in WRITES.split()
    ]
    rows += [Command(name, kind, kind == INTROSPECT) for name, kind in FOLLOWED.items()]
    rows += [Command(name, OURS) for name in FAMILY]
    table: dict[bytes, Command] = {}
    for row in rows:
        assert row.name not in table, row.name
        table[row.name] = row
        table[row.name.lower()] = row
    return table


# By name, in upper and in lower case, the two spellings that save an upper().
COMMANDS: Final[dict[bytes, Command]] = _table()
