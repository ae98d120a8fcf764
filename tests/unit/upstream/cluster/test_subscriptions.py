"""subscriptions: keyspace events of all masters, in any order of replies."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rlproxy.config.urls import Address
from rlproxy.resp.encoding import bulk, bulks
from rlproxy.upstream.cluster import routes
from rlproxy.upstream.cluster.exchange import MAX_PER_TICK
from rlproxy.upstream.cluster.routes import Route
from rlproxy.upstream.cluster.slot_map import Shard, slot_map
from rlproxy.upstream.cluster.subscriptions import Subscriptions, _may_be_events
from rlproxy.upstream.cluster.transaction import Transaction, Transactions

from tests.unit.upstream.cluster.test_exchange import ADDRESSES, Client

PATTERN = b"__key*"
NEW = Address("h", 4)
MOVED = b"-MOVED 1 h:2\r\n"
EVENT = b"*4\r\n$8\r\npmessage\r\n$6\r\n__key*\r\n$5\r\n__key\r\n$1\r\nx\r\n"


def reply(kind: bytes, count: int) -> bytes:
    return b"*3\r\n" + bulk(kind) + bulk(PATTERN) + b":%d\r\n" % count


def shard_push(kind: bytes, count: int, channel: bytes = PATTERN) -> bytes:
    return b">3\r\n" + bulk(kind) + bulk(channel) + b":%d\r\n" % count


class Subscriber(Client):
    """A client of three masters that subscribes to keyspace events."""

    def __init__(self) -> None:
        super().__init__()

        async def connect(_made: object) -> None:
            await asyncio.Event().wait()

        self._cluster = cast("Any", self.exchange.cluster)
        self._cluster.on_change = {}
        self._cluster.target = lambda _at: SimpleNamespace(connect=connect, where="h")
        self.exchange.links._home = ADDRESSES[0]
        self._subscriptions = Subscriptions(self.exchange, Transactions(self.exchange))

    def ask(self, name: bytes, *channels: bytes) -> None:
        """Send `name` with these channels, or else with PATTERN."""
        route, args = Route(name, routes.SUBSCRIBE), [*channels] or [PATTERN]
        self._subscriptions.send(route, args, bulks(name, *args))

    def monitor(self) -> None:
        """Send MONITOR."""
        self._subscriptions.send(Route(b"MONITOR", routes.MONITOR), [], bulks(b"MONITOR"))

    def grow(self, *former: Address) -> None:
        """A fourth master joins, and `former` ones leave."""
        masters = [at for at in [*ADDRESSES, NEW] if at not in former]
        self._cluster.map = slot_map({Shard(str(at), at): [] for at in masters})
        for call in list(self._cluster.on_change):
            call()


def shard_subscriber() -> Subscriber:
    """Return a client with RESP3 that is subscribed to the shard channel PATTERN."""
    client = Subscriber()
    client.exchange.protocol = 3
    client.ask(b"SSUBSCRIBE")
    client.nodes[0].reply(shard_push(b"ssubscribe", 1))
    client.got()
    return client


async def test_a_master_that_joins_before_the_confirmation_sends_its_events() -> None:
    client = Subscriber()
    client.ask(b"PSUBSCRIBE")
    client.grow()
    for node in client.nodes:
        node.reply(reply(b"psubscribe", 1))
    await asyncio.sleep(0)
    assert client.exchange.links.by_address[NEW]._out == [bulks(b"PSUBSCRIBE", PATTERN)]
    client.exchange.close()


async def test_a_master_that_joins_shows_its_lines_of_monitor_and_a_former_one_none() -> None:
    client = Subscriber()
    client.monitor()
    for node in client.nodes:
        node.reply(b"+OK\r\n")
    assert client.got() == b"+OK\r\n"
    client.grow(ADDRESSES[1])
    assert client.exchange.links.by_address[NEW]._out == [bulks(b"MONITOR")]
    client.nodes[1].reply(b'+1.0 [0 h:1] "SET" "k" "v"\r\n')
    client.nodes[2].reply(b'+2.0 [0 h:1] "GET" "k"\r\n')
    assert client.got() == b'+2.0 [0 h:1] "GET" "k"\r\n'
    client.exchange.close()


@pytest.mark.parametrize("monitors", [False, True])
async def test_home_confirms_what_another_master_refuses(monitors: bool) -> None:
    client = Subscriber()
    if monitors:
        client.monitor()
    else:
        client.ask(b"PSUBSCRIBE")
    confirmed = b"+OK\r\n" if monitors else reply(b"psubscribe", 1)
    client.nodes[1].reply(b"-NOPERM no\r\n")
    client.nodes[2].reply(confirmed)
    assert client.got() == b""
    client.nodes[0].reply(confirmed)
    assert client.got() == confirmed
    client.exchange.close()


async def test_the_end_of_events_on_all_masters_is_one_reply() -> None:
    client = Subscriber()
    client.ask(b"PSUBSCRIBE")
    for node in client.nodes:
        node.reply(reply(b"psubscribe", 1))
    client.got()
    client.ask(b"PUNSUBSCRIBE")
    client.nodes[0].reply(reply(b"punsubscribe", 0))
    client.nodes[1].reply(EVENT + reply(b"punsubscribe", 0))
    client.nodes[2].reply(reply(b"punsubscribe", 0))
    assert client.got() == EVENT + reply(b"punsubscribe", 0)
    client.grow()
    assert NEW not in client.exchange.links.by_address
    client.exchange.close()


async def test_a_shard_channel_that_moves_uses_up_no_client_reply_skip() -> None:
    client = shard_subscriber()
    client.exchange.skips = True
    client.exchange.caching = b"CACHING"
    client.nodes[0].reply(shard_push(b"sunsubscribe", 0))
    await asyncio.sleep(0)
    client.nodes[0].reply(shard_push(b"ssubscribe", 1))
    client.exchange.flush()
    client.send(0, 0)
    assert client.nodes[0].link._out[0] == b"CACHING"
    client.nodes[0].reply(b"+OK\r\n+SKIPPED\r\n+NEXT\r\n")
    assert client.got() == b"+NEXT\r\n"
    client.exchange.close()


async def test_a_shard_channel_that_no_node_accepts_again_ends_for_the_client() -> None:
    client = shard_subscriber()
    client.nodes[0].reply(shard_push(b"sunsubscribe", 0))
    await asyncio.sleep(0)
    assert client.got() == b""
    client.nodes[0].reply(b"-NOPERM no channel\r\n")
    assert client.got() == shard_push(b"sunsubscribe", 0)
    client.nodes[0].reply(shard_push(b"sunsubscribe", 0))  # the client has no such channel
    await asyncio.sleep(0)
    assert not client.nodes[0].link.owed
    client.exchange.close()


@pytest.mark.parametrize("moves_first", [False, True])
async def test_a_shard_channel_that_moves_while_the_client_leaves_it_does_not_begin_again(
    moves_first: bool,
) -> None:
    client = shard_subscriber()
    moved = shard_push(b"sunsubscribe", 0)
    if moves_first:
        client.nodes[1].reply(moved)
    client.ask(b"SUNSUBSCRIBE")
    if not moves_first:
        client.nodes[1].reply(moved)
    await asyncio.sleep(0)
    sent = [request.written for request in client.nodes[0].link.owed]
    assert sent == [bulks(b"SUNSUBSCRIBE", PATTERN), bulks(b"PING")]
    client.exchange.close()


@pytest.mark.parametrize("inside", [False, True])
async def test_shard_channels_that_move_together_are_one_task(
    inside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else 25,000 of them keep the worker busy: with as many writes, or timers inside MULTI."""
    client = shard_subscriber()
    channels = [b"{a}%d" % number for number in range(MAX_PER_TICK + 9)]
    client.ask(b"SSUBSCRIBE", *channels)
    client.nodes[0].reply(b"".join([shard_push(b"ssubscribe", 1, each) for each in channels]))
    client._subscriptions._transactions.current = Transaction() if inside else None
    begun: list[object] = []
    loop = client.exchange.loop
    monkeypatch.setattr(loop, "call_later", lambda *call: begun.append(call))
    client._cluster.refresh = lambda: begun.append(None)
    client.nodes[0].reply(b"".join([shard_push(b"sunsubscribe", 0, each) for each in channels]))
    for ticks in (1, 2):
        await asyncio.sleep(0)
        expected = 0 if inside else min(ticks * MAX_PER_TICK, len(channels))
        assert len(client.nodes[0].link.owed) == expected
        assert len(begun) == (1 if inside else ticks)
    client.exchange.close()


@pytest.mark.parametrize("behind", [b"", MOVED])
async def test_the_redirect_behind_a_nodes_own_end_of_a_shard_channel_is_no_reply(
    behind: bytes,
) -> None:
    """Without a redirect, the message is the reply to the client's command."""
    client = shard_subscriber()
    client.ask(b"SUNSUBSCRIBE")
    link = client.nodes[0].link
    assert link._out[-2:] == [bulks(b"SUNSUBSCRIBE", PATTERN), bulks(b"PING")]
    client.nodes[0].reply(shard_push(b"sunsubscribe", 0) + behind)
    assert client.got() == b""
    client.nodes[0].reply(b"+PONG\r\n")
    assert client.got() == shard_push(b"sunsubscribe", 0)
    assert not link.owed and not client.exchange.queue
    client.exchange.close()


async def test_the_nodes_own_end_of_another_shard_channel_is_no_reply() -> None:
    client = shard_subscriber()
    client.ask(b"SUNSUBSCRIBE")
    client._cluster.redirected = lambda _node, _error: ADDRESSES[1]
    client.nodes[0].reply(shard_push(b"sunsubscribe", 1, b"another") + MOVED + b"+PONG\r\n")
    client.nodes[1].reply(shard_push(b"sunsubscribe", 0))
    assert client.got() == shard_push(b"sunsubscribe", 0)
    client.exchange.close()


async def test_the_nodes_own_end_of_one_of_several_shard_channels_is_no_reply() -> None:
    client = shard_subscriber()
    client.ask(b"SUNSUBSCRIBE", b"{a}1", b"{a}2")
    client._cluster.redirected = lambda _node, _error: ADDRESSES[1]
    client.nodes[0].reply(shard_push(b"sunsubscribe", 0, b"{a}1") + MOVED + b"+PONG\r\n")
    replies = [shard_push(b"sunsubscribe", 1, b"{a}%d" % number) for number in (1, 2)]
    client.nodes[1].reply(b"".join(replies))
    assert client.got() == b"".join(replies)
    client.exchange.close()


async def test_a_redirect_behind_the_end_of_a_shard_channel_at_its_second_node_is_dropped() -> None:
    client = shard_subscriber()
    client.ask(b"SUNSUBSCRIBE")
    client._cluster.redirected = lambda _node, _error: ADDRESSES[1]
    client.nodes[0].reply(MOVED + b"+PONG\r\n")
    client.nodes[1].reply(shard_push(b"sunsubscribe", 0) + MOVED)
    assert client.got() == shard_push(b"sunsubscribe", 0)
    client.exchange.close()


async def test_a_node_that_has_kept_a_shard_channel_answers_unsubscribing_from_all() -> None:
    """While a slot moves, Redis 8.2 redirects SUNSUBSCRIBE and keeps the subscription."""
    client = Subscriber()
    client.exchange.protocol = 3
    route = Route(b"SUNSUBSCRIBE", routes.SUBSCRIBE)
    client._subscriptions.send(route, [], bulks(b"SUNSUBSCRIBE"))
    client.nodes[0].reply(shard_push(b"sunsubscribe", 0, b"kept") + b"+PONG\r\n")
    assert client.got() == shard_push(b"sunsubscribe", 0, b"kept")
    client.exchange.close()


async def test_a_shard_channel_whose_name_has_a_line_end() -> None:
    client = shard_subscriber()
    client.ask(b"SUNSUBSCRIBE", b"a\r\nb")
    client.nodes[0].reply(shard_push(b"sunsubscribe", 1, b"a") + MOVED + b"+PONG\r\n")
    assert len(client.exchange.redirects.pending) == 1  # the message is no reply
    client.ask(b"SUNSUBSCRIBE", b"a\r\nb")
    client.nodes[0].reply(shard_push(b"sunsubscribe", 1, b"a\r\nb") + b"+PONG\r\n")
    assert not client.nodes[0].link.owed
    client.exchange.close()


@pytest.mark.parametrize("name", [b"SSUBSCRIBE", b"SUNSUBSCRIBE"])
async def test_the_replies_to_many_channels_are_joined_once(name: bytes) -> None:
    """Else one command, of 100,000 channels, would delay all clients of the worker for seconds."""
    client = shard_subscriber()
    channels = [b"{a}%d" % number for number in range(100)]
    replies = [shard_push(name.lower(), 1, channel) for channel in channels]
    client.ask(name, *channels)
    (part,) = [each for each in client.nodes[0].link.owed if each.frames == 100]
    client.nodes[0].reply(b"".join(replies[:-1]))
    (whole,) = client.exchange.queue
    assert [whole.reply, part.reply] == [b""] * 2
    assert [len(each.begun or []) for each in (whole, part)] in ([0, 99], [99, 0])
    client.nodes[0].reply(replies[-1] + b"+PONG\r\n" * (name == b"SUNSUBSCRIBE"))
    assert not client.exchange.queue
    assert client.got().count(name.lower()) == 100
    client.exchange.close()


class Channels(set[bytes]):
    """A set that counts how often it is searched from its begin."""

    searched = 0

    def __iter__(self) -> Iterator[bytes]:
        self.searched += 1
        return super().__iter__()


async def test_a_ping_takes_no_longer_with_many_shard_channels() -> None:
    """In RESP2, it goes to a node of one of them. A client may pipeline thousands of PINGs."""
    client = shard_subscriber()
    client.ask(b"SSUBSCRIBE", *(b"{a}%d" % number for number in range(9)))
    client.nodes[0].reply(b"".join([shard_push(b"ssubscribe", 1, b"{a}%d" % n) for n in range(9)]))
    held = client._subscriptions._channels
    held[b"SSUBSCRIBE"] = channels = Channels(held[b"SSUBSCRIBE"])
    for _ in range(9):
        client._subscriptions.send(Route(b"PING", routes.HOME), [], bulks(b"PING"))
    assert channels.searched == 1
    assert [request.node for request in client.exchange.queue] == [ADDRESSES[0]] * 9
    client.exchange.close()


async def test_a_ping_behind_the_move_of_a_shard_channel_is_answered_as_before_it() -> None:
    """Its node no longer subscribes then, and the next node does not yet."""
    client = shard_subscriber()
    client.exchange.protocol = 2
    replies = {b"+PONG\r\n": bulks(b"pong", b""), bulk(b"x"): bulks(b"pong", b"x")}
    for reply, expected in replies.items():
        for given in (reply, expected):
            client._subscriptions.send(Route(b"PING", routes.HOME), [], bulks(b"PING"))
            client.nodes[0].reply(given)
            assert client.got() == expected
    client.exchange.close()


async def test_subscribing_to_one_channel_takes_no_longer_with_many() -> None:
    client = shard_subscriber()
    held = client._subscriptions._channels
    held[b"SUBSCRIBE"] = channels = Channels()
    for number in range(9):
        client.ask(b"SUBSCRIBE", b"%d" % number)
        client.nodes[0].reply(shard_push(b"subscribe", 1, b"%d" % number))
        await asyncio.sleep(0)
    assert (len(channels), channels.searched) == (9, 0)
    client.exchange.close()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *((b"__keyevent@0__:set", True), (b"__key", True), (b"__k", False), (b"news", False)),
        *((b"*", True), (b"__k*", True), (b"__key?pace*", True), (b"__kex*", False)),
        *((b"[_]_key*", True), (b"\\__key*", True), (b"n*", False)),
    ],
)
def test_what_may_match_keyspace_events(name: bytes, expected: bool) -> None:
    assert _may_be_events(name) == expected
