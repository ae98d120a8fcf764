"""Parsing what nodes report of their cluster, and the choice between several views."""

from __future__ import annotations

import asyncio

import pytest
from rlproxy.config.urls import Address, Upstream
from rlproxy.observability.metrics import CLUSTER, LOGIN
from rlproxy.upstream.cluster import discovery
from rlproxy.upstream.cluster.discovery import View
from rlproxy.upstream.cluster.slot_map import Shard, slot_map
from rlproxy.upstream.connector import Target

from tests import harness
from tests.unit.upstream.cluster.replies import one_node_cluster
from tests.unit.upstream.slow_server import slow_server

A, B, C = (Address("10.0.0.1", port) for port in (7001, 7002, 7003))
SHARDS = {Shard("a", A): [(0, 99)], Shard("b", B): [(100, 16383)]}
MAP = slot_map(SHARDS)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        (b"10.0.0.2", "10.0.0.2"),
        (b"node.example", "node.example"),
        (b"::1", "::1"),
        (None, "asked"),
        (b"", "asked"),
        (b"?", "asked"),
    ],
)
def test_hosts(host: bytes | None, expected: str) -> None:
    assert discovery.node_address(host, 7000, "asked") == Address(expected, 7000)


def test_slots_of_one_master_are_joined() -> None:
    reply = [
        [50, 99, [b"10.0.0.1", 7001, b"a"], [b"10.0.0.9", 7009, b"r", [b"hostname", b"x"]]],
        [100, 16383, [b"10.0.0.1", 7002, b"b", []]],
        [0, 49, [b"10.0.0.1", 7001, b"a"], [b"10.0.0.9", 7009, b"r"]],
    ]
    found = discovery.read_slots(reply, "asked")
    assert (found.shards, found.owners, found.mark()) == (MAP.shards, MAP.owners, MAP.mark())
    assert found.shards[0].replicas == (Address("10.0.0.9", 7009),)


def test_no_slots() -> None:
    assert discovery.read_slots([], "asked").shards == ()
    assert discovery.read_slots(None, "asked").owned() == 0


NODES = """\
a 10.0.0.1:7001@17001,one.x,,tls-port=0,shard-id=s myself,master - 0 0 1 connected 0-99
r 10.0.0.9:7009@17009,nine.x slave a 0 0 1 connected
b 10.0.0.1:7002@17002 master - 0 0 2 connected 100-16383
empty ::1:7003@17003,three.x master - 0 0 3 connected
doubtful 10.0.0.4:7004@17004 master,fail? - 0 0 4 connected
new 10.0.0.5:7005@17005,five.x slave b 0 0 2 connected
failed 10.0.0.6:7006@17006,six.x master,fail - 0 0 2 disconnected
replica 10.0.0.7:7007@17007 slave,fail b 0 0 2 disconnected
gone :0@0 master,fail,noaddr - 0 0 2 disconnected
joins 10.0.0.8:7008@17008 handshake - 0 0 0 connected
"""


@pytest.mark.parametrize(
    ("one", "nine", "expected"),
    [
        (b"10.0.0.1", b"10.0.0.9", ["::1", "10.0.0.4", "10.0.0.5", "10.0.0.6", "10.0.0.7"]),
        (b"one.x", b"?", ["three.x", "asked", "five.x", "six.x", "asked"]),
        (None, None, ["asked"] * 5),
    ],
)
def test_nodes_without_a_place_among_the_slots(
    one: bytes | None, nine: bytes | None, expected: list[str]
) -> None:
    slots = [
        [0, 99, [one, 7001, b"a"], [nine, 7009, b"r", []]],
        [100, 16383, [one, 7002, b"b", []]],
    ]
    states = [discovery.EMPTY, discovery.EMPTY, discovery.NEW, discovery.FAILED, discovery.FAILED]
    found = discovery.unlisted(slots, NODES, "asked")
    addresses = map(Address, expected, range(7003, 7008))
    assert found == dict(zip(addresses, states, strict=True))


def test_no_slots_and_no_address() -> None:
    line = "a :7000@17000 myself,master - 0 0 0 connected\n"
    assert discovery.unlisted([], line, "asked") == {Address("asked", 7000): discovery.EMPTY}


@pytest.mark.parametrize(
    "line",
    ["", "empty", "empty ::1:7003@17003", "empty host master - 0 0 3 up", "vars lastEpoch 0"],
)
def test_a_line_in_another_form_is_left_out(line: str) -> None:
    whole = "a 10.0.0.1:7000 myself,master - 0 0 0 connected"
    found = discovery.unlisted([], f"{line}\n{whole}\n{line}\n", "asked")
    assert found == {Address("asked", 7000): discovery.EMPTY}


async def _best(
    views: dict[Address, View], epoch: int, slow: tuple[Address, ...] = (), slots: int = 0
) -> View:
    async def query(address: Address) -> View:
        if address in slow:
            await asyncio.sleep(30)
        return views[address]

    found = await discovery.best_view(list(views), query, epoch, slots)
    assert found is not None
    return found


def test_the_first_good_view_is_taken() -> None:
    good = View(MAP, True, 5)
    assert asyncio.run(_best({A: good, B: View(MAP, True, 6)}, 5)) is good


def test_an_old_view_is_taken_only_if_there_is_no_other() -> None:
    old, good = View(MAP, True, 4), View(MAP, True, 6)
    assert asyncio.run(_best({A: old, B: good}, 5)) is good
    assert asyncio.run(_best({A: old, B: View(problem="no answer")}, 5)) is old


def test_a_view_of_another_cluster_is_taken_only_if_there_is_no_other() -> None:
    foreign, down = View(MAP, True, 9, foreign=True), View(MAP, False, 4)
    assert asyncio.run(_best({A: foreign, B: down}, 5)) is down
    assert asyncio.run(_best({A: foreign, B: View(problem="no answer")}, 5)) is foreign


def test_a_view_without_a_master_in_failover_is_taken_only_if_all_nodes_have_it() -> None:
    without, whole = View(slot_map({Shard("a", A): [(0, 99)]}), True, 6), View(MAP, True, 5)
    slots = MAP.owned()
    assert slots == 16384
    assert asyncio.run(_best({A: without, B: whole}, 5, slots=slots)) is whole
    assert asyncio.run(_best({A: without, B: without}, 5, slots=slots)) is without


def test_a_view_of_a_cluster_that_is_down() -> None:
    down = View(MAP, False, 9)
    good = View(MAP, True, 5)
    assert asyncio.run(_best({A: down, B: good}, 5)) is good
    assert asyncio.run(_best({A: down, B: View(problem="no answer")}, 5)) is down


def test_a_silent_node_is_not_waited_for() -> None:
    good = View(MAP, True, 5)
    assert asyncio.run(_best({A: View(), B: good}, 5, slow=(A,))) is good


def test_silent_nodes_are_not_waited_for_while_the_cluster_is_down() -> None:
    down, good = View(MAP, False, 9), View(MAP, True, 9)

    async def best(views: dict[Address, View], slow: Address) -> View:
        async with asyncio.timeout(5):
            return await _best(views, 5, slow=(slow,))

    for silent in (A, B):
        assert asyncio.run(best({A: down, B: down}, silent)) is down
    assert asyncio.run(best({A: View(), B: down, C: good}, A)) is good


async def test_a_server_that_is_no_node_of_a_cluster_is_a_problem(
    redis_server: harness.RedisServer,
) -> None:
    at = Address("127.0.0.1", redis_server.port)
    found = await discovery.view(at, Target(at, 5.0), Upstream(None, cluster=(at,)), "")
    assert found.kind == CLUSTER
    assert f"redis://127.0.0.1:{redis_server.port}" in found.problem


@pytest.mark.parametrize(("delay_s", "problem"), [(0.8, "COMMAND: ERR x"), (1.1, "no answer")])
async def test_the_limit_is_that_of_each_reply(
    monkeypatch: pytest.MonkeyPatch, delay_s: float, problem: str
) -> None:
    exchanges = [(b"INFO", b"*0\r\n*0\r\n$0\r\n\r\n$0\r\n\r\n"), (b"COMMAND", b"-ERR x\r\n")]
    async with slow_server(monkeypatch, delay_s, exchanges) as at:
        found = await discovery.view(at, Target(at, 60.0), Upstream(None, cluster=(at,)), "")
        assert found.problem == problem


async def test_a_user_who_may_not_run_command_is_a_problem() -> None:
    engine = harness.one_engine()
    assert engine is not None
    with one_node_cluster(engine) as node:
        with node.raw() as raw:
            raw.ask("ACL", "SETUSER", "eve", "on", ">pw", "+@all", "-command")
        at = Address("127.0.0.1", node.port)
        eve = Upstream(None, user="eve", password="pw", cluster=(at,))
        found = await discovery.view(at, Target(at, 5.0), eve, "")
        assert found.kind == LOGIN and found.problem.startswith("COMMAND: NOPERM")
        anyone = Upstream(None, cluster=(at,))
        assert (await discovery.view(at, Target(at, 5.0), anyone, "")).healthy
