"""redirects: what MOVED and ASK name, and the rest of a timeout."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
from rlproxy.config.urls import Address
from rlproxy.resp import commands as c
from rlproxy.resp.key_slot import NO_SLOT
from rlproxy.upstream.cluster.discovery import EMPTY, redirect
from rlproxy.upstream.cluster.link import Link, LinkOwner
from rlproxy.upstream.cluster.links import Links
from rlproxy.upstream.cluster.redirects import (
    Redirects,
    is_redirect,
    with_remaining_timeout,
)
from rlproxy.upstream.cluster.request import UNKNOWN_SLOT, Request
from rlproxy.upstream.cluster.routes import BY_KEY, Route
from rlproxy.upstream.cluster.slot_map import Shard, slot_map

from tests.harness import command

ASKED, TWO, THREE = (Address(f"10.0.0.{at}", 7000) for at in (1, 2, 3))
DIGITS = b"9" * 5000  # more than int() takes


@pytest.mark.parametrize(
    ("frame", "slot", "address"),
    [
        (b"-MOVED 3999 127.0.0.1:6381\r\n", 3999, Address("127.0.0.1", 6381)),
        (b"-ASK 0 node.example:6381\r\n", 0, Address("node.example", 6381)),
        (b"-MOVED 8579 :19202\r\n", 8579, Address("10.0.0.1", 19202)),
        (b"-MOVED 8579 ?:19202\r\n", 8579, Address("10.0.0.1", 19202)),
        (b"-MOVED 1 nowhere\r\n", NO_SLOT, None),
        (b"-MOVED x 127.0.0.1:6381\r\n", NO_SLOT, None),
        (b"-MOVED %b 127.0.0.1:6381\r\n" % DIGITS, NO_SLOT, None),
        (b"-ASK 1 127.0.0.1:%b\r\n" % DIGITS, NO_SLOT, None),
        (b"-MOVED\r\n", NO_SLOT, None),
        (b"-TRYAGAIN Multiple keys request during rehashing of slot\r\n", NO_SLOT, None),
    ],
    ids=range(10),
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
    redirects = Redirects(links, deque())
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
        ("XREADGROUP GROUP BLOCK 5 STREAMS s >", 0.25, "XREADGROUP GROUP BLOCK 5 STREAMS s >"),
        ("XREAD BLOCK", 0.25, "XREAD BLOCK"),
        ("BLPOP", 0.25, "BLPOP"),
    ],
)
def test_the_rest_of_a_timeout(line: str, passed_s: float, expected: str) -> None:
    written = command(*line.split())
    assert with_remaining_timeout(written, passed_s) == command(*expected.split())


def test_the_timeout_of_every_blocking_command_is_known() -> None:
    in_s = [
        *("BLPOP a {}", "BRPOP a {}", "BZPOPMIN a {}", "BZPOPMAX a {}", "BRPOPLPUSH a b {}"),
        *("BLMOVE a b LEFT LEFT {}", "BLMPOP {} 1 a LEFT", "BZMPOP {} 1 a MIN"),
    ]
    in_ms = ["XREAD BLOCK {} STREAMS a 1", "XREADGROUP GROUP g c BLOCK {} STREAMS a 1"]
    names = {line.split()[0].encode() for line in in_s + in_ms}
    assert names == set(c.BLOCKING) == {each for each in c.COMMANDS if Route(each, BY_KEY).blocks}
    for lines, before, after in ((in_s, 9, "8.000"), (in_ms, 9000, "8000")):
        for line in lines:
            written = command(*line.format(before).split())
            assert with_remaining_timeout(written, 1.0) == command(*line.format(after).split())


def where_two_is_a_master() -> Redirects:
    """The redirects of a client that knows TWO, a master, and THREE, one without slots."""
    cluster: Any = SimpleNamespace(
        redirected=None,  # no map may change
        refresh=lambda: None,
        map=slot_map({Shard("2", TWO): []}),
        unlisted={THREE: EMPTY},
    )
    loop: Any = SimpleNamespace(call_later=lambda *_: None)
    return Redirects(Links(cluster, loop, LinkOwner()), deque())


@pytest.mark.parametrize("verb", ["EVAL", "evalsha_ro", "FCALL", "JSON.GET", "DEBUG"])
@pytest.mark.parametrize(
    ("frame", "target", "followed"),
    [
        (b"-MOVED 5 10.0.0.2:7000\r\n", TWO, True),
        (b"-ASK 5 10.0.0.2:7000\r\n", TWO, True),
        (b"-ASK 5 10.0.0.3:7000\r\n", THREE, True),
        (b"-ASK 5 10.0.0.4:7000\r\n", None, True),  # not listed yet: the owner of the slot
        (b"-TRYAGAIN Multiple keys request during rehashing of slot\r\n", None, True),
        (b"-MOVED 6 10.0.0.2:7000\r\n", None, False),  # the slot of other keys
        (b"-MOVED 5 10.0.0.1:7000\r\n", None, False),  # the node itself
        (b"-TRYAGAIN later\r\n", None, False),
    ],
)
def test_a_redirect_of_a_script_or_module_is_followed_if_it_reads_as_the_nodes_own(
    verb: str, frame: bytes, target: Address | None, followed: bool
) -> None:
    redirects = where_two_is_a_master()
    route = Route(verb.upper().encode(), BY_KEY)
    request = Request(command(verb, "program", 1, "k"), 5, route.forgeable)
    assert redirects.take(ASKED, request, frame) == (b"" if followed else frame)
    assert redirects.pending == ([request] if followed else [])
    assert request.target == target


def test_a_command_whose_keys_are_unknown_follows_a_redirect_of_any_slot() -> None:
    redirects = where_two_is_a_master()
    request = Request(command("X.Y", "k"), UNKNOWN_SLOT, Route(b"X.Y", BY_KEY).forgeable)
    assert redirects.take(ASKED, request, b"-MOVED 5 10.0.0.2:7000\r\n") == b""
    assert request.target == TWO


def test_a_redirect_of_a_script_without_keys_is_a_reply() -> None:
    redirects = where_two_is_a_master()
    request = Request(command("EVAL", "program", 0), NO_SLOT, Route(b"EVAL", BY_KEY).forgeable)
    moved = b"-MOVED 5 10.0.0.2:7000\r\n"
    assert redirects.take(ASKED, request, moved) == moved


class Redirected:
    """A client of three nodes whose commands are on slot 5 and were sent to ASKED."""

    def __init__(self, count: int) -> None:
        cluster: Any = SimpleNamespace(redirected=lambda node, error: redirect(error, node)[1])
        loop: Any = SimpleNamespace(call_later=lambda *_: None, time=lambda: 0.0)
        owner = LinkOwner()
        links = Links(cluster, loop, owner)
        links.by_address.update({at: Link(owner, at) for at in (ASKED, TWO, THREE)})
        self.queue: deque[Request] = deque()
        self.links = links.by_address
        self.redirects = Redirects(links, self.queue)
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


def test_an_error_that_looks_like_the_end_of_a_wait_ends_only_a_wait() -> None:
    client = Redirected(2)
    frame = b"-UNBLOCKED force unblock from blocking operation\r\n"
    waits, other = client.queue
    waits.blocks_since = 1.0
    waits.written = command("BLPOP", "k", 0)
    assert client.redirects.take(ASKED, waits, frame) == b""
    assert client.redirects.take(ASKED, other, frame) == frame
