"""Subscriptions: the number of replies, commands that are refused while subscribed, and pushes
between replies.
"""

from __future__ import annotations

import pytest

from tests.conformance.compare import HIT, Bench, Case, Swap, case, name_of
from tests.harness import Proxy, Raw, RedisServer, command

PING = command("PING")
HELLO3 = command("HELLO", 3)
SUB = command("SUBSCRIBE", "a", "b", "c")
UNSUB = command("UNSUBSCRIBE")
EVAL = command("EVAL", "return 1", 0)
PUBLISH = command("PUBLISH", "a", "message")
RESET = command("RESET")
WRONG = Swap(command("GET"), command("RL.HIT", "k"))  # the wrong number of arguments

RESP2 = [
    case("three replies", SUB),
    case("one per channel, at least one", UNSUB, PING, SUB, UNSUB, PING, UNSUB, PING),
    case("patterns", command("PSUBSCRIBE", "a*", "b*"), command("PUNSUBSCRIBE"), HIT, PING),
    case("shards", command("SSUBSCRIBE", "a"), PING, command("SUNSUBSCRIBE"), PING),
    case("UNSUBSCRIBE alone, then hits", HIT, UNSUB, HIT, HIT, PING),
    case("UNSUBSCRIBE without a subscription", command("UNSUBSCRIBE", "x", "y"), HIT, PING, HIT),
    case("SUBSCRIBE without a channel", command("SUBSCRIBE"), HIT, HIT, PING),
    case("other commands are refused", SUB, command("GET", "k"), PING, command("PING", "x"),
         PUBLISH),
    case("a hit is refused as EVAL", SUB, HIT, PING, HIT),
    case("EVAL and hits refused by turns", SUB, EVAL, HIT, EVAL, EVAL, HIT, HIT, PING),
    case("an unknown hit is unknown", SUB, command("RL.HITS", "k"), PING),
    case("hits before and after", HIT, SUB, HIT, UNSUB, HIT, PING, HIT),
    case("unknown and wrong commands", SUB, command("FOO"), command("GET"), HIT, PING),
    case("in MULTI's wake", command("MULTI"), HIT, command("EXEC"), SUB, HIT, PING),
    case("MULTI is refused", SUB, command("MULTI"), HIT, UNSUB, HIT, PING),
    case("HELLO 3 while subscribed", SUB, HELLO3, HIT, PING),
    case("RESET while subscribed", SUB, HIT, RESET, HIT, PING, HIT),
    case("QUIT while subscribed", SUB, HIT, command("QUIT"), HIT),
    case("broken bytes while subscribed", SUB, HIT, b"*x\r\n", HIT),
    case("an inline hit while subscribed", SUB, b"ping\r\n", b"subscribe d\r\n", HIT, PING),
    case("SELECT is refused", SUB, command("SELECT", 2), HIT, UNSUB, HIT, HIT),
    case("many channels", command("SUBSCRIBE", *range(200)), HIT, UNSUB, HIT, PING),
]  # fmt: skip

RESP3 = [
    case("confirmations are pushes", HELLO3, SUB, UNSUB, PING, HIT),
    case("a wrong hit before a confirmation", HELLO3, WRONG, SUB, PING,
         rewrite=[(b"'get'", b"'rl.hit'")]),
    case("everything is allowed", HELLO3, SUB, command("GET", "x"), HIT, PING, EVAL, HIT),
    case("a message to oneself", HELLO3, SUB, HIT, PUBLISH, HIT, PUBLISH, PUBLISH, PING, HIT),
    case("a message behind a hit", HELLO3, HIT, HIT, SUB, PUBLISH, HIT, UNSUB, PUBLISH, HIT, PING),
    case("patterns", HELLO3, command("PSUBSCRIBE", "*"), PUBLISH, HIT, PING),
    case("shards", HELLO3, command("SSUBSCRIBE", "a"), command("SPUBLISH", "a", "m"), HIT, PING),
    case("an error beside pushes", HELLO3, SUB, command("FOO"), HIT, command("GET"), PUBLISH, HIT),
    case("a transaction beside pushes", HELLO3, SUB, command("MULTI"), HIT, PUBLISH,
         command("EXEC"),
         HIT, PING),
    case("back to RESP2", HELLO3, SUB, command("HELLO", 2), HIT, PING),
    case("RESET", HELLO3, SUB, HIT, RESET, HIT, PING, HIT),
    case("tracking beside subscriptions", HELLO3, SUB, command("CLIENT", "TRACKING", "ON"),
         command("GET", "x"), command("SET", "x", 1), HIT, PING),
    case("big pushes", HELLO3, SUB, command("PUBLISH", "a", "m" * 100_000), HIT, PING, HIT),
]  # fmt: skip


@pytest.mark.parametrize("row", RESP2, ids=name_of)
def test_subscriptions_in_resp2(bench: Bench, row: Case) -> None:
    bench.compare(row)


@pytest.mark.parametrize("row", RESP3, ids=name_of)
def test_subscriptions_in_resp3(bench: Bench, row: Case) -> None:
    bench.compare(row)


def conversation(raw: Raw, publisher: RedisServer, hit: bytes, resp: int) -> list[object]:
    """A subscriber that reads each message before it continues."""
    got: list[object] = []
    if resp == 3:
        raw.send(HELLO3)
        raw.reply()
    raw.send(command("SUBSCRIBE", "a"))
    got.append(raw.reply())
    with publisher.raw() as other:
        for number in range(3):
            other.ask("PUBLISH", "a", number)
            got.append(raw.reply())
            if resp == 3:
                raw.send(hit)
                got.append(raw.reply())
    raw.send(command("UNSUBSCRIBE", "a"))
    got.append(raw.reply())
    raw.send(hit + PING)
    got += [raw.reply(), raw.reply()]
    return got


@pytest.mark.parametrize("resp", [2, 3])
def test_messages_of_other_clients_arrive(
    redis_server: RedisServer, proxy: Proxy, resp: int
) -> None:
    with redis_server.raw() as raw:
        expected = conversation(raw, redis_server, HIT.direct, resp)
        raw.ask("FLUSHALL")
    with proxy.raw() as raw:
        assert conversation(raw, redis_server, HIT.proxied, resp) == expected


def test_invalidations_by_other_clients_arrive_at_once(
    redis_server: RedisServer, proxy: Proxy
) -> None:
    answers = []
    for raw, hit in ((redis_server.raw(), HIT.direct), (proxy.raw(), HIT.proxied)):
        with raw, redis_server.raw() as other:
            other.ask("FLUSHALL")
            raw.send(HELLO3 + hit)
            raw.reply()
            got = [raw.reply(), raw.ask("CLIENT", "TRACKING", "ON", "BCAST")]
            for key in ("x", "y"):
                other.ask("SET", key, 1)
                got.append(raw.reply())
            raw.send(hit)
            got += sorted([raw.reply(), raw.reply()], key=repr)  # its own key's push, and the reply
            answers.append(got)
    assert answers[0] == answers[1]
