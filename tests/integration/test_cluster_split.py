"""A command with many keys over all slots of a Redis Cluster: its parts take several ticks."""

from __future__ import annotations

import asyncio
import itertools
from typing import cast

import hiredis
from rlproxy.config.urls import parse_upstream
from rlproxy.resp.encoding import bulks
from rlproxy.upstream.cluster.cluster import Cluster as Upstream
from rlproxy.upstream.cluster.exchange import MAX_AT_ONCE
from rlproxy.upstream.cluster.face import Face
from rlproxy.upstream.cluster.request import Divided
from rlproxy.upstream.cluster.target import ClusterTarget

from tests.clusters import Cluster
from tests.harness import DEADLINE_S


class Client(asyncio.Protocol):
    """The client of one connection."""

    def __init__(self) -> None:
        self.reader = hiredis.Reader()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.reader.feed(data)


async def test_the_parts_are_sent_in_several_ticks_and_in_order(one_cluster: Cluster) -> None:
    keys = [b"key:%d" % number for number in range(20_000)]
    values = [b"<%b>" % key for key in keys]
    upstream = Upstream(parse_upstream(one_cluster.url), DEADLINE_S)
    upstream.start()
    await upstream.settled.wait()
    target = ClusterTarget("", upstream, lambda _: Face("h", 1), True)
    client = Client()
    await target.connect(lambda: client)
    (exchange,) = target._exchanges
    pipeline = [
        (bulks(b"GET", keys[-1]), None),
        (bulks(b"MSET", *itertools.chain(*zip(keys, values, strict=True))), b"OK"),
        (bulks(b"SET", keys[-1], b"new"), b"OK"),
        (bulks(b"MGET", b"absent", *keys, keys[0]), [None, *values[:-1], b"new", values[0]]),
        (bulks(b"DEL", *keys[1:]), len(keys) - 1),
        (bulks(b"EXISTS", *keys), 1),
    ]
    client.transport.write(b"".join(request for request, _ in pipeline))
    sent = [0]
    async with asyncio.timeout(DEADLINE_S):
        for request, reply in pipeline:
            while (found := client.reader.gets()) is False:
                await asyncio.sleep(0)
                whole = next((each for each in exchange.queue if isinstance(each, Divided)), None)
                sent.append(len(whole.parts) if whole is not None else 0)
            assert found == reply, request[:20]
    at_once = [after - before for before, after in itertools.pairwise(sent)]
    assert 0 < max(at_once) <= MAX_AT_ONCE
    client.transport.abort()
    await upstream.stop()
