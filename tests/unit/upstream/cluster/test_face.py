"""face: the proxy's replies have the shape of those of a cluster of one real node."""

from __future__ import annotations

import re
from collections.abc import Iterator

import hiredis
import pytest
from rlproxy.upstream.cluster.face import Face
from rlproxy.upstream.cluster.gather import text_of

from tests import harness
from tests.harness import RedisServer
from tests.unit.upstream.cluster.replies import one_node_cluster, reply

HOST, PORT = "203.0.113.7", 7000
FACE, ALONE = Face(HOST, PORT), Face(HOST, PORT, standalone=True)
NEWER = {"valkey-9.1"}  # its SHARDS and INFO have fields that Redis 7.0 does not


@pytest.fixture(scope="module", params=sorted(harness.engines()))
def node(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    with one_node_cluster(str(request.param)) as made:
        yield made


def made(line: str, protocol: int = 2, shown: Face = FACE) -> bytes:
    return shown.cluster_reply(line.encode().split(b" "), protocol)


def shape(frame: bytes) -> bytes:
    """The reply with another address, id and epoch."""
    frame = re.sub(rb"[0-9a-f]{40}", b"<id>", frame)
    frame = re.sub(rb"\$[0-9]+\r\n(?:[0-9.]*)\r\n", b"<host>", frame)
    return re.sub(rb":[0-9]{4,5}\r\n", b":<number>\r\n", frame)


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("line", ["SLOTS", "SHARDS", "NODES", "INFO", "MYID", "KEYSLOT {a}b"])
def test_shape(node: RedisServer, line: str, protocol: int) -> None:
    if node.version < (7,):
        pytest.skip("Redis 6.2 has no SHARDS and no metadata")
    if node.engine in NEWER and line in ("SHARDS", "INFO"):
        pytest.skip("more fields than Redis 7.0")
    with node.raw() as raw:
        reply(raw, f"HELLO {protocol}")
        theirs = reply(raw, f"CLUSTER {line}")
    ours = made(line, protocol)
    if line in ("NODES", "INFO"):
        assert ours[:1] == theirs[:1] == (b"=" if protocol == 3 else b"$")
        mine, other = text_of(ours), text_of(theirs)
        assert mine is not None and other is not None
        address = rb"[0-9.]*:[0-9]+@[0-9]+"
        numbers = re.compile(rb"[0-9a-f]{40}|" + address + rb"|:[0-9]+|\b[01]\b(?!-)")
        assert numbers.sub(b"?", mine) == numbers.sub(b"?", other)
    else:
        assert shape(ours) == shape(theirs)


def test_slots_name_the_announced_address() -> None:
    reader = hiredis.Reader()
    reader.feed(made("SLOTS"))
    own = FACE.id()
    assert reader.gets() == [[0, 16383, [HOST.encode(), PORT, own, []]]]
    assert made("MYID") == b"$40\r\n%b\r\n" % own
    assert re.fullmatch(rb"[0-9a-f]{40}", own)
    assert own == Face(HOST, PORT).id() != Face(HOST, PORT + 1).id()


@pytest.mark.parametrize(
    "line",
    ["HELP", "COUNTKEYSINSLOT 1", "GETKEYSINSLOT 1 1", "failover", "RESET HARD", "MEET h 1", "FOO"],
)
def test_the_rest_is_refused(line: str) -> None:
    word = line.split(" ")[0].upper()
    expected = f"-ERR CLUSTER {word} is not available through rlproxy\r\n"
    assert made(line) == expected.encode()


@pytest.mark.parametrize("line", ["SLOTS x", "MYID x", "KEYSLOT", "KEYSLOT a b", ""])
def test_wrong_arguments(node: RedisServer, line: str) -> None:
    if node.version < (7,):
        pytest.skip("another text")
    with node.raw() as raw:
        theirs = reply(raw, f"CLUSTER {line}".strip())
    args = [word.encode() for word in line.split(" ") if word]
    assert FACE.cluster_reply(args, 2) == theirs


def test_standalone(node: RedisServer) -> None:
    with harness.server(node.engine) as alone, alone.raw() as raw:
        theirs = reply(raw, "CLUSTER SLOTS")
    assert made("SLOTS", 2, ALONE) == theirs


@pytest.mark.parametrize("protocol", [2, 3])
def test_hello(node: RedisServer, protocol: int) -> None:
    with node.raw() as raw:
        theirs = reply(raw, f"HELLO {protocol}")
    assert b"$4\r\nmode\r\n$7\r\ncluster\r\n" in theirs
    assert FACE.hello_reply(theirs) == theirs
    edited = ALONE.hello_reply(theirs)
    before = b"$4\r\nmode\r\n$7\r\ncluster\r\n"
    assert edited == theirs.replace(before, b"$4\r\nmode\r\n$10\r\nstandalone\r\n")


def test_info_text_edits_whole_lines() -> None:
    text = b"executable:/x/redis_mode:cluster\r\nredis_mode:cluster\r\ncluster_enabled:1\r\n"
    expected = b"executable:/x/redis_mode:cluster\r\nredis_mode:standalone\r\ncluster_enabled:0\r\n"
    assert ALONE.info_text(text) == expected
    assert FACE.info_text(text) == text
    assert ALONE.info_text(b"cluster_enabled:1\r\n") == b"cluster_enabled:0\r\n"
