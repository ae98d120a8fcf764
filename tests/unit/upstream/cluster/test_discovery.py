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


def test_views_of_one_cluster_have_a_node_in_common() -> None:
    a, b, c = (Address("10.0.0.1", port) for port in (7001, 7002, 7003))
    present = View(slot_map({Shard("a", a): [(0, 16383)]}), replicas=[b]).nodes()
    for number, address, common in (
        ("a", c, True),  # it has another address
        ("b", b, True),  # the replica was promoted
        ("c", c, False),
    ):
        found = View(slot_map({Shard(number, address): [(0, 16383)]})).nodes()
        assert present.isdisjoint(found) != common


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


GOOD, OLD, DOWN = View(MAP, True, 5), View(MAP, True, 4), View(MAP, False, 9)
FOREIGN, NONE = View(MAP, True, 9, foreign=True), View(problem="no answer")
WITHOUT = View(slot_map({Shard("a", A): [(0, 99)]}), True, 6)  # a master, which is in failover


@pytest.mark.parametrize(
    ("first", "second", "taken"),
    [
        (GOOD, View(MAP, True, 6), GOOD),
        # These are taken only if there is no other.
        (OLD, GOOD, GOOD),
        (OLD, NONE, OLD),
        (FOREIGN, DOWN, DOWN),
        (FOREIGN, NONE, FOREIGN),
        (DOWN, GOOD, GOOD),
        (DOWN, NONE, DOWN),
        (WITHOUT, GOOD, GOOD),
        (WITHOUT, WITHOUT, WITHOUT),
    ],
)
async def test_the_best_of_two_views_is_taken(first: View, second: View, taken: View) -> None:
    assert await _best({A: first, B: second}, 5, slots=MAP.owned()) is taken


async def test_silent_nodes_are_not_waited_for() -> None:
    async with asyncio.timeout(5):
        assert await _best({A: View(), B: GOOD}, 5, slow=(A,)) is GOOD
        for silent in (A, B):
            assert await _best({A: DOWN, B: DOWN}, 5, slow=(silent,)) is DOWN
        assert await _best({A: View(), B: DOWN, C: GOOD}, 5, slow=(A,)) is GOOD


async def test_a_server_that_is_no_node_of_a_cluster_is_a_problem(
    redis_server: harness.RedisServer,
) -> None:
    at = Address("127.0.0.1", redis_server.port)
    found = await discovery.view(Target(at, 5.0), Upstream(None, cluster=(at,)), "")
    assert found.kind == CLUSTER
    assert f"redis://127.0.0.1:{redis_server.port}" in found.problem


@pytest.mark.parametrize(("delay_s", "problem"), [(0.8, "COMMAND: ERR x"), (1.1, "no answer")])
async def test_the_limit_is_that_of_each_reply(
    monkeypatch: pytest.MonkeyPatch, delay_s: float, problem: str
) -> None:
    exchanges = [(b"INFO", b"*0\r\n*0\r\n$0\r\n\r\n$0\r\n\r\n"), (b"COMMAND", b"-ERR x\r\n")]
    async with slow_server(monkeypatch, delay_s, exchanges) as at:
        found = await discovery.view(Target(at, 60.0), Upstream(None, cluster=(at,)), "")
        assert found.problem == problem


async def test_a_user_who_may_not_run_command_is_a_problem() -> None:
    engine = harness.one_engine()
    assert engine is not None
    with one_node_cluster(engine) as node:
        with node.raw() as raw:
            raw.ask("ACL", "SETUSER", "eve", "on", ">pw", "+@all", "-command")
        at = Address("127.0.0.1", node.port)
        eve = Upstream(None, user="eve", password="pw", cluster=(at,))
        found = await discovery.view(Target(at, 5.0), eve, "")
        assert found.kind == LOGIN and found.problem.startswith("COMMAND: NOPERM")
        anyone = Upstream(None, cluster=(at,))
        assert (await discovery.view(Target(at, 5.0), anyone, "")).healthy
