"""A few rows of each kind with TLS on both sides of the proxy, compared with Redis without TLS. All
of tests/conformance runs this way with THROUGH_TLS=yes.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import tlsparts
from tests.conformance.compare import (
    HIT,
    INLINE_HIT,
    UNKNOWN_HIT,
    UNKNOWN_IS_WRONG,
    WRONG_HIT,
    Bench,
    Case,
    case,
    name_of,
)
from tests.harness import command
from tests.tlsparts import Certificates

PING = command("PING")
ROWS = [
    case("hits and others", HIT, PING, HIT, command("GET", "k"), WRONG_HIT, HIT),
    case("inline", INLINE_HIT, b"ping\r\n", INLINE_HIT),
    case("a transaction", command("MULTI"), HIT, PING, HIT, command("EXEC"), HIT),
    case(
        "an aborted transaction",
        *(command("MULTI"), HIT, UNKNOWN_HIT, command("EXEC"), HIT),
        rewrite=[UNKNOWN_IS_WRONG],
    ),
    case("subscribed", command("HELLO", 3), command("SUBSCRIBE", "a"), HIT, PING),
    case("broken bytes", HIT, PING, b"*x\r\n", PING),
    case("a large value", command("SET", "v", "x" * 200_000), HIT, command("GET", "v"), HIT),
    case("quit", HIT, command("QUIT"), PING),
]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    if not tlsparts.tls_engine():
        pytest.skip("no server on this machine has TLS")
    certificates = Certificates(tmp_path_factory.mktemp("tls"))
    with tlsparts.tls_server(certificates) as (server, port):
        url = f"rediss://localhost:{port}"
        with tlsparts.tls_proxy(certificates, url) as (proxy, _):
            made = Bench(server, proxy)
            yield made
            made.close()


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_rows_are_equal_through_tls(bench: Bench, row: Case) -> None:
    bench.compare(row)


@pytest.mark.parametrize(
    "sent",
    [PING, command("SET", "a", "1") + command("GET", "a"), command("SUBSCRIBE", "a"), b"*x\r\n"],
)
@pytest.mark.parametrize("hits", [0, 3])
def test_half_closed_tls_connection_gets_its_replies(bench: Bench, sent: bytes, hits: int) -> None:
    """Data sent before close_notify is answered, and close_notify is returned."""
    answers = []
    for made, hit in ((bench.server, HIT.direct), (bench.proxy, HIT.proxied)):
        bench.reset()
        with made.raw() as raw:
            raw.send(hit * hits + sent)
            raw.finish()
            answers.append((raw.quiet(5), raw.closed, bench.keys()))
    assert answers[1] == answers[0]


def test_last_reply_before_a_reset_is_not_lost(bench: Bench) -> None:
    """As without TLS: a write fails while Redis' answer is in transit."""
    for _ in range(200):
        with bench.proxy.raw() as raw:
            raw.send(b"PING\r\n")
            assert raw.line() == b"+PONG\r\n"
            for piece in (b"*x\r\n", *[b"P"] * 30):
                raw.send(piece)
            assert raw.line().startswith(b"-ERR Protocol error")
            assert raw.closes()
