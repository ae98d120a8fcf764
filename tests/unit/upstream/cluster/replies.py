"""Replies of real servers, for the tests of this folder."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import hiredis
from rlproxy.resp.replies import ReplyFramer

from tests import harness
from tests.harness import Raw, RedisServer, command, wait_until


def reply(raw: Raw, line: str) -> bytes:
    """The bytes of one reply."""
    raw.send(command(*line.split(" ")))
    framer = ReplyFramer()
    data = b""
    while chunk := raw.sock.recv(1 << 16):
        data += chunk
        framer.feed(chunk)
        if framer.skip(1):
            break
    return data


def parsed(frame: bytes) -> object:
    """One frame, decoded; fails on anything behind it."""
    reader = hiredis.Reader()
    reader.feed(frame + b":7\r\n")
    found = reader.gets()
    assert found is not False
    assert reader.gets() == 7
    return found


@contextlib.contextmanager
def one_node_cluster(engine: str) -> Iterator[RedisServer]:
    """Run a cluster of one node with all slots."""
    with harness.server(engine, "--cluster-enabled", "yes") as node:
        with node.raw() as raw:
            assert raw.ask("CLUSTER", "ADDSLOTS", *range(16384)) == "OK"

            def ready() -> bool:
                text = raw.ask("CLUSTER", "INFO")
                return isinstance(text, bytes) and b"cluster_state:ok" in text

            wait_until(ready, "the cluster is ready")
        yield node
