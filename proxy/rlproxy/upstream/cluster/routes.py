"""The routes of commands in a cluster: where each one goes, and which arguments are its keys.

How a command is routed is reviewed by hand, in `TABLE`; a command with keys that is not there goes
by key. The positions of its keys come from the server's own COMMAND: from its key specifications
(Redis 7.0), else from `POSITIONS`, which has the commands whose keys older servers do not describe,
else from the first key, the last one and the step. Of other commands, the server's tips decide.
A test compares the keys that are found with COMMAND GETKEYS of real servers.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from rlproxy.resp.commands import BLOCKING, COMMANDS
from rlproxy.resp.encoding import error
from rlproxy.upstream.cluster import gather
from rlproxy.upstream.cluster.gather import Merge

# Bits of routes, by which the dispatcher treats several alike.
# It is sent once nothing is owed, and the next commands wait for its reply: it changes the
# connection. In RESP2, a node that subscribes runs no other command. A command that is redirected
# would enter the transaction behind it. WAIT covers the nodes that have run the writes before it.
ALONE: Final = 32
HERE: Final = 64  # no node gets it, at once or ever: Redis refuses it before a login
NOT_QUEUED: Final = 128  # by MULTI
# It is never part of a transaction: it changes the connection, is answered here, or has ids of
# clients, which the transaction's node would number itself.
NOT_INSIDE: Final = 256

# Routes by key.
BY_KEY: Final = 0  # the node of the first key; it answers CROSSSLOT for keys of several slots
SPLIT: Final = 1  # one part per slot, of keys
SPLIT_ARRAY: Final = 2  # the same, merged by gather.placed()
SPLIT_PAIRS: Final = 3  # one part per slot, of keys and values
ONE_SLOT: Final = 4  # as BY_KEY, but keys of several slots go to no node, which might take them
WATCH: Final = 5 | ALONE | NOT_QUEUED
# Routes to home, which is one master for the life of a client.
HOME: Final = 6
# See subscriptions, which sends shard channels and keyspace events elsewhere.
SUBSCRIBE: Final = 7 | ALONE | NOT_INSIDE
# Where it succeeds, the command is repeated on all connections of the client.
SETUP: Final = 8 | ALONE | NOT_INSIDE
# Routes to several nodes, whose replies Route.merge makes one.
MASTERS: Final = 9
ALL_MASTERS: Final = 10  # those without slots, too
ALL_NODES: Final = 11  # a failed one is an error
ALL_UP: Final = 12  # all nodes that have not failed
WAIT: Final = 13 | ALONE  # the nodes that this client has written to
INFO: Final = 14
SCAN: Final = 15
MONITOR: Final = 16 | ALONE
# Commands with ids of clients in their arguments or reply: home, or all masters. Each node counts
# its own clients.
CLIENT_IDS: Final = 17 | NOT_INSIDE
# What a client does with its connection.
CLIENT_REPLY: Final = 18 | HERE | NOT_INSIDE
CLIENT_CACHING: Final = 19 | HERE
RESET: Final = 20 | ALONE | NOT_QUEUED
QUIT: Final = 21 | NOT_QUEUED
MULTI: Final = 22 | ALONE | HERE | NOT_QUEUED
EXEC: Final = 23 | NOT_QUEUED
DISCARD: Final = 24 | NOT_QUEUED
UNWATCH: Final = 25
# Answered by the proxy.
CLUSTER: Final = 26 | HERE | NOT_INSIDE
OK: Final = 27 | HERE | NOT_INSIDE
REFUSED: Final = 28 | HERE | NOT_INSIDE  # see unavailable()

# The commands that are refused, and why.
REASONS: Final[dict[bytes, str]] = {
    b"CLIENT|MAINT_NOTIFICATIONS": "the notifications would name the nodes behind it",
    b"MIGRATE": "the keys of a cluster move with their slot",
    **dict.fromkeys(
        (b"PSYNC", b"REPLCONF", b"SYNC"), "one node would send its part of the data only"
    ),
    b"SCRIPT|DEBUG": "debug the script on the node that has its keys",
    b"SHUTDOWN": "it would stop one node only; stop the nodes themselves",
}

# Each keyless command, and each command that is not BY_KEY. A subcommand follows its command and a
# bar; the row of the command itself serves subcommands that are in no table.
TABLE: Final[tuple[tuple[int, bytes], ...]] = (
    (ONE_SLOT, b"MSETEX"),  # Valkey 9.1 looks at no slot
    (SPLIT_ARRAY, b"MGET"),
    (WATCH, b"WATCH"),
    # One node's answer is as good as another's, or there is nothing to join in several.
    (
        HOME,
        b"""
        ACL ACL|CAT ACL|DRYRUN ACL|GENPASS ACL|GETUSER ACL|HELP ACL|LIST ACL|USERS ACL|WHOAMI CLIENT
        CLIENT|GETNAME CLIENT|GETREDIR CLIENT|HELP CLIENT|TRACKINGINFO COMMAND COMMAND|COUNT
        COMMAND|DOCS COMMAND|GETKEYS COMMAND|GETKEYSANDFLAGS COMMAND|HELP COMMAND|INFO COMMAND|LIST
        COMMANDLOG COMMANDLOG|GET COMMANDLOG|HELP CONFIG CONFIG|GET CONFIG|HELP ECHO FUNCTION
        FUNCTION|DUMP FUNCTION|HELP FUNCTION|LIST FUNCTION|STATS LASTSAVE LATENCY LATENCY|DOCTOR
        LATENCY|GRAPH LATENCY|HELP LATENCY|HISTOGRAM LATENCY|HISTORY LATENCY|LATEST LOLWUT MEMORY
        MEMORY|DOCTOR MEMORY|HELP MEMORY|MALLOC-STATS MEMORY|STATS MODULE MODULE|HELP MODULE|LIST
        OBJECT OBJECT|HELP PFSELFTEST PING PUBLISH PUBSUB PUBSUB|HELP ROLE SCRIPT SCRIPT|HELP
        SCRIPT|SHOW SLOWLOG SLOWLOG|GET SLOWLOG|HELP TIME XGROUP XGROUP|HELP XINFO XINFO|HELP
        """,
    ),
    # A node of a cluster answers these with an error, the same one as without the proxy.
    (HOME, b"FAILOVER REPLICAOF SLAVEOF SWAPDB"),
    (HOME, b"POST HOST:"),  # web browsers: the node closes the connection
    (HOME, b"DEBUG"),  # except subcommands with a key, in POSITIONS, and those of all masters
    (SUBSCRIBE, b"PSUBSCRIBE PUNSUBSCRIBE SSUBSCRIBE SUBSCRIBE SUNSUBSCRIBE UNSUBSCRIBE"),
    (
        SETUP,
        b"""
        AUTH CLIENT|CAPA CLIENT|IMPORT-SOURCE CLIENT|NO-EVICT CLIENT|NO-TOUCH CLIENT|SETINFO
        CLIENT|SETNAME CLIENT|TRACKING HELLO SELECT
        """,
    ),
    (INFO, b"INFO"),
    (SCAN, b"SCAN"),
    (MONITOR, b"MONITOR"),
    (CLIENT_IDS, b"CLIENT|ID CLIENT|INFO CLIENT|KILL CLIENT|LIST CLIENT|UNBLOCK"),
    (CLIENT_REPLY, b"CLIENT|REPLY"),
    (CLIENT_CACHING, b"CLIENT|CACHING"),
    (RESET, b"RESET"),
    (QUIT, b"QUIT"),
    (MULTI, b"MULTI"),
    (EXEC, b"EXEC"),
    (DISCARD, b"DISCARD"),
    (UNWATCH, b"UNWATCH"),
    (CLUSTER, b"CLUSTER"),  # with all its subcommands
    (OK, b"ASKING READONLY READWRITE"),
    (REFUSED, b" ".join(REASONS)),
)

# The same for commands with replies of several nodes, and what makes one reply of them.
MERGED: Final[tuple[tuple[int, Merge, bytes], ...]] = (
    (SPLIT, gather.summed, b"DEL EXISTS TOUCH UNLINK"),
    (SPLIT_PAIRS, gather.first, b"MSET"),
    # Subscribers of other clients are on other homes.
    (MASTERS, gather.summed, b"COMMANDLOG|LEN DBSIZE LATENCY|RESET PUBSUB|NUMPAT SLOWLOG|LEN"),
    (MASTERS, gather.concatenated, b"KEYS PUBSUB|SHARDCHANNELS"),
    (MASTERS, gather.union, b"PUBSUB|CHANNELS"),
    (MASTERS, gather.pairs, b"PUBSUB|NUMSUB PUBSUB|SHARDNUMSUB"),
    (MASTERS, gather.least, b"SCRIPT|EXISTS"),
    (MASTERS, gather.one_succeeded, b"FUNCTION|KILL SCRIPT|KILL"),
    (MASTERS, gather.one_not_nil, b"RANDOMKEY"),
    (
        ALL_MASTERS,
        gather.first,
        b"""
        BGREWRITEAOF BGSAVE CLIENT|PAUSE CLIENT|UNPAUSE COMMANDLOG|RESET DEBUG|JMAP DEBUG|LOADAOF
        DEBUG|QUICKLIST-PACKED-THRESHOLD DEBUG|RELOAD DEBUG|SET-ACTIVE-EXPIRE DEBUG|SLEEP FLUSHALL
        FLUSHDB FUNCTION|DELETE FUNCTION|FLUSH FUNCTION|LOAD FUNCTION|RESTORE MEMORY|PURGE SAVE
        SCRIPT|FLUSH SCRIPT|LOAD SLOWLOG|RESET
        """,
    ),
    # Settings and users, and below the log of their errors, which are not replicated.
    (
        ALL_NODES,
        gather.first,
        b"""
        ACL|DELUSER ACL|LOAD ACL|SAVE ACL|SETUSER CONFIG|RESETSTAT CONFIG|REWRITE CONFIG|SET
        MODULE|LOAD MODULE|LOADEX MODULE|UNLOAD
        """,
    ),
    (ALL_UP, gather.first, b"ACL|LOG"),
    (WAIT, gather.least, b"WAIT WAITAOF"),
)

# Reviewed commands whose errors the client may choose.
_ECHOES: Final = frozenset(b"DEBUG EVAL EVAL_RO EVALSHA EVALSHA_RO FCALL FCALL_RO".split())

KEYED: Final = (BY_KEY, SPLIT, SPLIT_ARRAY, SPLIT_PAIRS, ONE_SLOT, WATCH)

# Commands of which only the first key is looked at: the node checks the others' slots.
_FIRST_ONLY: Final = frozenset(b"GEORADIUS GEORADIUSBYMEMBER SORT SORT_RO".split())

# The routes that the tips of a command mean, if it is in no table and has no keys.
_BY_TIP: Final[dict[bytes, tuple[int, Merge]]] = {
    b"": (MASTERS, gather.concatenated),
    b"response_policy:agg_sum": (MASTERS, gather.summed),
    b"response_policy:agg_logical_and": (MASTERS, gather.least),
    b"response_policy:all_succeeded": (ALL_MASTERS, gather.first),
    b"response_policy:one_succeeded": (MASTERS, gather.one_succeeded),
}
_ON_ALL: Final = (b"request_policy:all_nodes", b"request_policy:all_shards")
# Errors of parsing what a server describes in another form than Redis. It is left out.
_OTHER_FORM: Final = (AttributeError, LookupError, TypeError, ValueError)
_MAX_COUNT_DIGITS: Final = 9  # digits of a number of keys


@dataclass(frozen=True)
class Spec:
    """Where some keys of a command stand. All indexes are among the arguments behind its name.

    begin: the index that the search begins at.
    keyword: if not empty, the search begins behind this word (upper case), looked for from `begin`.
    count_at: offset of the number of keys behind the beginning; -1: no such number.
    first: offset of the first key behind the beginning.
    last: offset of the last key behind the beginning; if negative, counted from the end.
    step: arguments from one key to the next one.
    limit: with a negative `last`, keys end at the limit-th part of the arguments; 0, 1: no limit.
    """

    begin: int
    last: int = 0
    step: int = 1
    limit: int = 0
    keyword: bytes = b""
    count_at: int = -1
    first: int = 0

    def find(self, args: list[bytes], found: list[int]) -> bool:
        """Append the indexes of keys to `found`; return False if the command is malformed."""
        size = len(args)
        begin = self.begin
        if self.keyword:
            begin = self._behind_keyword(args)
            if begin < 0:
                return True
        step = self.step
        if self.count_at >= 0:
            count = _count(args[begin + self.count_at]) if begin + self.count_at < size else -1
            if count <= 0:
                return count == 0
            begin += self.first
            end = begin + (count - 1) * step
        elif self.last >= 0:
            end = begin + self.last
        elif self.limit > 1:
            end = begin + (size - begin) // self.limit + self.last
        else:
            end = size + self.last
        if end < begin or end >= size:
            return False
        while begin <= end:
            found.append(begin)
            begin += step
        return True

    def _behind_keyword(self, args: list[bytes]) -> int:
        """Return the index behind the keyword; -1 if it is absent."""
        for at in range(self.begin, len(args)):
            if args[at].upper() == self.keyword:
                return at + 1
        return -1


def _count(word: bytes) -> int:
    """Return the number of keys in `word`; -1 if it is no number."""
    return int(word) if len(word) <= _MAX_COUNT_DIGITS and word.isdigit() else -1


_SECOND: Final = (Spec(1),)
_COUNT_FIRST: Final = (Spec(0, count_at=0, first=1),)
_COUNT_SECOND: Final = (Spec(1, count_at=0, first=1),)

# The keys of commands that some servers do not describe. Where a server does, that counts.
POSITIONS: Final[tuple[tuple[tuple[Spec, ...], bytes], ...]] = (
    ((Spec(0),), b"CLUSTERSCAN"),
    (
        _SECOND,
        b"""
        DEBUG|DIGEST-VALUE DEBUG|HTSTATS-KEY DEBUG|LISTPACK DEBUG|OBJECT DEBUG|QUICKLIST
        DEBUG|SDSLEN DEBUG|ZIPLIST MEMORY|USAGE OBJECT|ENCODING OBJECT|FREQ OBJECT|IDLETIME
        OBJECT|REFCOUNT PFDEBUG XGROUP|CREATE XGROUP|CREATECONSUMER XGROUP|DELCONSUMER
        XGROUP|DESTROY XGROUP|SETID XINFO|CONSUMERS XINFO|GROUPS XINFO|STREAM
        """,
    ),
    (_COUNT_FIRST, b"ZDIFF ZINTER ZUNION"),
    (_COUNT_SECOND, b"EVAL EVALSHA"),
    ((Spec(0), *_COUNT_SECOND), b"ZDIFFSTORE ZINTERSTORE ZUNIONSTORE"),
    ((Spec(0, -1, 1, 2, b"STREAMS"),), b"XREAD"),
    ((Spec(3, -1, 1, 2, b"STREAMS"),), b"XREADGROUP"),
    ((Spec(0, 1, keyword=b"KEYS"),), b"STRALGO"),
)


class Route:
    """Where a command goes, and which of its arguments are keys.

    how: BY_KEY, SPLIT, HOME ...
    name: upper case; a blank and the subcommand follow where the route depends on it.
    specs: where its keys stand; empty if it has none, or their places are unknown.
    merge: makes one reply of those of several nodes, home's first.
    blocks: it may block.
    forgeable: its errors may be those of a script of the client, or of a module.
    below: routes by subcommand.
    arity: the number of words; if negative, the least one; 0: unknown.
    aborts: inside MULTI, the server refuses it whatever its keys are, and EXEC is aborted.
    """

    def __init__(self, row: bytes, how: int, merge: Merge = gather.first) -> None:
        """`row`: name in upper case, with a bar before a subcommand."""
        self.how = how
        self.merge = merge
        self.name: bytes = row.replace(b"|", b" ")
        self.blocks = row in BLOCKING
        command = row.partition(b"|")[0]
        self.forgeable = command not in COMMANDS or command in _ECHOES
        self.below: dict[bytes, Route] = {}
        self.arity: int = 0
        self.aborts = False
        self.specs: tuple[Spec, ...] = ()

    def keys(self, args: list[bytes]) -> list[int]:
        """Return the indexes of all keys in `args`, the arguments behind the name.

        Empty if there is none, or if the command is malformed: any node answers with the error.
        With several specifications, those before a malformed one count: `PFMERGE key` has no
        further key, and is no error.
        """
        found: list[int] = []
        for spec in self.specs:
            if not spec.find(args, found):
                break
        return found


class Routes:
    """The routes of one version of a server.

    commands: the parsed reply to COMMAND in RESP2: lists of bytes and integers. Empty: the routes
    are those of the tables.
    """

    def __init__(self, commands: list[Any]) -> None:
        self._routes: dict[bytes, Route] = {}
        rows = _reviewed()
        for entry in commands:
            with suppress(*_OTHER_FORM):
                _learn(entry, rows)
        # A command comes before its subcommands.
        for row in sorted(rows):
            command, bar, subcommand = row.partition(b"|")
            if not bar:
                self._routes[row] = rows[row]
            elif command in self._routes:
                self._routes[command].below[subcommand] = rows[row]

    def of(self, name: bytes, args: list[bytes]) -> Route:
        """Return the route of the command `name` with `args`, in any case.

        A command that neither the tables nor the server have goes HOME.
        """
        word = name.upper()
        route = self._routes.get(word)
        if route is None:
            return Route(word, HOME)
        if route.below and args:
            # Redis 6.2 compares subcommands as C strings, so a NUL ends them.
            return route.below.get(args[0].partition(b"\0")[0].upper(), route)
        return route


def unavailable(route: Route) -> bytes:
    """Return the error for a command whose route is REFUSED."""
    reason = REASONS[route.name.replace(b" ", b"|")]
    return error(f"ERR {route.name.decode()} is not available through rlproxy: {reason}")


def _reviewed() -> dict[bytes, Route]:
    """Return the routes of the tables, by row: `NAME` or `NAME|SUBCOMMAND`."""
    table = [*MERGED, *((how, gather.first, names) for how, names in TABLE)]
    hows = {row: (how, merge) for how, merge, names in table for row in names.split()}
    specs = {row: found for found, names in POSITIONS for row in names.split()}
    found = {row: Route(row, *hows.get(row, (BY_KEY, gather.first))) for row in {**hows, **specs}}
    for row, positions in specs.items():
        found[row].specs = positions
    return found


def _learn(entry: Any, rows: dict[bytes, Route]) -> None:
    """Take the keys of one command of the server, and of its subcommands, into `rows`.

    entry: of Redis 6.2 without tips, key specifications and subcommands.
    """
    row = entry[0].upper()
    known = rows.get(row)
    if known is not None and known.how == CLUSTER:
        return
    if known is None or known.how in KEYED:
        specs = _specs(entry[8]) if len(entry) > 8 else []
        if not specs and (known is None or not known.specs):
            specs = _first_to_last(entry)
        if row in _FIRST_ONLY:
            specs = specs[:1]
        if specs:
            rows.setdefault(row, Route(row, BY_KEY)).specs = tuple(specs)
        elif known is None:
            rows[row] = Route(row, *_by_tips(entry))
    rows[row].arity, rows[row].aborts = entry[1], b"no_multi" in entry[2]
    for below in entry[9] if len(entry) > 9 else []:
        _learn(below, rows)


def _first_to_last(entry: list[Any]) -> list[Spec]:
    """Return the keys by the first one, the last one and the step; nothing if they vary."""
    first, last, step = entry[3:6]
    if first <= 0:
        return []
    return [Spec(first - 1, last - first if last >= 0 else last, max(step, 1))]


def _by_tips(entry: list[Any]) -> tuple[int, Merge]:
    """Return the route and the merge of a command in no table, without keys that are known.

    It goes home, unless its tips name all nodes. Home redirects a command whose key it finds.
    """
    tips = entry[7] if len(entry) > 7 else []
    if not any(tip in _ON_ALL for tip in tips):
        return HOME, gather.first
    policies = [tip for tip in tips if tip.startswith(b"response_policy:")]
    return _BY_TIP.get(policies[0] if policies else b"", (HOME, gather.first))


def _specs(found: list[Any]) -> list[Spec]:
    """Return the usable ones of a command's key specifications."""
    specs: list[Spec] = []
    for each in found:
        with suppress(*_OTHER_FORM):
            specs.append(_spec(_fields(each)))
    # One that counts from the end is left out: no command has it except MIGRATE, which is refused.
    return [spec for spec in specs if spec.begin >= 0]


def _spec(fields: dict[bytes, Any]) -> Spec:
    """Return one key specification. Raises one of _OTHER_FORM if it does not give their places."""
    begin = _fields(_fields(fields[b"begin_search"])[b"spec"])
    keys = _fields(_fields(fields[b"find_keys"])[b"spec"])
    keyword = begin.get(b"keyword", b"").upper()
    if keyword:
        start = begin[b"startfrom"]
        start -= start > 0
    else:
        start = begin[b"index"] - 1
    step = max(keys.get(b"keystep", 0), 1)
    if b"lastkey" in keys:
        return Spec(start, keys[b"lastkey"], step, keys[b"limit"], keyword)
    return Spec(start, 0, step, 0, keyword, keys[b"keynumidx"], keys[b"firstkey"])


def _fields(found: list[Any]) -> dict[bytes, Any]:
    """Return a map of the server: a list of names and values in turn."""
    return dict(zip(found[::2], found[1::2], strict=True))
