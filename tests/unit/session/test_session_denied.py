"""session: commands that its client must not send."""

from __future__ import annotations

import pytest
from rlproxy.resp.commands import CommandTable
from rlproxy.resp.encoding import bulks
from rlproxy.session import command_policy

from tests.unit.session.bench import HIT, PING, PONG, Bench, opened
from tests.unit.session.test_session_faults import Faulty, each_mode

TABLE = command_policy.table(("keys", "config|set", "rl.hit", "set", "ft.x", "exec"), False)
KEYS = bulks(b"KEYS", b"*")
NO_KEYS = b"-NOPERM command 'keys' is denied by rlproxy (--deny-command)\r\n"
NO_HIT = NO_KEYS.replace(b"keys", b"rl.hit")
MULTI = bulks(b"MULTI")


def denying(bench: Bench, table: CommandTable = TABLE) -> Bench:
    bench.session.requests.commands = table
    return bench


@pytest.fixture
def bench() -> Bench:
    return denying(opened())


@each_mode
@pytest.mark.parametrize("way", ["circuit", "behind a greeting", "late", "unreachable"])
def test_a_hit_while_redis_is_away(mode: str, way: str) -> None:
    bench = Faulty(mode)
    bench.session.requests.commands = TABLE
    if way in ("circuit", "behind a greeting"):
        bench.circuit.connect_failed(0.0, "connection refused")
    bench.send(bulks(b"CLIENT", b"SETNAME", b"x") if way == "behind a greeting" else b"")
    bench.send(HIT * 2)
    if way == "late":  # the private connection does not open in time
        bench.session.overdue(2.0)
    elif way == "unreachable" or (way == "behind a greeting" and mode == "error"):
        bench.session.upstream_failed("connection refused")
    assert bench.down().endswith(NO_HIT * 2)
    assert bench.session.context.stats.errors.get("denied") == 2
    assert not bench.session.outstanding()


BROKEN_ONES = [
    (b"*01\r\n" + KEYS, b"*01\r\n"),
    (b"*1\r\n$01\r\nPING\r\n", b"*1\r\n$01\r\n"),
    (b"*2\r\n$4\r\nECHO\r\nping\r\n", b"*2\r\n$4\r\nECHO\r\nping\r\n"),
    (b"*-0\r\n" + PING, b"*-0\r\n"),
]


@pytest.mark.parametrize(("sent", "passed"), BROKEN_ONES, ids=lambda data: repr(data[:20]))
def test_of_what_is_broken_only_the_mistake_is_passed_on(
    bench: Bench, sent: bytes, passed: bytes
) -> None:
    """What stands behind it might be a command to another parser."""
    assert bench.send(PING + sent) == PING + passed
    assert bench.send(PING, KEYS, b"\r\n") == b""
    assert (
        bench.answer(PONG + b"-ERR Protocol error: x\r\n") == PONG + b"-ERR Protocol error: x\r\n"
    )


NAMES = [b"KEYS\0", b"keys\0aa", b"Keys\0" + b"x" * 59, b"KEYS\0" + b"x" * 60]
NAMES += [b"KEYS\0" + b"x" * 100_000, b"CONFIG\0" + b"x" * 100]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: repr(name[:20]))
def test_names_that_redis_may_take_for_a_denied_one(name: bytes) -> None:
    for step in (1 << 20, 7):
        bench = denying(opened())
        data = bulks(name, b"SET", b"a", b"1")
        for at in range(0, len(data), step):
            assert bench.send(data[at : at + step]) == b""
        assert bench.down().startswith((b"-NOPERM command 'k", b"-ERR CONFIG command of", b"-NOPE"))
        assert bench.send(PING) == PING
