"""redirects: what MOVED and ASK name, and the rest of a timeout."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rlproxy.config.urls import Address
from rlproxy.resp.commands import BLOCKING
from rlproxy.resp.key_slot import NO_SLOT
from rlproxy.upstream.cluster.discovery import EMPTY
from rlproxy.upstream.cluster.link import Link, LinkOwner
from rlproxy.upstream.cluster.links import Links
from rlproxy.upstream.cluster.redirects import (
    MAX_UNKNOWN,
    TIMEOUTS,
    Redirects,
    is_redirect,
    redirect,
    timeout_at,
    with_remaining_timeout,
)
from rlproxy.upstream.cluster.request import Request
from rlproxy.upstream.cluster.routes import BY_KEY, HOME, Route
from rlproxy.upstream.cluster.slot_map import Shard, slot_map

from tests.harness import command

ASKED, TWO, THREE, FOUR = (Address(f"10.0.0.{at}", 7000) for at in (1, 2, 3, 4))


@pytest.mark.parametrize(
    ("frame", "slot", "address"),
    [
        (b"-MOVED 3999 127.0.0.1:6381\r\n", 3999, Address("127.0.0.1", 6381)),
        (b"-ASK 0 node.example:6381\r\n", 0, Address("node.example", 6381)),
        (b"-MOVED 8579 :19202\r\n", 8579, Address("10.0.0.1", 19202)),
        (b"-MOVED 8579 ?:19202\r\n", 8579, Address("10.0.0.1", 19202)),
        (b"-MOVED 1 nowhere\r\n", NO_SLOT, None),
        (b"-MOVED x 127.0.0.1:6381\r\n", NO_SLOT, None),
        (b"-MOVED\r\n", NO_SLOT, None),
        (b"-TRYAGAIN Multiple keys request during rehashing of slot\r\n", NO_SLOT, None),
    ],
)
def test_redirect(frame: bytes, slot: int, address: Address | None) -> None:
    assert redirect(frame, ASKED) == (slot, address)
    assert is_redirect(frame) == (frame != b"-MOVED\r\n")


@pytest.mark.parametrize(
    "frame", [b"-ERR x\r\n", b"-CLUSTERDOWN x\r\n", b"-UNBLOCKED client unblocked\r\n", b"+OK\r\n"]
)
def test_other_replies_are_no_redirects(frame: bytes) -> None:
    assert not is_redirect(frame)


@pytest.mark.parametrize(
    ("frame", "refreshes"),
    [
        (b"-CLUSTERDOWN The cluster is down\r\n", True),
        (b"-READONLY You can't write against a read only replica.\r\n", True),
        (b"-ERR unknown command\r\n", False),
    ],
)
def test_errors_of_a_former_master_refresh_the_map(frame: bytes, refreshes: bool) -> None:
    refreshed: list[bool] = []
    cluster: Any = SimpleNamespace(refresh=lambda: refreshed.append(True))
    loop: Any = None
    links = Links(cluster, loop, LinkOwner())
    redirects = Redirects(cluster, loop, links, deque(), lambda: None)
    assert redirects.take(ASKED, Request(command("FLUSHALL")), frame) == frame
    assert refreshed == [True] * refreshes


@pytest.mark.parametrize(
    ("line", "passed_s", "expected"),
    [
        ("BLPOP a 10", 4.0, "BLPOP a 6.000"),
        ("blpop a b 0.5", 0.25, "blpop a b 0.250"),
        ("BLPOP a 0", 4.0, "BLPOP a 0"),
        ("BLPOP a 1", 4.0, "BLPOP a 0.002"),
        ("BLPOP a x", 4.0, "BLPOP a x"),
        ("BLMPOP 10 1 a LEFT", 4.0, "BLMPOP 6.000 1 a LEFT"),
        ("XREAD BLOCK 1000 STREAMS s $", 0.25, "XREAD BLOCK 750 STREAMS s $"),
        ("XREAD COUNT 1 block 1 STREAMS s $", 0.25, "XREAD COUNT 1 block 1 STREAMS s $"),
        ("XREAD STREAMS BLOCK 5", 0.25, "XREAD STREAMS BLOCK 5"),
        (
            "XREADGROUP GROUP BLOCK 5 BLOCK 900 STREAMS s >",
            0.25,
            "XREADGROUP GROUP BLOCK 5 BLOCK 650 STREAMS s >",
        ),
    ],
)
def test_the_rest_of_a_timeout(line: str, passed_s: float, expected: str) -> None:
    words = line.encode().split()
    assert with_remaining_timeout(command(*words), passed_s) == command(*expected.split())


@pytest.mark.parametrize(
    ("line", "at"),
    [
        ("BLPOP a b 7", 3),
        ("BZMPOP 7 1 a MIN", 1),
        ("XREAD STREAMS a 0", 0),
        ("XREAD COUNT 1 block 7 STREAMS a 0", 4),
        ("XREAD STREAMS BLOCK 0", 0),
        ("XREADGROUP GROUP BLOCK c BLOCK 7 NOACK STREAMS a >", 5),
        ("XREADGROUP GROUP BLOCK c STREAMS a >", 0),
        ("XREAD BLOCK", 0),
        ("BLPOP", 0),
        ("BLMPOP", 0),
    ],
)
def test_timeout(line: str, at: int) -> None:
    assert timeout_at(line.encode().split()) == at


def test_the_timeout_of_every_blocking_command_is_known() -> None:
    assert set(TIMEOUTS) == set(BLOCKING)


@given(st.sampled_from(sorted(TIMEOUTS)), st.lists(st.sampled_from([b"GROUP", b"BLOCK", b"1"])))
def test_no_arguments_break_it(name: bytes, args: list[bytes]) -> None:
    assert timeout_at([name, *args]) <= len(args)


def where_two_is_a_master() -> Redirects:
    """The redirects of a client of a cluster of TWO, a replica, THREE, and a new master, FOUR."""
    cluster: Any = SimpleNamespace(
        refresh=lambda: None,
        map=slot_map({Shard("2", TWO, (THREE,)): []}),
        unlisted={FOUR: EMPTY},
    )
    loop: Any = SimpleNamespace(call_later=lambda *_: None)
    return Redirects(cluster, loop, Links(cluster, loop, LinkOwner()), deque(), lambda: None)


@pytest.mark.parametrize("verb", ["EVAL", "EVALSHA_RO", "FCALL", "JSON.GET", "DEBUG"])
@pytest.mark.parametrize(
    ("frame", "follows", "target"),
    [
        (b"-MOVED 5 10.0.0.2:7000\r\n", True, TWO),
        (b"-ASK 5 10.0.0.2:7000\r\n", True, TWO),
        (b"-MOVED 5 10.0.0.3:7000\r\n", True, THREE),
        (b"-ASK 5 10.0.0.4:7000\r\n", True, FOUR),
        (b"-TRYAGAIN Multiple keys request during rehashing of slot\r\n", True, None),
        (b"-MOVED 6 10.0.0.2:7000\r\n", False, None),  # the slot of other keys
        (b"-MOVED 5 10.0.0.1:7000\r\n", False, None),  # the node itself
        (b"-TRYAGAIN later\r\n", False, None),
    ],
)
def test_a_redirect_that_may_be_forged_is_followed_if_it_reads_as_the_nodes_own(
    verb: str, frame: bytes, follows: bool, target: Address | None
) -> None:
    redirects = where_two_is_a_master()
    request = Request(b"", 5, Route(verb.encode(), BY_KEY).forgeable)
    assert redirects.take(ASKED, request, frame) == (b"" if follows else frame)
    assert redirects.pending == [request] * follows
    assert request.target == target


def test_no_server_that_is_not_a_node_is_called() -> None:
    """It may be a node that has just joined: the owner of the slot gets the command for a while."""
    redirects = where_two_is_a_master()
    request = Request(command("EVAL", "program", 1, "k"), 5, Route(b"EVAL", BY_KEY).forgeable)
    frame = b"-ASK 5 10.0.0.5:7000\r\n"
    for _ in range(MAX_UNKNOWN):
        assert redirects.take(ASKED, request, frame) == b""
        assert request.target is None
    assert redirects.take(ASKED, request, frame) == frame


class Redirected:
    """A client of three nodes whose commands are on slot 5 and were sent to ASKED."""

    def __init__(self, count: int) -> None:
        cluster: Any = SimpleNamespace(refresh=lambda: None)
        loop: Any = SimpleNamespace(call_later=lambda *_: None, time=lambda: 0.0)
        owner = LinkOwner()
        links = Links(cluster, loop, owner)
        links.by_address.update({at: Link(owner, at) for at in (ASKED, TWO, THREE)})
        self.queue: deque[Request] = deque()
        self.links = links.by_address
        self.redirects = Redirects(cluster, loop, links, self.queue, lambda: None)
        for number in range(1, count + 1):
            request = Request(b"", 5)
            request.number = number
            self.queue.append(request)
            self.links[ASKED].send(request)

    def refuse(self, number: int, frame: bytes) -> None:
        """The command of this number is answered `frame` by its node."""
        request = self.queue[number - 1]
        node = request.node
        assert node is not None
        request.node = None
        self.redirects.take(node, request, frame)
        self.redirects.send_pending()

    def sent(self, node: Address) -> list[int]:
        """The numbers of the commands that were sent to a node, in order."""
        return [request.number for request in self.links[node].owed if request.number]


def test_a_command_goes_again_once_nothing_of_its_slot_is_under_way() -> None:
    client = Redirected(3)
    client.refuse(1, b"-MOVED 5 10.0.0.2:7000\r\n")
    client.refuse(2, b"-MOVED 5 10.0.0.2:7000\r\n")
    assert client.sent(TWO) == []
    client.refuse(3, b"-MOVED 5 10.0.0.2:7000\r\n")
    assert client.sent(TWO) == [1, 2, 3]


def test_commands_of_one_slot_go_to_one_node_at_a_time() -> None:
    client = Redirected(3)
    client.refuse(3, b"-ASK 5 10.0.0.2:7000\r\n")
    client.refuse(2, b"-MOVED 5 10.0.0.3:7000\r\n")
    client.refuse(1, b"-ASK 5 10.0.0.2:7000\r\n")
    assert client.sent(TWO) == [1]
    assert client.sent(THREE) == []
    client.queue[0].node = None
    client.redirects.send_pending()
    assert client.sent(THREE) == [2]
    assert client.sent(TWO) == [1]


def test_a_command_without_known_keys_is_redirected_by_those_that_the_node_finds() -> None:
    redirects = where_two_is_a_master()
    request = Request(command("MODULE.GET", "k"), NO_SLOT, Route(b"MODULE.GET", HOME).forgeable)
    assert redirects.take(ASKED, request, b"-MOVED 5 10.0.0.2:7000\r\n") == b""
    assert request.target == TWO


def test_an_error_that_looks_like_the_end_of_a_wait_ends_only_a_wait() -> None:
    client = Redirected(2)
    frame = b"-UNBLOCKED force unblock from blocking operation\r\n"
    waits, other = client.queue
    waits.blocks = True
    waits.written = command("BLPOP", "k", 0)
    assert client.redirects.take(ASKED, waits, frame) == b""
    assert client.redirects.take(ASKED, other, frame) == frame
