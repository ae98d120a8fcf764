"""routes: the keys that are found equal COMMAND GETKEYS, and every command is in the tables."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rlproxy.resp import commands as c
from rlproxy.upstream.cluster import gather
from rlproxy.upstream.cluster import routes as r
from rlproxy.upstream.cluster.routes import Route, Routes

from tests.harness import ON_EVERY_ENGINE, RedisServer, command


def keyed(name: str, first: int = 1, last: int = 1, step: int = 1) -> object:
    """The entry of COMMAND for a command with keys."""
    return [name.encode(), -2, [], first, last, step]


KEYED = [*map(keyed, ("get", "set", "sort", "zadd", "spublish")), keyed("rename", 1, 2)]
KEYED += [keyed("del", 1, -1), keyed("mget", 1, -1), keyed("mset", 1, -1, 2)]
KEYED += [keyed("msetnx", 1, -1, 2), keyed("blpop", 1, -2), keyed("bzmpop", 0)]
# The routes of an old server with few commands.
OLD = Routes(KEYED)


def replies(port: int, *lines: str) -> list[object]:
    """The parsed replies of a server to commands, each a line of words."""
    reader = hiredis.Reader()
    found: list[object] = []
    with socket.create_connection(("127.0.0.1", port), 20) as sock:
        sock.sendall(b"".join([command(*line.split(" ")) for line in lines]))
        while len(found) < len(lines):
            reader.feed(sock.recv(1 << 20))
            while (reply := reader.gets()) is not False:
                found.append(reply)
    return found


@pytest.fixture(scope="module")
def commands(module_server: RedisServer) -> list[object]:
    """The reply to COMMAND."""
    (reply,) = replies(module_server.port, "COMMAND")
    assert isinstance(reply, list)
    return reply


@pytest.fixture(scope="module")
def served(commands: list[object]) -> Routes:
    return Routes(commands)


def found(routes: Routes, line: str) -> tuple[Route, list[bytes]]:
    name, *args = line.encode().split(b" ")
    route = routes.of(name, args)
    return route, [args[index] for index in route.keys(args)]


LINES = """
GET k
SET k v EX 10
MSET a 1 b 2 c 3
MSETNX a 1 b 2
MSETEX 2 a 1 b 2 EX 10
MGET a b c
DEL a
DEL a b c
EXISTS a a b
EVAL s 1 k
EVAL s 2 k1 k2 a b
EVALSHA 0123456789012345678901234567890123456789 3 a b c d
FCALL f 2 a b c
BITOP AND d a b
BLMOVE a b LEFT RIGHT 0
BLPOP a b c 0
BLMPOP 0 2 a b LEFT COUNT 3
BZMPOP 0 1 a MIN
COPY a b DB 0 REPLACE
GEORADIUS k 1 1 1 km
GEORADIUSBYMEMBER k m 1 km
LMPOP 2 a b LEFT
MEMORY USAGE k SAMPLES 0
OBJECT ENCODING k
OBJECT FREQ k
OBJECT IDLETIME k
OBJECT REFCOUNT k
PFMERGE d a b
RENAME a b
SINTERCARD 2 a b LIMIT 1
SORT k
SORT k BY w_* GET o_*
SUNION a b c
SUNIONSTORE d a b c
WATCH a b
XGROUP CREATE k g 0
XGROUP CREATECONSUMER k g c
XGROUP DELCONSUMER k g c
XGROUP DESTROY k g
XGROUP SETID k g 0
XINFO STREAM k FULL
XINFO GROUPS k
XINFO CONSUMERS k g
XREAD COUNT 1 STREAMS a 0
XREAD BLOCK 0 STREAMS a b 0 0
XREAD STREAMS streams b 0 0
XREADGROUP GROUP g c STREAMS a b > >
XREADGROUP GROUP streams c COUNT 2 NOACK STREAMS a >
XREADGROUP GROUP g streams BLOCK 5 STREAMS a >
ZDIFF 2 a b WITHSCORES
ZDIFFSTORE d 2 a b
ZINTER 2 a b WEIGHTS 1 2
ZINTERCARD 2 a b LIMIT 0
ZINTERSTORE d 2 a b AGGREGATE MAX
ZMPOP 1 a MIN COUNT 2
ZUNION 3 a b c
ZUNIONSTORE d 3 a b c WEIGHTS 1 2 3
STRALGO LCS KEYS a b
PING
EVAL s 0
EVAL s 0 a b
EVALSHA 0123456789012345678901234567890123456789 0 a
FCALL f 0
DBSIZE
SCRIPT EXISTS a b
OBJECT HELP
XINFO HELP
XREAD COUNT 1
XREAD BLOCK 1 STREAMS
ZUNION 3 a b
LMPOP x a LEFT
EVAL s -1 a
EVAL s 5 a
""".strip().splitlines()


@ON_EVERY_ENGINE
def test_the_keys_are_those_of_getkeys(
    module_server: RedisServer, commands: list[object], served: Routes
) -> None:
    names = {row[0].decode().upper() for row in commands if isinstance(row, list)}
    lines = [line for line in LINES if line.split()[0] in names]
    assert len(lines) > 40
    answers = replies(module_server.port, *[f"COMMAND GETKEYS {line}" for line in lines])
    wrong = {}
    for line, answer in zip(lines, answers, strict=True):
        keys = found(served, line)[1]
        expected = answer if isinstance(answer, list) else []
        if module_server.version < (7,):  # it puts the destination last
            keys, expected = sorted(keys), sorted(expected)
        if keys != expected:
            wrong[line] = (keys, answer)
    assert wrong == {}


def test_a_missing_later_key_leaves_the_first(served: Routes) -> None:
    """GETKEYS calls these malformed; PFMERGE creates the key, so it must go to its node."""
    assert found(served, "PFMERGE d")[1] == [b"d"]
    assert found(served, "ZUNIONSTORE d x a")[1] == [b"d"]
    assert found(served, "MSET a 1 b")[1] == [b"a", b"b"]


# Of these commands only the first key decides.
FIRST_ONLY = """
GEORADIUS k 1 1 1 km STORE d
GEORADIUSBYMEMBER k m 1 km STOREDIST d
SORT k BY w_* STORE d
""".strip().splitlines()


@pytest.mark.parametrize("line", FIRST_ONLY)
def test_a_store_key_is_left_to_the_node(served: Routes, line: str) -> None:
    assert found(served, line)[1] == [b"k"]


def leaves(rows: list[object]) -> Iterator[str]:
    """The names of all commands, `NAME` or `NAME|SUBCOMMAND`."""
    for row in rows:
        assert isinstance(row, list)
        below = row[9] if len(row) > 9 else []
        yield from leaves(below)
        if not below:
            yield row[0].decode().upper()


def routed() -> list[str]:
    rows = [names for _, names in r.TABLE] + [names for _, _, names in r.MERGED]
    return b" ".join(rows).decode().split()


def placed() -> list[str]:
    return b" ".join([names for _, names in r.POSITIONS]).decode().split()


def reviewed() -> set[str]:
    return {*routed(), *placed()}


def test_every_command_without_keys_is_in_the_tables(
    commands: list[object], served: Routes
) -> None:
    """And no route by key lacks positions."""
    for leaf in leaves(commands):
        name, _, sub = leaf.encode().partition(b"|")
        route = served.of(name, [sub] if sub else [])
        assert (route.how in r.KEYED) == bool(route.specs), leaf
        if not leaf.startswith("CLUSTER|"):
            assert route.name.replace(b" ", b"|") == leaf.encode()
            assert route.specs or leaf in reviewed()


def test_the_keys_of_shared_commands(commands: list[object], served: Routes) -> None:
    known = {leaf.encode().partition(b"|")[0] for leaf in leaves(commands)}
    for name, row in c.COMMANDS.items():
        if row.shared != c.PRIVATE and name in known:
            args = [b"x"] * 6
            last = row.last_key if row.last_key >= 0 else len(args)
            assert list(range(0, last, row.key_step)) == served.of(name, args).keys(args), name


def test_no_row_is_in_two_routes() -> None:
    for names in (routed(), placed()):
        assert sorted(names) == sorted(set(names))
        assert all(name == name.upper() for name in names)


def test_each_row_below_a_command_has_a_route() -> None:
    for name in reviewed():
        command_name, bar, sub = name.encode().partition(b"|")
        if bar:
            assert OLD.of(command_name, [sub]).name == name.encode().replace(b"|", b" ")


@pytest.mark.parametrize(
    ("line", "how"),
    [
        ("get k", r.BY_KEY),
        ("Get k", r.BY_KEY),
        ("del a b", r.SPLIT),
        ("mget a b", r.SPLIT_ARRAY),
        ("mset a 1", r.SPLIT_PAIRS),
        ("msetnx a 1", r.BY_KEY),
        ("ping", r.HOME),
        ("config get *", r.HOME),
        ("config set a b", r.ALL_NODES),
        ("CONFIG Resetstat", r.ALL_NODES),
        ("acl log reset", r.ALL_UP),
        ("config foo", r.HOME),
        ("config", r.HOME),
        ("client kill 127.0.0.1:5", r.CLIENT_IDS),
        ("client list", r.CLIENT_IDS),
        ("client setname x", r.SETUP),
        ("client foo", r.HOME),
        ("cluster slots", r.CLUSTER),
        ("cluster foo", r.CLUSTER),
        ("object help", r.HOME),
        ("object encoding k", r.BY_KEY),
        ("debug object k", r.BY_KEY),
        ("debug reload", r.ALL_MASTERS),
        ("debug jmap2", r.HOME),
        ("cluster slotstates", r.CLUSTER),
        ("script debug\0 yes", r.REFUSED),
        ("shutdown nosave", r.REFUSED),
        ("spublish c m", r.BY_KEY),
        ("json.foo k", r.HOME),
        ("", r.HOME),
    ],
)
def test_route(line: str, how: int) -> None:
    assert found(OLD, line)[0].how == how


def test_a_refusal_has_its_reason() -> None:
    route = OLD.of(b"migrate", [b"h", b"1", b"k", b"0", b"5"])
    assert r.unavailable(route).startswith(b"-ERR MIGRATE is not available through rlproxy: the")
    route = OLD.of(b"script", [b"debug", b"yes"])
    assert r.unavailable(route).startswith(b"-ERR SCRIPT DEBUG is not available through rlproxy")


def row(name: str, flags: list[bytes], first: int, last: int, step: int, *more: object) -> object:
    return [name.encode(), -1, flags, first, last, step, *more]


def tipped(*tips: bytes) -> object:
    return row("m.tip", [], 0, 0, 0, [], list(tips), [], [])


def test_commands_of_modules() -> None:
    routes = Routes(
        [
            row("json.get", [b"readonly"], 1, 1, 1),
            row("json.mget", [b"readonly"], 1, -2, 1),
            row("m.two", [], 2, 3, 1),
            row("m.movable", [b"movablekeys"], 0, 0, 0),
            row("m.none", [], 0, 0, 0),
            b"no row",
            [b"short"],
            row("get", [], 1, 1, 1, [], [], [[b"a specification", b"in another form"]], []),
        ]
    )
    assert found(routes, "GET k")[1] == [b"k"]
    assert found(routes, "JSON.GET k $")[1] == [b"k"]
    assert found(routes, "json.mget a b $")[1] == [b"a", b"b"]
    assert found(routes, "m.two x a b c")[1] == [b"a", b"b"]
    assert found(routes, "m.movable x")[0].how == r.HOME
    assert found(routes, "m.none x")[0].how == r.HOME


@pytest.mark.parametrize(
    ("tips", "how", "merge"),
    [
        ([], r.HOME, gather.first),
        ([b"request_policy:all_shards"], r.MASTERS, gather.concatenated),
        ([b"request_policy:all_nodes", b"response_policy:agg_sum"], r.MASTERS, gather.summed),
        ([b"request_policy:all_shards", b"response_policy:agg_min"], r.HOME, gather.first),
        ([b"request_policy:multi_shard", b"response_policy:agg_sum"], r.HOME, gather.first),
        ([b"nondeterministic_output"], r.HOME, gather.first),
    ],
)
def test_tips_serve_unknown_commands(tips: list[bytes], how: int, merge: gather.Merge) -> None:
    route = Routes([tipped(*tips)]).of(b"M.TIP", [])
    assert (route.how, route.merge) == (how, merge)


@given(st.sampled_from(LINES), st.lists(st.binary(max_size=9), max_size=6), st.data())
def test_no_arguments_break_it(
    served: Routes, line: str, more: list[bytes], data: st.DataObject
) -> None:
    name, *args = line.encode().split(b" ")
    args = data.draw(st.permutations([*args, *more]))[: data.draw(st.integers(0, 9))]
    route = served.of(name, args)
    keys = route.keys(args)
    assert all(0 <= index < len(args) for index in keys)
