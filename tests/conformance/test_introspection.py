"""COMMAND through the proxy: Redis' own bytes in Redis' own order, with the proxy's entries
added.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from rlproxy.ratelimit.command_entries import ENTRIES
from rlproxy.resp.replies import ReplyFramer

from tests.conformance.compare import PAUSE_S
from tests.harness import DEADLINE_S, ON_EVERY_ENGINE, Proxy, Raw, RedisServer, command
from tests.unit.session.entries import split

OURS = {b"$%d\r\n%b\r\n" % (len(entry.name), entry.name) for entry in ENTRIES}
PING = command("PING")
HIT = command("RL.HIT", "k", 1_000_000, 60)
# the proxy's reply, Redis' reply -> the proxy's without its own entries
Edit = Callable[[bytes, bytes], bytes]

pytestmark = ON_EVERY_ENGINE


@pytest.fixture(scope="module", autouse=True)
def with_stable_order(module_server: RedisServer) -> None:
    """Redis 7.0 lists subcommands in the order of a table that is still growing after the start:
    each look-up moves a part of it, and the order changes.
    """
    with module_server.raw() as raw:
        for _ in range(32):
            for word in ("ACL", "CLIENT", "COMMAND", "CONFIG", "SCRIPT"):
                assert isinstance(raw.ask(word, "HELP"), list)


@pytest.fixture(params=[2, 3], ids=["RESP2", "RESP3"])
def protocol(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def direct(redis_server: RedisServer, protocol: int) -> Iterator[Raw]:
    with redis_server.raw() as raw:
        raw.ask("HELLO", protocol)
        yield raw


@pytest.fixture
def proxied(proxy: Proxy, protocol: int) -> Iterator[Raw]:
    with proxy.raw() as raw:
        raw.ask("HELLO", protocol)
        yield raw


def replies(raw: Raw, count: int) -> list[bytes]:
    """The next `count` replies as bytes."""
    framer = ReplyFramer()
    raw.sock.settimeout(DEADLINE_S)
    found: list[bytes] = []
    while len(found) < count:
        data = raw.sock.recv(1 << 20)
        assert data, found
        framer.feed(data)
        while frame := framer.frame():
            found.append(frame)
    assert len(found) == count
    assert framer.pos == len(framer.buf)
    return found


def ask(raw: Raw, *words: bytes | str | int) -> bytes:
    raw.send(command(*words))
    return replies(raw, 1)[0]


def name_of(entry: bytes) -> bytes:
    """The name in an entry of COMMAND as a bulk; a bulk is returned unchanged."""
    return split(entry)[1][0] if entry[:1] == b"*" and entry[:4] != b"*-1\r" else entry


# -- without the proxy's entries -------------------------------------------------------------------


def same(got: bytes, _: bytes) -> bytes:
    return got


def fewer(got: bytes, _: bytes) -> bytes:
    return b":%d\r\n" % (int(got[1:]) - len(OURS))


def last(got: bytes, _: bytes) -> bytes:
    """The proxy's are the last values, each once."""
    if got[:1] == b"-":
        return got
    line, values = split(got)
    assert line == b"*%d\r\n" % len(values)
    names = [name_of(value) for value in values]
    own = next((at for at, name in enumerate(names) if name in OURS), len(names))
    assert set(names[own:]) <= OURS
    assert len(set(names[own:])) == len(names) - own
    return b"*%d\r\n" % own + b"".join(values[:own])


def last_pairs(got: bytes, _: bytes) -> bytes:
    """The proxy's are the last pairs of a map, which in RESP2 is an array."""
    if got[:1] == b"-":
        return got
    line, values = split(got)
    own = next((at for at, name in enumerate(values) if name in OURS), len(values))
    assert set(values[own::2]) <= OURS
    assert {value[:1] for value in values[own + 1 :: 2]} <= {line[:1]}
    per = 2 if line[:1] == b"%" else 1
    assert int(line[1:]) * per == len(values)
    return line[:1] + b"%d\r\n" % (own // per) + b"".join(values[:own])


def in_place(got: bytes, direct: bytes) -> bytes:
    """The proxy's stand where Redis returns nil."""
    line, values = split(got)
    theirs = split(direct)[1]
    assert len(values) == len(theirs)
    pairs = zip(values, theirs, strict=True)
    nils = (b"$-1\r\n", b"_\r\n")
    return line + b"".join(
        nil if nil in nils and name_of(value) in OURS else value for value, nil in pairs
    )


ROWS: list[tuple[str, Edit]] = [
    ("COMMAND", last),
    ("COMMAND INFO", last),
    ("COMMAND LIST", last),
    ("COMMAND LIST FILTERBY PATTERN *", same),
    ("COMMAND LIST FILTERBY ACLCAT WRITE", same),
    ("COMMAND DOCS", last_pairs),
    ("COMMAND DOCS get rl.hit set RL.HELP rl.hit", last_pairs),
    ("COMMAND DOCS rl.peek", last_pairs),
    ("COMMAND DOCS get nosuch", same),
    ("COMMAND INFO rl.hit get nosuch RL.RESET set rl.hit client", in_place),
    ("COMMAND INFO cl.throttle", in_place),
    ("COMMAND INFO get nosuch rl.foo rl.hit|x", same),
    ("COMMAND COUNT", fewer),
    ("command count", fewer),
    ("COMMAND COUNT x", same),
    ("COMMAND HELP", same),
    ("COMMAND FOO", same),
    ("COMMAND FOO rl.hit", same),
    ("COMMAND GETKEYS", same),
    ("COMMAND GETKEYS GET k", same),
    ("COMMAND GETKEYS MGET rl.hit rl.reset", same),
    ("COMMAND GETKEYS RL.FOO k", same),
    ("COMMAND GETKEYSANDFLAGS MGET a b", same),
    ("COMMAND GETKEYSANDFLAGS RL.FOO k", same),
]


def check(edit: Edit, got: bytes, expected: bytes, what: str) -> None:
    if expected[:1] == b"-":
        assert got == expected, what
        return
    without = edit(got, expected)
    at = next((n for n, (a, b) in enumerate(zip(without, expected, strict=False)) if a != b), -1)
    assert without == expected, (what, at, without[at : at + 80], expected[at : at + 80])
    if edit not in (same, last):
        assert got != expected, what


@pytest.mark.parametrize("way", ["whole", "slow", "inline"])
def test_replies_without_our_entries_are_redis_own(direct: Raw, proxied: Raw, way: str) -> None:
    """In one pipeline, between other commands and hits."""
    requests = [command(*line.split()) for line, _ in ROWS]
    direct.send(b"".join(requests))
    expected = replies(direct, len(ROWS))
    if way == "inline":
        requests = [line.encode() + b"\r\n" for line, _ in ROWS]
    written = b"".join(PING + HIT + request for request in requests) + HIT
    size = 3 if way == "slow" else len(written)
    for at in range(0, len(written), size):
        proxied.send(written[at : at + size])
        time.sleep(PAUSE_S)
    got = replies(proxied, 3 * len(ROWS) + 1)
    assert set(got[0:-1:3]) == {b"+PONG\r\n"}
    hits = [got[at] for at in range(1, len(got), 3)] + [got[-1]]
    assert hits == [
        b"*5\r\n:0\r\n:1000000\r\n:%d\r\n:-1\r\n:60\r\n" % (999_999 - at) for at in range(len(hits))
    ]
    for (line, edit), reply, theirs in zip(ROWS, got[2::3], expected, strict=True):
        check(edit, reply, theirs, line)


# -- in the server's own form ----------------------------------------------------------------------


def test_entries_have_the_form_of_similar_commands(proxied: Raw) -> None:
    """Except arity and names, the keys, key flags and tips are those of a similar command."""
    pairs = [("rl.peek", "get"), ("rl.hit", "incr"), ("rl.reset", "del"), ("rl.help", "ping")]
    names = [name for pair in pairs for name in pair]
    values = split(ask(proxied, "COMMAND", "INFO", *names))[1]
    listed = {name_of(value): value for value in split(ask(proxied, "COMMAND"))[1]}
    for ours, theirs in zip(values[::2], values[1::2], strict=True):
        fields, wanted = split(ours)[1], split(theirs)[1]
        assert len(fields) == 10
        fields = fields[: len(wanted)]  # Redis 6.2 has seven
        assert [field[:1] for field in fields[:9]] == [field[:1] for field in wanted[:9]]
        assert fields[3:6] == wanted[3:6]
        assert fields[8:9] == wanted[8:9]
        assert fields[9:] in ([], [b"*0\r\n"])  # some servers send an empty set
        assert listed[fields[0]] == ours
        if fields[0] == b"$8\r\nrl.reset\r\n":
            assert fields[6:8] == wanted[6:8]


def test_docs_have_the_form_of_similar_commands(proxied: Raw, module_server: RedisServer) -> None:
    reply = ask(proxied, "COMMAND", "DOCS", "unlink", "xlen", "rl.reset", "rl.help")
    if reply[:1] == b"-":
        assert module_server.version < (7,)
        return
    values = split(reply)[1]
    unlink, reset, help_ = (split(values[at]) for at in (1, 5, 7))
    assert unlink[0] == reset[0]
    assert int(help_[0][1:]) == int(reset[0][1:]) - (1 if reset[0][:1] == b"%" else 2)
    assert unlink[1][::2] == reset[1][::2]  # summary, since, group, complexity, arguments
    arguments = reset[1][-1]
    if module_server.version < (7, 2):
        arguments = arguments.replace(b"$12\r\ndisplay_text\r\n$3\r\nkey\r\n", b"")
        arguments = arguments.replace(b"%5", b"%4").replace(b"*10", b"*8")
    assert arguments == unlink[1][-1]


GETKEYS: list[tuple[str, str]] = [
    ("RL.HIT k 10 60", "INCRBY k 10"),
    ("rl.hit k 10 60 COST 3", "INCRBY k 10"),
    ("RL.RESET a b c", "DEL a b c"),
    ("RL.PEEK k 10 60", "GETRANGE k 0 1"),
    ("RL.REFUND k 10 60 1", "INCRBY k 10"),
    ("RL.BLOCK k 60", "INCRBY k 10"),
    ("RL.BLOCK k", "GET a b"),
    ("CL.THROTTLE k 1 2 3", "INCRBY k 10"),
    ("RL.HIT k 10", "GET a b"),
    ("RL.RESET", "DEL"),
    ("RL.HELP x", "PING x"),
    ("RL.HELP", "PING"),
]


def test_getkeys_returns_the_keys(direct: Raw, proxied: Raw) -> None:
    for ours, like in GETKEYS:
        for word in ("GETKEYS", "getkeys"):
            expected = ask(direct, "COMMAND", word, *like.split())
            assert ask(proxied, "COMMAND", word, *ours.split()) == expected, ours


@pytest.mark.parametrize("before", [["MULTI", "EXEC"], ["NO.SUCH"]], ids=" ".join)
def test_in_one_write_with_commands_whose_replies_decide(proxied: Raw, before: list[str]) -> None:
    counted = ask(proxied, "COMMAND", "COUNT")
    proxied.send(b"".join(map(command, before)) + command("COMMAND", "COUNT") + command("PING"))
    assert replies(proxied, len(before) + 2)[-2:] == [counted, b"+PONG\r\n"]


# -- unchanged replies -----------------------------------------------------------------------------


def test_in_a_transaction(direct: Raw, proxied: Raw) -> None:
    inside = ["COUNT", "INFO rl.hit get", "GETKEYS RL.HIT k 1 2", "LIST", "DOCS rl.hit", "FOO"]
    for words in inside:
        lines = ["MULTI", f"COMMAND {words}", "EXEC", "PING"]
        written = b"".join(command(*line.split()) for line in lines)
        direct.send(written)
        proxied.send(written)
        assert replies(proxied, 4) == replies(direct, 4)
    assert ask(proxied, "COMMAND", "COUNT") != ask(direct, "COMMAND", "COUNT")


def test_behind_a_command_that_leaves_state(direct: Raw, proxied: Raw) -> None:
    for raw in (direct, proxied):
        assert ask(raw, "NO.SUCH").startswith(b"-ERR unknown command")
    assert ask(proxied, "COMMAND", "COUNT") != ask(direct, "COMMAND", "COUNT")
    for raw in (direct, proxied):
        assert ask(raw, "CLIENT", "CACHING", "YES").startswith(b"-ERR")  # it has left none
    assert ask(proxied, "COMMAND", "COUNT") != ask(direct, "COMMAND", "COUNT")
    for raw in (direct, proxied):
        assert ask(raw, "CLIENT", "TRACKING", "ON") == b"+OK\r\n"
    assert ask(proxied, "COMMAND", "COUNT") == ask(direct, "COMMAND", "COUNT")
    assert ask(proxied, "RESET") == ask(direct, "RESET") == b"+RESET\r\n"
    assert ask(proxied, "COMMAND", "COUNT") != ask(direct, "COMMAND", "COUNT")


def test_long_arguments_are_not_inspected(direct: Raw, proxied: Raw) -> None:
    for words in (("GETKEYS", "RL.HIT", "k" * 20_000, 1, 2), ("INFO", *["rl.hit"] * 6000)):
        expected = ask(direct, "COMMAND", *words)
        assert ask(proxied, "COMMAND", *words) == expected
        proxied.send(PING + HIT)
        assert replies(proxied, 2)[0] == b"+PONG\r\n"


SUBSCRIBED: list[tuple[str, Edit]] = [
    ("COMMAND LIST", last),
    ("COMMAND", last),
    ("COMMAND COUNT", fewer),
    ("COMMAND INFO rl.hit", in_place),
    ("COMMAND DOCS rl.hit", last_pairs),
]


@pytest.mark.parametrize(("line", "edit"), SUBSCRIBED)
def test_before_a_subscription(direct: Raw, proxied: Raw, line: str, edit: Edit) -> None:
    """In RESP3 its confirmation is a push, which must not be inserted into the previous reply."""
    expected = ask(direct, *line.split())
    confirmed = b"3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n"
    proxied.send(command(*line.split()) + command("SUBSCRIBE", "c"))
    got = b""
    while not got.endswith(confirmed):
        got += proxied.sock.recv(1 << 20)
    framer = ReplyFramer()
    framer.feed(got)
    check(edit, framer.frame(), expected, line)
    assert got[framer.pos + 1 :] == confirmed


def test_user_without_the_right_gets_the_error(redis_server: RedisServer, proxy: Proxy) -> None:
    lines = ["COUNT", "INFO rl.hit", "GETKEYS RL.HIT k 1 2", "DOCS rl.hit", "LIST", ""]
    with redis_server.raw() as admin:
        rights = ("on", ">pw", "~*", "+@all", "-command")
        assert admin.ask("ACL", "SETUSER", "nobody", *rights) == "OK"
        try:
            with redis_server.raw() as direct, proxy.raw() as proxied:
                for raw in (direct, proxied):
                    assert raw.ask("AUTH", "nobody", "pw") == "OK"
                written = b"".join(command("COMMAND", *line.split()) + HIT for line in lines)
                proxied.send(written)
                got = replies(proxied, 2 * len(lines))
                for line, reply in zip(lines, got[::2], strict=True):
                    assert reply == ask(direct, "COMMAND", *line.split())
                    assert reply.startswith(b"-NOPERM") or b"Unknown subcommand" in reply
                assert all(reply.startswith(b"*5") for reply in got[1::2])
        finally:
            admin.ask("ACL", "DELUSER", "nobody")


def test_before_the_password(redis_server: RedisServer, proxy: Proxy) -> None:
    with redis_server.raw() as admin:
        admin.ask("CONFIG", "SET", "requirepass", "pw")
        try:
            with redis_server.raw() as direct, proxy.raw() as proxied:
                for line in ("COUNT", "INFO rl.hit", "GETKEYS RL.HIT k 1 2", ""):
                    words = ("COMMAND", *line.split())
                    assert ask(proxied, *words) == ask(direct, *words)
                many = command("COMMAND", "INFO", *["rl.hit"] * 12)
                proxied.send(many)
                direct.send(many)
                assert proxied.line() == direct.line()  # newer ones: a protocol error, and closed
        finally:
            admin.ask("CONFIG", "SET", "requirepass", "")
