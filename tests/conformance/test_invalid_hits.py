"""Invalid commands of the family, which are refused before they reach Redis."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness import ON_ONE_ENGINE, Proxy, Raw, RedisServer, ReplyError, command

INTEGER = "ERR value is not an integer or out of range"
MAX = f"{INTEGER}: max is 1 to 1000000 with ALGO LOG"
WINDOW = "ERR window is not a valid number of seconds"
TOO_LONG = ReplyError("ERR RL command longer than 65536 bytes")
ABORTED = ReplyError("EXECABORT Transaction discarded because of previous errors.")


def arity(name: str) -> str:
    return f"ERR wrong number of arguments for '{name}' command"


# A command of the family as written, and its error: a few of each kind. All others are in
# tests/unit/ratelimit/test_grammar.py.
WRONG = [
    ("RL.HIT", arity("rl.hit")),
    ("rl.hit k 10", arity("rl.hit")),
    ("Rl.Peek k 10", arity("rl.peek")),
    ("RL.REFUND k 10 60", arity("rl.refund")),
    ("RL.RESET", arity("rl.reset")),
    ("RL.BLOCK k", arity("rl.block")),
    ("RL.HELP me", arity("rl.help")),
    ("CL.THROTTLE k 15 30", arity("cl.throttle")),
    ("rl.throttle k 15 30 60 1 MS", arity("rl.throttle")),
    ("RL.HIT k 0 60", MAX),
    ("RL.HIT k 10 60 COST 10001 ALGO zlog", f"{INTEGER}: COST is 0 to 10000 with ALGO ZLOG"),
    ("RL.HIT k 10 0.5 MS", f"{INTEGER}: window is 1 to 315360000000 with MS"),
    ("RL.REFUND k 10 60 0", f"{INTEGER}: n is 1 to 1000000000"),
    ("CL.THROTTLE k 0 0 1", f"{INTEGER}: count is 1 to 9223372036854775807"),
    ("RL.HIT k 10 .5", WINDOW),
    ("RL.BLOCK k x MS", f"{INTEGER}: t is 0 to 315360000000 with MS"),
    ("RL.PEEK k 10 60 GAP x", "ERR GAP is not a valid number of seconds"),
    ("RL.HIT k 10 60 COST 1 cost 1", "ERR syntax error near 'cost'"),
    ("RL.HIT k 10 60 ALGO NOPE", "ERR unknown ALGO 'NOPE'"),
    ("RL.PEEK k 10 60 WAIT 1", "ERR syntax error near 'WAIT'"),
    ("RL.HIT k 10 60 burst 5", "ERR BURST is not supported by ALGO LOG"),
    ("CL.THROTTLE k 1 1 315360000", "ERR rate or burst out of range"),
]


def wrong(text: str) -> bytes:
    return command(*text.split(" "))


@pytest.fixture
def direct(redis_server: RedisServer) -> Iterator[Raw]:
    with redis_server.raw() as raw:
        yield raw


# Earlier commands of the connection: none; hits, which go by lane; commands that require a private
# connection for a while or for good; and the protocol.
SAID: dict[str, list[tuple[str | int, ...]]] = {
    "nothing": [],
    "hits": [("RL.HIT", "warm", 10, 60)] * 3 + [("RL.RESET", "warm")],
    "WATCH": [("WATCH", "other")],
    "HELLO 3": [("HELLO", 3)],
    "FOO": [("FOO",)],
}


@pytest.fixture(params=SAID)
def client(proxy: Proxy, request: pytest.FixtureRequest) -> Iterator[Raw]:
    with proxy.raw() as raw:
        for words in SAID[request.param]:
            assert isinstance(raw.ask(*words), ReplyError) == (words == ("FOO",))
        yield raw


# In MULTI Redis itself has to see the invalid command. Its error is recognised and replaced by the
# proxy's, unless an unknown command was sent before.
in_multi = pytest.mark.parametrize(
    "client", [said for said in SAID if said != "FOO"], indirect=True
)


@ON_ONE_ENGINE
def test_invalid_hits_one_by_one(client: Raw, direct: Raw) -> None:
    for text, error in WRONG:
        assert client.ask(*text.split(" ")) == ReplyError(error), text
    assert direct.ask("DBSIZE") == 0
    assert client.ask("RL.HIT", "k", 10, 60) == [0, 10, 9, -1, 60]


@ON_ONE_ENGINE
def test_invalid_hits_in_a_pipeline(client: Raw, direct: Raw) -> None:
    sent, expected = b"", list[object]()
    for index, (text, error) in enumerate(WRONG):
        sent += command("RL.HIT", "hits", 1000, 60) + wrong(text)
        expected += [[0, 1000, 999 - index, -1, 60], ReplyError(error)]
        if index % 3 == 0:
            sent += command("INCR", "n") + wrong(text) + wrong(text)
            expected += [index // 3 + 1, ReplyError(error), ReplyError(error)]
    client.send(sent + command("ECHO", "end"))
    assert [client.reply() for _ in expected] == expected
    assert client.reply() == b"end"
    assert direct.ask("DBSIZE") == 2


@ON_ONE_ENGINE
def test_invalid_hits_inline(client: Raw) -> None:
    client.send(b"".join(text.encode() + b"\r\n" for text, _ in WRONG))
    for text, error in WRONG:
        assert client.reply() == ReplyError(error), text
    assert client.ask("PING") == "PONG"


@in_multi
def test_invalid_hits_in_multi(client: Raw, direct: Raw) -> None:
    for text, error in WRONG:
        assert client.ask("MULTI") == "OK"
        assert client.ask("RL.HIT", "k", 10, 60) == "QUEUED"
        assert client.ask(*text.split(" ")) == ReplyError(error), text
        assert client.ask("SET", "s", 1) == "QUEUED"
        assert client.ask("EXEC") == ABORTED
    assert direct.ask("DBSIZE") == 0
    assert client.ask("RL.HIT", "k", 10, 60) == [0, 10, 9, -1, 60]


@pytest.mark.parametrize("client", ["FOO"], indirect=True)
def test_invalid_hits_in_multi_after_an_unknown_command(client: Raw, direct: Raw) -> None:
    for text, _ in WRONG:
        assert client.ask("MULTI") == "OK"
        assert isinstance(client.ask(*text.split(" ")), ReplyError)
        assert client.ask("SET", "s", 1) == "QUEUED"
        assert client.ask("EXEC") == ABORTED
    assert direct.ask("DBSIZE") == 0


# -- names outside the family ----------------------------------------------------------------------

UNKNOWN = [
    ("RL.FOO",),
    ("RL.FOO", "a", "b"),
    ("rl.foo", "k", "10", "60"),
    ("Rl.Hits", "k", "10", "60"),
    ("RL.", "k"),
    ("RL", "HIT", "k", "10", "60"),
    ("RL.HIT ", "k", "10", "60"),
    ("RLHIT", "k", "10", "60"),
    ("CL.HIT", "k", "10", "60"),
    ("CL.THROTTLE2", "k", "15", "30", "60"),
    ("RL.FOO", "x" * 200, "y" * 200),
]


def test_unknown_name_gets_the_servers_own_error(client: Raw, direct: Raw) -> None:
    for words in UNKNOWN:
        own = direct.ask(*words)
        assert isinstance(own, ReplyError)
        assert str(own).lower().startswith("err unknown command")
        assert client.ask(*words) == own
        client.send(command("PING") + command(*words) + command("RL.HIT", "k", 1000, 60))
        assert [client.reply() for _ in range(2)] == ["PONG", own]
        assert isinstance(client.reply(), list)


# -- 64 KB -----------------------------------------------------------------------------------------

LIMIT = 65536
ROWS = {
    "a hit": ("RL.HIT {} 10 60", [0, 10, 9, -1, 60]),
    "a look": ("RL.PEEK {} 10 60", [0, 10, 10, -1, 0]),
    "a block": ("RL.BLOCK {} 60", [1, 0, 0, 60, 60]),
    "a refund": ("RL.REFUND {} 10 60 1", [0, 10, 10, -1, 0]),
    "CL.THROTTLE": ("CL.THROTTLE {} 15 30 60", [0, 16, 15, -1, 2]),
    "RL.THROTTLE": ("RL.THROTTLE {} 15 30 60", [0, 16, 15, -1, 2]),
    "RL.RESET": ("RL.RESET {}", 0),
    "RL.RESET of two": ("RL.RESET a {}", 0),
    "a wrong hit": ("RL.HIT {} 10", ReplyError(arity("rl.hit"))),
    "a wrong word": ("RL.HIT k 10 60 {}", ReplyError(f"ERR syntax error near '{'9' * 32}...'")),
    "a wrong number": (
        "RL.HIT k {} 60",
        ReplyError(MAX),
    ),
    "a wrong window": ("RL.HIT k 10 {}", ReplyError(WINDOW)),
    "RL.HELP": ("RL.HELP {}", ReplyError(arity("rl.help"))),
}


def of_size(text: str, size: int) -> bytes:
    """The command whose request is `size` bytes long in total."""
    words: list[bytes | str | int] = [word.encode() for word in text.split(" ")]
    at = words.index(b"{}")
    words[at] = b"9" * 60_000
    words[at] = b"9" * (60_000 + size - len(command(*words)))
    made = command(*words)
    assert len(made) == size
    return made


@ON_ONE_ENGINE
@pytest.mark.parametrize("row", ROWS)
def test_longest_command_is_admitted(client: Raw, row: str) -> None:
    text, expected = ROWS[row]
    client.send(of_size(text, LIMIT))
    assert client.reply() == expected
    client.send(of_size(text, LIMIT + 1))
    assert client.reply() == TOO_LONG
    client.send(command("PING") + of_size(text, LIMIT + 1) + command("ECHO", "x") + wrong("RL.HIT"))
    assert [client.reply() for _ in range(3)] == ["PONG", TOO_LONG, b"x"]
    assert client.reply() == ReplyError(arity("rl.hit"))


@ON_ONE_ENGINE
def test_too_many_words_are_an_error(client: Raw, direct: Raw) -> None:
    direct.ask("SET", "a", 1)
    client.send(command("RL.RESET", *["a"] * 9000))
    assert client.reply() == 1
    direct.ask("SET", "a", 1)
    client.send(command("RL.RESET", *["a"] * 10_000))
    assert client.reply() == TOO_LONG
    further = ["AND", "5", "5"]
    assert client.ask("RL.HIT", "k", 10, 60, *further * 1000) == ReplyError(
        "ERR syntax error near 'AND'"
    )
    assert client.ask("RL.HIT", "k", 10, 60, *further * 3000) == TOO_LONG
    assert direct.ask("DBSIZE") == 1


@in_multi
def test_too_long_command_in_multi_is_an_error(client: Raw, direct: Raw) -> None:
    for text, _ in ROWS.values():
        assert client.ask("MULTI") == "OK"
        client.send(of_size(text, LIMIT + 1))
        assert client.reply() == TOO_LONG
        assert client.ask("RL.HIT", "k", 10, 60) == "QUEUED"
        assert client.ask("EXEC") == ABORTED
    assert direct.ask("DBSIZE") == 0
