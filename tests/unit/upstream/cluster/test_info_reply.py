"""info_reply: the INFO of several nodes, with texts of real servers."""

from __future__ import annotations

import pytest
from rlproxy.resp.encoding import bulk
from rlproxy.upstream.cluster.face import Face
from rlproxy.upstream.cluster.gather import text_of
from rlproxy.upstream.cluster.info_reply import SUMMED, info

from tests.harness import RedisServer
from tests.unit.upstream.cluster.replies import reply

FACE = Face("203.0.113.7", 7000)


def lines(frame: bytes) -> list[bytes]:
    text = text_of(frame)
    assert text is not None
    return text.split(b"\r\n")


def fields(frame: bytes) -> dict[bytes, bytes]:
    return {line.partition(b":")[0]: line.partition(b":")[2] for line in lines(frame)}


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("section", ["default", "everything", "keyspace"])
def test_info_of_a_server_twice(redis_server: RedisServer, protocol: int, section: str) -> None:
    with redis_server.raw() as raw:
        reply(raw, f"HELLO {protocol}")
        reply(raw, "CONFIG RESETSTAT")
        reply(raw, "SET a 1")
        reply(raw, "SET b 1 EX 100")
        one = reply(raw, f"INFO {section}")
    two = info([one, one], FACE)
    assert info([one], FACE) == one
    assert two[:1] == one[:1]
    before, after = fields(one), fields(two)
    assert list(before) == list(after)
    assert [line for line in lines(one) if line[:1] == b"#"] == [
        line for line in lines(two) if line[:1] == b"#"
    ]
    for name, value in before.items():
        if name in SUMMED:
            assert int(after[name]) == 2 * int(value)
        elif not name.startswith((b"db", b"cmdstat", b"errorstat")):
            assert after[name] == value
    if section != "default" or b"db0" in before:
        assert after[b"db0"].startswith(b"keys=4,expires=2,avg_ttl=")
        assert after[b"db0"].count(b",") == before[b"db0"].count(b",")
    if section == "everything":
        assert b"calls=2," in before[b"cmdstat_set"]
        assert b"calls=4," in after[b"cmdstat_set"]


def test_rows_of_other_nodes_are_added() -> None:
    home = bulk(b"# Keyspace\r\ndb0:keys=1,expires=1,avg_ttl=100\r\n")
    other = bulk(b"# Keyspace\r\ndb0:keys=9,expires=3,avg_ttl=500\r\ndb1:keys=2,expires=0\r\n")
    empty = bulk(b"# Keyspace\r\n")
    expected = b"# Keyspace\r\ndb0:keys=10,expires=4,avg_ttl=100\r\ndb1:keys=2,expires=0\r\n"
    assert info([home, other, empty], FACE) == bulk(expected)
    assert info([empty, home], FACE) == home


def test_statistics_of_commands_are_added() -> None:
    row = b"# Commandstats\r\ncmdstat_get:calls=%d,usec=%d,usec_per_call=%b,failed_calls=0\r\n"
    found = info([bulk(row % (1, 3, b"3.00")), bulk(row % (3, 3, b"1.00"))], FACE)
    assert found == bulk(row % (4, 6, b"3.00"))


def test_errors() -> None:
    one = bulk(b"# Server\r\n")
    assert info([one, b"-NOPERM x\r\n"], FACE) == b"-NOPERM x\r\n"
    assert info([one, b"$-1\r\n"], FACE).startswith(b"-ERR")
