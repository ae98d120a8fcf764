"""session: handshakes that are answered while Redis is unreachable, and sent once it is back."""

from __future__ import annotations

import pytest
from rlproxy.resp.encoding import bulks
from rlproxy.session import private_stream
from rlproxy.session.deferred_handshake import MAX_COMMANDS

from tests.unit.session.bench import FIVE, HIT, in_place
from tests.unit.session.test_session_faults import REFUSED, Faulty

OK = b"+OK\r\n"
HELLO = bulks(b"HELLO", b"3", b"AUTH", b"bob", b"pw")
AUTH = bulks(b"AUTH", b"bob", b"pw")
INFO = bulks(b"CLIENT", b"SETINFO", b"LIB-NAME", b"x")
MAINTENANCE = bulks(b"CLIENT", b"MAINT_NOTIFICATIONS", b"ON")
SELECT = bulks(b"SELECT", b"3")
GET = bulks(b"GET", b"k")
WRONGPASS = b"-WRONGPASS invalid username-password pair or user is disabled.\r\n"
# what Redis answers, in RESP3
MAP = b"%1\r\n$5\r\nproto\r\n:3\r\n"


def failed(bench: Faulty, data: bytes) -> bytes:
    """What the client gets for `data`, as Redis refuses connections."""
    bench.send(data)
    bench.session.upstream_failed("connection refused")
    return bench.down()


def deferred(mode: str = "allow", written: bytes = HELLO + INFO + SELECT) -> Faulty:
    """A client whose handshake was answered without Redis."""
    bench = Faulty(mode)
    reply = failed(bench, written + HIT)
    assert reply.endswith(bench.without(REFUSED))
    assert b"UPSTREAMDOWN" not in reply
    return bench


def asking(bench: Faulty, data: bytes = GET) -> bytes:
    """Redis is back, and the client sends `data`; what goes to Redis."""
    bench.send(data)
    assert bench.session.private.status == private_stream.PRIVATE_OPENING
    bench.session.upstream_opened()
    return bench.up()


def test_a_server_that_is_no_redis() -> None:
    bench = deferred()
    asking(bench)
    assert bench.answer(b"HTTP/1.1 400 Bad Request\r\n") == b""
    assert bench.session.closed
    assert bench.up() == b""


def test_the_handshake_is_sent_before_any_other_command() -> None:
    bench = deferred()
    assert asking(bench, GET + HIT + GET) == HELLO
    for reply, following in ((MAP, INFO), (OK, SELECT), (OK, GET + in_place() + GET)):
        for at in range(len(reply) - 1):
            assert bench.answer(reply[at : at + 1]) == b""
            assert bench.up() == b""
        assert bench.answer(reply[-1:]) == b""
        assert bench.up() == following
    assert bench.answer(b"$-1\r\n" + FIVE + b"$-1\r\n") == b"$-1\r\n" + FIVE + b"$-1\r\n"
    assert bench.send(HIT) == b""
    assert bench.identities[-1].key() == (b"bob", b"pw", 3)
    assert bench.session.private.state.protocol == 3
    assert bench.settle() == FIVE


@pytest.mark.parametrize(
    ("replies", "refusal"),
    [
        (WRONGPASS, WRONGPASS),
        (MAP + OK + b"-ERR DB index is out of range\r\n", b"-ERR DB index is out of range\r\n"),
    ],
)
def test_a_client_that_redis_refuses_gets_the_error_and_runs_nothing(
    replies: bytes, refusal: bytes
) -> None:
    bench = deferred()
    asking(bench, GET + HIT)
    got = b"".join(bench.answer(replies[at : at + 1]) for at in range(len(replies)))
    assert got == refusal
    assert bench.session.closed
    assert GET not in bench.up()


def test_a_client_that_redis_turns_away_at_once_gets_the_error() -> None:
    """As at `maxclients`: the error may come before the handshake is sent."""
    bench = deferred()
    bench.send(GET)
    error = b"-ERR max number of clients reached\r\n"
    assert bench.answer(error) == error
    assert bench.session.closed
    assert bench.up() == b""


def test_redis_hangs_during_the_deferred_handshake() -> None:
    """The client waits. The circuit opens, so that later clients are served."""
    bench = deferred()
    bench.send_at(20.0, HIT + INFO + HIT + GET)
    bench.session.upstream_opened()
    assert bench.up() == HELLO
    assert bench.session.overdue(20.9)
    assert not bench.circuit.open
    assert bench.session.overdue(21.0)
    assert bench.circuit.open
    assert bench.session.overdue(30.0)
    assert bench.down() == b""
    assert bench.answer_at(31.0, MAP) == b""
    assert not bench.circuit.open
    assert bench.answer(OK) + bench.answer(OK) == b""
    assert bench.up() == INFO + SELECT + in_place() + INFO + in_place() + GET


def silent(mode: str, written: bytes) -> Faulty:
    """Redis accepts a connection and `sent` at 10.0, and sends no reply."""
    bench = Faulty(mode)
    bench.send_at(10.0, written)
    bench.session.upstream_opened()
    return bench


@pytest.mark.parametrize(
    ("mode", "written"),
    [
        ("error", SELECT),
        ("allow", SELECT + GET),
        ("allow", GET + SELECT),
        ("allow", bulks(b"MULTI") + SELECT),
        ("allow", SELECT + bulks(b"CLIENT", b"ID")),
        ("allow", SELECT + bulks(b"FOO")),
        ("allow", SELECT + bulks(b"RL.HELP")),
        ("allow", SELECT + bulks(b"SUBSCRIBE", b"c")),
        ("allow", SELECT + b"*1\r\n+"),
        ("allow", bulks(b"HELLO", b"4")),
        ("allow", INFO * (MAX_COMMANDS + 1)),
        ("allow", MAINTENANCE * (MAX_COMMANDS + 1)),
    ],
)
def test_commands_that_redis_may_have_run_get_no_reply_here(mode: str, written: bytes) -> None:
    bench = silent(mode, written + HIT)
    sent = bench.up()
    assert sent
    for now in (11.0, 12.0):
        bench.session.overdue(now)
        assert bench.down() == b""
    assert bench.session.private.status == private_stream.PRIVATE_OPEN
    assert bench.up() == b""


def hung(mode: str, first: bytes) -> Faulty:
    """A client whose first command is `first`, sent at 10 s to a Redis that hangs."""
    bench = Faulty(mode)
    bench.send_at(10.0, first + HIT)
    bench.session.upstream_opened()
    assert bench.up().startswith(first)
    assert bench.session.overdue(10.9)
    assert not bench.session.closed
    return bench


@pytest.mark.parametrize("first", [HELLO, AUTH, INFO, SELECT])
def test_a_client_that_waits_for_its_handshake_is_closed(first: bytes) -> None:
    bench = hung("allow", first)
    assert not bench.session.overdue(11.0)
    assert bench.session.closed
    assert bench.session.context.stats.errors == {"unanswered": 1}
    assert bench.down() == b""


def test_a_client_stays_while_redis_answers_elsewhere() -> None:
    bench = hung("allow", HELLO)
    bench.circuit.replied(10.95)
    assert bench.session.overdue(12.0)
    assert not bench.session.closed
    bench.circuit.timed_out(1, 11.0, 12.0, 1.0)  # from now on Redis answers nowhere
    assert not bench.session.overdue(12.0)
    assert bench.session.closed


def test_a_client_whose_handshake_was_answered_here_waits_for_redis() -> None:
    bench = deferred()
    bench.now = 10.0
    asking(bench)
    bench.session.overdue(11.0)
    assert bench.circuit.open
    assert not bench.session.closed
