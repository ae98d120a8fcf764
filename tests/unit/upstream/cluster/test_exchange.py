"""exchange: replies in request order, and what is read of those that come too early."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import struct
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest
from rlproxy.config.urls import Address
from rlproxy.resp.encoding import INVALIDATE, bulk, bulks
from rlproxy.upstream.cluster.cluster import Cluster
from rlproxy.upstream.cluster.dispatcher import Dispatcher
from rlproxy.upstream.cluster.exchange import MAX_BEHIND, MAX_HELD, MAX_KEPT, Exchange
from rlproxy.upstream.cluster.face import Face
from rlproxy.upstream.cluster.gather import concatenated, first
from rlproxy.upstream.cluster.link import LARGE, Link
from rlproxy.upstream.cluster.request import Divided, Request
from rlproxy.upstream.cluster.routes import Routes
from rlproxy.upstream.cluster.slot_map import Shard, slot_map

ADDRESSES = [Address("h", port) for port in (1, 2, 3)]
READ = 65536  # bytes that a node sends at a time
RESETS = struct.pack("ii", 1, 0)  # SO_LINGER: close() ends the connection at once


class Node:
    """A link whose node sends what the test gives it, while the link is read."""

    def __init__(self, exchange: Exchange, address: Address) -> None:
        self.link = Link(exchange, address)
        self.reads = True
        self._left = b""
        exchange.links.by_address[address] = self.link
        self.link.connection_made(cast("asyncio.BaseTransport", self))

    def write(self, data: bytes) -> None:
        """As a transport."""

    def abort(self) -> None:
        """As a transport."""

    def pause_reading(self) -> None:
        """As a transport."""
        self.reads = False

    def resume_reading(self) -> None:
        """As a transport."""
        self.reads = True

    def reply(self, data: bytes) -> int:
        """Send `data` as far as it is read. Returns the number of bytes that are left."""
        self._left += data
        while self._left and self.reads:
            piece, self._left = self._left[:READ], self._left[READ:]
            self.link.data_received(piece)
        return len(self._left)


class Client:
    """One client of three nodes."""

    def __init__(self) -> None:
        shards: dict[Shard, list[tuple[int, int]]] = {Shard(str(at), at): [] for at in ADDRESSES}
        cluster = SimpleNamespace(map=slot_map(shards), refresh=lambda: None)
        cluster.redirected = lambda _node, _error: None
        cluster.home = lambda _failed: ADDRESSES[0]
        self.exchange = Exchange(cast("Cluster", cluster))
        self.exchange.wake = self.exchange.flush
        self.nodes = [Node(self.exchange, address) for address in ADDRESSES]

    def send(self, *nodes: int) -> None:
        """Send a command to each of these nodes."""
        for at in nodes:
            self.exchange.send(self.nodes[at].link, Request(b"*0\r\n"))

    def send_parts(self, *nodes: int) -> None:
        """Send a command with a part for each of these nodes."""
        parts = ((self.nodes[at].link, Request(b"*0\r\n")) for at in nodes)
        self.exchange.send_parts(Divided(len(nodes), concatenated), parts)

    def got(self) -> bytes:
        """Return what the client has received since the last call."""
        out = b"".join(self.exchange.out)
        self.exchange.out.clear()
        return out


async def test_a_large_reply_is_passed_on_while_it_comes() -> None:
    client = Client()
    client.send(0, 1)
    value = bulk(b"x" * 3 * MAX_HELD)
    assert client.nodes[0].reply(value[:-2]) == 0
    assert client.got() == value[:-2]
    assert client.nodes[1].reply(b"+OK\r\n") == 0
    assert client.got() == b""
    assert client.nodes[0].reply(value[-2:]) == 0
    assert client.got() == value[-2:] + b"+OK\r\n"


async def test_a_reply_is_read_after_a_failed_write() -> None:
    """A node closes behind a protocol error, while the client sends on."""
    exchange = Client().exchange
    with socket.create_server(("127.0.0.1", 0)) as listener:
        link = Link(exchange, Address(*listener.getsockname()))
        exchange.links.by_address[link.address] = link
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: link, link.address.host, link.address.port)
        node, _ = listener.accept()
        exchange.send(link, Request(b"*1\r\n+PING\r\n"))
        exchange.flush()
        assert node.recv(100) == b"*1\r\n+PING\r\n"
        node.sendall(b"-ERR Protocol error\r\n")
        node.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESETS)
        node.close()
        link.send_raw(b"further")
        link.flush()
        async with asyncio.timeout(5):
            while not exchange.out:
                await asyncio.sleep(0.001)
    assert exchange.out == [b"-ERR Protocol error\r\n"]


@pytest.mark.parametrize("kind", [b"*", b">"])
async def test_a_large_message_is_joined_once(kind: bytes) -> None:
    """Else one of 31 MB, joined at each read, would delay all clients of the worker."""
    client = Client()
    link = client.nodes[0].link
    link.subscribed = (b"subscribe",)
    client.send(0, 0)
    message = kind + b"3\r\n$7\r\nmessage\r\n$1\r\na\r\n" + bulk(b"x" * 2 * MAX_HELD)
    sent = b"+OK\r\n" + message + message + b"+OK\r\n"
    for at in range(0, len(sent), READ - 1):
        link.data_received(sent[at : at + READ - 1])
        assert len(link._framer.buf) < READ
    assert client.got() == sent
    client.send(0)
    link.data_received(message + b"+OK\r\n")
    assert client.got() == message + b"+OK\r\n"


async def test_a_client_that_is_owed_many_parts_is_not_read() -> None:
    """Else commands behind one that blocks, each with hundreds of keys, would fill the memory."""
    client = Client()
    client.send(0)
    sent = 0
    while not client.exchange.full():
        client.send_parts(*[1, 2] * 100)
        sent += 100
        assert sent < 20_000
    for at in (1, 2):
        client.nodes[at].reply(b"*0\r\n" * sent)
    assert client.exchange.full()  # the reply of the other node is the first one
    client.nodes[0].reply(b"+OK\r\n")
    assert not client.exchange.full()
    client.exchange.send(client.nodes[0].link, Request(b"x" * MAX_KEPT))
    assert client.exchange.full()
    client.nodes[0].reply(b"+OK\r\n")
    assert not client.exchange.full()


async def test_an_invalidation_also_follows_the_reply_that_waits_for_another_node() -> None:
    """Else a client would keep a value that was read before the key was touched."""
    client = Client()
    push = INVALIDATE + bulks(b"key")
    client.send(0, 1)
    client.nodes[1].reply(bulk(b"old") + push)
    assert client.got() == push
    client.send(2)
    client.nodes[0].reply(b"+OK\r\n")
    assert client.got() == b"+OK\r\n" + bulk(b"old") + push
    client.nodes[2].reply(push + b"+OK\r\n")  # nothing waits
    assert client.got() == push + b"+OK\r\n"
    client.send_parts(0, 1)
    client.nodes[1].reply(b"*1\r\n" + bulk(b"old") + push)
    assert client.got() == push
    client.nodes[0].reply(b"*0\r\n")
    assert client.got() == b"*1\r\n" + bulk(b"old") + push
    assert client.exchange._held == 0


async def test_many_invalidations_behind_a_reply_are_one() -> None:
    client = Client()
    push = INVALIDATE + bulks(b"key")
    client.send(0, 1)
    client.nodes[1].reply(bulk(b"old"))
    number = MAX_BEHIND // len(push) + 1
    client.nodes[1].reply(push * (number + 1))
    assert client.got() == push * (number + 1)
    client.nodes[0].reply(b"+OK\r\n")
    assert client.got() == b"+OK\r\n" + bulk(b"old") + INVALIDATE + b"_\r\n"
    assert client.exchange._held == 0


async def test_keys_are_forgotten_at_once_and_behind_what_was_read_before() -> None:
    client = Client()
    client.exchange.protocol = 3
    client.send(0)
    client.exchange.forget_keys()
    assert client.got() == INVALIDATE + b"_\r\n"
    client.send(0)
    client.nodes[0].reply(b"$-1\r\n" + bulk(b"new"))
    assert client.got() == b"$-1\r\n" + INVALIDATE + b"_\r\n" + bulk(b"new")
    assert client.exchange._held == 0


async def test_a_large_reply_that_comes_too_early_is_read_up_to_the_bound() -> None:
    client = Client()
    client.send(0, 1, 2)
    value = bulk(b"x" * 4 * MAX_HELD)
    left = client.nodes[1].reply(value)
    assert len(value) - left in range(MAX_HELD, MAX_HELD + 2 * READ)
    assert not client.nodes[2].reads
    assert client.nodes[0].reads
    client.nodes[0].reply(b"+OK\r\n")
    assert client.got() == b"+OK\r\n"
    assert client.nodes[1].reads  # it owes the next reply
    assert not client.nodes[2].reads
    assert client.nodes[1].reply(b"") == 0
    assert client.got() == value
    assert client.nodes[2].reads
    assert client.exchange._held == 0


async def test_many_replies_that_come_too_early_are_read_up_to_the_bound() -> None:
    client = Client()
    client.send(0, *[1] * 100)
    value = bulk(b"x" * LARGE)
    left = client.nodes[1].reply(100 * value)
    assert 100 * len(value) - left in range(MAX_HELD, MAX_HELD + 2 * READ)
    client.nodes[0].reply(b":1\r\n")
    assert client.nodes[1].reply(b"") == 0
    assert client.got() == b":1\r\n" + 100 * value
    assert client.exchange._held == 0


async def test_the_next_reply_may_come_behind_a_large_one() -> None:
    client = Client()
    client.send(0, 1)
    first = client.exchange.queue[0]
    client.nodes[0].link.owed.clear()  # the command is redirected, and sent again to the other node
    client.nodes[1].link.send(first)
    value = bulk(b"x" * 4 * MAX_HELD)
    assert client.nodes[1].reply(value + b"+FIRST\r\n") == 0
    assert client.got() == b"+FIRST\r\n" + value
    assert client.exchange._held == 0


async def test_the_large_parts_of_one_reply_are_read_whole() -> None:
    client = Client()
    client.send_parts(0, 1)
    item = bulk(b"x" * 4 * MAX_HELD)
    for node in client.nodes[:2]:
        assert node.reply(b"*1\r\n" + item) == 0
    assert client.got() == b"*2\r\n" + 2 * item
    assert client.exchange._held == 0


async def test_parts_that_come_too_early_are_read_up_to_the_bound() -> None:
    client = Client()
    client.send(0)
    for _ in range(100):
        client.send_parts(1, 2)
    reply = b"*1\r\n" + bulk(b"x" * LARGE)
    left = client.nodes[1].reply(100 * reply)
    assert 100 * len(reply) - left in range(MAX_HELD, MAX_HELD + 2 * READ)
    client.nodes[0].reply(b":1\r\n")
    client.nodes[2].reply(100 * reply)
    for _ in range(100):  # each is read while it owes a part of the next reply
        client.nodes[1].reply(b"")
        client.nodes[2].reply(b"")
    assert client.got() == b":1\r\n" + 100 * (b"*2\r\n" + 2 * reply.partition(b"\r\n")[2])
    assert client.exchange._held == 0


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Have objects freed by their reference counts alone."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def replies_kept() -> int:
    """Return the number of bytes of the replies that commands keep."""
    return sum(len(each.reply) for each in gc.get_objects() if isinstance(each, Request))


async def test_parts_are_freed_with_their_reply() -> None:
    client = Client()
    with without_collection():
        before = replies_kept()
        client.send_parts(0, 1)
        for node in client.nodes[:2]:
            node.reply(b"*1\r\n" + bulk(b"x" * LARGE))
        client.got()
        assert replies_kept() == before


async def test_replies_that_wait_are_freed_with_the_client() -> None:
    client = Client()
    client.send(0, 1, 1)
    with without_collection():
        before = replies_kept()
        client.nodes[1].reply(2 * bulk(b"x" * LARGE))
        assert replies_kept() > before + LARGE
        client.exchange.close()
        assert replies_kept() == before
        assert not any(node.link.owed for node in client.nodes)


async def test_a_node_that_fails_in_a_large_reply_leaves_no_bytes_of_it_behind() -> None:
    client = Client()
    client.send(0, 1)
    client.nodes[1].reply(bulk(b"x" * 2 * LARGE)[:-2])
    assert client.exchange._held > LARGE
    client.exchange.lost(client.nodes[1].link, b"-ERR failed\r\n")
    client.nodes[0].reply(b"+OK\r\n")
    assert client.got() == b"+OK\r\n-ERR failed\r\n"
    assert client.exchange._held == 0


async def test_a_message_waits_for_the_end_of_the_reply_before_it() -> None:
    client = Client()
    client.send(0)
    value = bulk(b"x" * 2 * LARGE)
    client.nodes[0].reply(value[:-2])
    message = b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n"
    client.nodes[1].reply(message)
    assert client.got() == value[:-2]
    client.nodes[0].reply(value[-2:])
    assert client.got() == value[-2:] + message


async def test_a_message_before_the_end_of_a_subscription_goes_first() -> None:
    client = Client()
    request = Request(b"*0\r\n")
    request.subscribes = b"unsubscribe"
    client.exchange.send(client.nodes[0].link, request)
    message = b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n"
    ended = b"*3\r\n$11\r\nunsubscribe\r\n$1\r\nc\r\n:0\r\n"
    client.nodes[0].reply(message + ended)
    assert client.got() == message + ended


async def test_messages_behind_a_reply_in_part_are_read_up_to_the_bound() -> None:
    client = Client()
    client.send(0)
    value = bulk(b"x" * 2 * LARGE)
    client.nodes[0].reply(value[:-2])
    message = b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n" + bulk(b"m" * 1000)
    messages = 4 * MAX_HELD // len(message) * message
    left = client.nodes[1].reply(messages)
    assert len(messages) - left in range(MAX_HELD, MAX_HELD + 2 * READ)
    assert client.nodes[0].reads
    client.nodes[0].reply(value[-2:])
    client.nodes[1].reply(b"")
    assert client.got() == value + messages
    assert client.exchange._held == 0


async def test_all_nodes_are_read_while_a_redirected_command_waits() -> None:
    client = Client()
    client.send(0, 1, 2)
    client.nodes[0].reply(b"-TRYAGAIN x\r\n")
    assert client.nodes[1].reply(bulk(b"x" * 4 * MAX_HELD)) == 0
    assert client.nodes[2].reads


async def test_a_connection_that_opens_while_the_client_does_not_read_is_not_read() -> None:
    client = Client()
    opening = Link(client.exchange, Address("h", 4))
    client.exchange.links.by_address[opening.address] = opening
    client.exchange.pause(True)
    node = client.nodes[0]
    node.reads = True
    opening.connection_made(cast("asyncio.BaseTransport", node))
    assert not node.reads
    client.exchange.pause(False)
    assert node.reads


@pytest.mark.parametrize("kind", [b">", b"*"])
async def test_a_large_message_before_a_reply_is_passed_on_whole(kind: bytes) -> None:
    client = Client()
    client.nodes[0].link.subscribed = (b"subscribe",)
    client.send(0, 0)
    message = kind + b"3\r\n$7\r\nmessage\r\n$1\r\nc\r\n" + bulk(b"x" * 3 * LARGE)
    client.nodes[0].reply(message[:-2])
    assert client.got() == b""
    client.nodes[0].reply(message[-2:] + b"+OK\r\n")
    assert client.got() == message + b"+OK\r\n"


@pytest.mark.parametrize("kind", [b">", b"*"])
async def test_a_large_confirmation_of_a_subscription_is_a_reply(kind: bytes) -> None:
    client = Client()
    part = Request(b"*0\r\n")
    part.subscribes = b"subscribe"
    part.frames = 2
    whole = Divided(1, first)
    whole.subscribes = part.subscribes
    client.exchange.send_parts(whole, iter([(client.nodes[0].link, part)]))
    frame = kind + b"3\r\n$9\r\nsubscribe\r\n" + bulk(b"c" * 3 * LARGE) + b":1\r\n"
    client.nodes[0].reply(frame)
    assert client.got() == b""
    client.nodes[0].reply(frame)
    assert client.got() == 2 * frame
    assert client.exchange._held == 0


async def test_a_large_reply_that_is_edited_or_dropped_is_not_passed_on_in_pieces() -> None:
    client = Client()
    edited = Request(b"*0\r\n")
    edited.on_reply = lambda frame: b":%d\r\n" % len(frame)
    client.exchange.send(client.nodes[0].link, edited)
    value = bulk(b"x" * 3 * LARGE)
    client.nodes[0].reply(value)
    assert client.got() == b":%d\r\n" % len(value)
    client.exchange.silent = True
    client.send(0)
    client.nodes[0].reply(value)
    assert client.got() == b""
    assert client.exchange._held == 0


async def test_a_node_that_fails_within_a_large_reply_ends_the_client() -> None:
    client = Client()
    client.send(0, 1)
    value = bulk(b"x" * 3 * LARGE)
    client.nodes[0].reply(value[:-2])
    client.exchange.lost(client.nodes[0].link, b"-UPSTREAMDOWN it has failed\r\n")
    assert client.got() == value[:-2]
    assert client.exchange.ended


async def test_client_caching_precedes_each_part_of_the_next_command_alone() -> None:
    client = Client()
    client.exchange.caching = b"CACHING"
    client.send_parts(0, 1)
    client.send(0)
    client.exchange.caching = b"CACHING"
    client.exchange.answer(b"+OK\r\n")
    client.send(1)
    for node in client.nodes[:2]:
        assert [each.written for each in node.link.owed] == [b"CACHING", b"*0\r\n", b"*0\r\n"]


@pytest.mark.parametrize("protocol", [2, 3])
async def test_a_reply_of_a_node_that_tracks_no_key_is_followed_by_an_invalidation(
    protocol: int,
) -> None:
    """The invalidation is one of all keys. RESP2 has no pushes."""
    client = Client()
    client.exchange.protocol = protocol
    client.exchange.caching = b"CACHING"
    client.send_parts(0, 1)
    for at, asking in ((0, False), (1, True)):
        (*_, part) = client.nodes[at].link.owed
        part.asking = asking
        client.nodes[at].reply(b"+OK\r\n*1\r\n:1\r\n")
    push = b">2\r\n$10\r\ninvalidate\r\n_\r\n" if protocol == 3 else b""
    assert client.got() == b"*2\r\n:1\r\n:1\r\n" + push


async def test_split_commands_with_several_keys_in_a_slot_run_one_after_the_other() -> None:
    client = Client()
    client.exchange.links._home = ADDRESSES[0]
    routes = Routes([[b"del", -2, [], 1, -1, 1, []]])
    dispatcher = Dispatcher(client.exchange, routes, Face("h", 1), splits=True)
    words = [b"DEL", b"{a}1", b"{a}2", b"b"]
    assert dispatcher.send(words, bulks(*words))
    assert not dispatcher.send(words, bulks(*words))
    client.nodes[0].reply(b":2\r\n:1\r\n")
    assert client.got() == b":3\r\n"
    assert dispatcher.send(words, bulks(*words))
