"""Boundaries of commands, and the server's replies to malformed bytes."""

from __future__ import annotations

import pytest

from tests.conformance.compare import (
    HIT,
    INLINE_HIT,
    WRONG_HIT,
    Bench,
    Case,
    case,
    hit,
    name_of,
    refused,
)
from tests.harness import Proxy, RedisServer, command

PING = command("PING")


def lenient(data: bytes) -> bytes:
    """The same request, with one byte after every CR replaced that Redis does not check."""
    return data.replace(b"\r\n", b"\rX")


NOTHING = [
    case("inline ended by LF", b"PING\n"),
    case("inline in blanks", b"  ping  \r\n"),
    case("inline with tabs", b"\techo\t \thi\t\r\n"),
    case("inline with an argument", b"PING hello\r\n"),
    case("blank line", b"\r\n", PING),
    case("lone LF", b"\n", PING),
    case("line of blanks", b"   \r\n", PING),
    case("line of tabs", b"\t\t\n", PING),
    case("many blank lines", b"\r\n" * 50, PING),
    case("no elements", b"*0\r\n", PING),
    case("minus one element", b"*-1\r\n", PING),
    case("minus ten elements", b"*-10\r\n", PING),
    case("many of no elements", b"*0\r\n*-1\r\n*-7\r\n" * 5, PING),
    case("nothing at all between hits", HIT, b"\r\n*0\r\n*-1\r\n  \n", HIT),
    case("both kinds in one pipeline", b"PING a\r\n", PING, b"ping b\n", PING, b"PING\r\n"),
    case("both kinds and hits", b"PING a\r\n", HIT, b"ping b\n", INLINE_HIT, b"\n", HIT, PING),
    case("only part of an inline", b"PI"),
    case("only part of a header", PING, b"*1\r"),
    case("only part of a name", PING, b"*1\r\n$4\r\nPI"),
    case("only part of a hit", HIT, b"*4\r\n$6\r\nRL.H"),
    case("all but a hit's last byte", HIT, HIT.proxied[:-1]),
    case("an inline hit without its end", HIT, b"rl.hit k 10"),
    case("empty name", command(""), PING),
    case("empty name with arguments", command("", "x"), PING),
    case("empty arguments", command("SET", "", ""), command("GET", "")),
    case("unknown command", command("FOO", "a", "b"), PING),
    case("unknown command with binary", command(b"\xff\x00\r\n\x80", b"\0"), PING),
    case("unknown command of 65 bytes", command("x" * 65, "y"), PING),
    case("unknown command of 200 bytes", command("x" * 200, "y" * 200), PING),
    case("unknown inline command", b"foo bar baz\r\n", PING),
    case("unknown inline command with bytes over 127", b"f\xc3\xb6\xff \x80\r\n", PING),
    case("arity", command("GET"), command("GET", "a", "b"), PING),
    case("mixed case", command("pInG"), command("SeT", "a", "1"), command("gEt", "a")),
    case("binary key and value", command("SET", b"\0\r\n\xff", bytes(range(256)))),
    case("command count as in Redis", command("COMMAND", "INFO", "get"), PING),
    case("configuration passes", command("CONFIG", "GET", "maxmemory"), PING),
]

INLINE = [
    case("double quotes", b'set k "a b"\r\nget k\r\n'),
    case("escapes", rb'echo "\n\r\t\b\a\\\"\x41\xfF"', b"\r\n"),
    case("unknown escapes", rb'echo "\q\x4\xzz\0\'"', b"\r\n"),
    case("single quotes", rb"echo 'it\'s \n \" \\'", b"\r\n"),
    case("empty words", b"set \"\" ''\r\nget ''\r\n"),
    case("quotes within a word", b'echo a"b c"\r\n', PING),
    case("quotes around the name", b"\"PING\"\r\n'ping' x\r\n"),
    case("a quoted line feed is the end", b'echo "a\nb"\r\n', PING),
    case("unbalanced double quote", b'echo "a\r\n', PING),
    case("unbalanced single quote", b"echo 'a\r\n", PING),
    case("closing double quote without blank", b'echo "a"b\r\n', PING),
    case("closing single quote without blank", b"echo 'a'b\r\n", PING),
    case("backslash at the end of quotes", b'echo "a\\\r\n', PING),
    case("two quoted words without blank", b"echo 'a''b'\r\n", PING),
    case("unbalanced behind commands", PING, b"ping x\r\n", b'echo "\r\n', PING),
    case("unbalanced behind hits", HIT, INLINE_HIT, b'rl.hit "k 10 60\r\n', HIT),
    case("carriage return within", b"echo a\rb\r\n", PING),
    case("two carriage returns", b"PING\r\r\n", PING),
    case("vertical tab and form feed", b"echo\x0ba\x0c\r\n", PING),
    case("telnet hit", INLINE_HIT),
    case("telnet hit in capitals", hit(written=b"  RL.HIT\tk 10  60 \n")),
    case("telnet hit in quotes", hit(written=b"\"rl.hit\" 'k' \"1\\x30\" '60'\r\n")),
    case("telnet hit with a quoted key", hit("a b", b'rl.hit "a b" 10 60\r\n'), PING),
    case("telnet hit with a binary key", hit("a\r\n\0b", b'rl.hit "a\\r\\n\\x00b" 10 60\r\n')),
    case(
        "telnet hit that is wrong",
        refused(b"rl.hit k\r\n", "ERR wrong number of arguments for 'rl.hit' command"),
        PING,
    ),
    case("telnet hit in mixed case", hit(written=b"rL.HiT k 10 60\n"), PING),
    case("multibulk hit in mixed case", hit(written=command("rL.hIt", "k", 10, 60)), PING),
    case("wrong hit", WRONG_HIT, HIT, WRONG_HIT, PING),
    case(
        "a name similar to a command's", command("RL.HITS", "k", 10, 60), command("RL.", "k"), PING
    ),
    case("an inline name similar to a command's", b"rl.hi k 10 60\r\nrl\r\n", PING),
]

BROKEN = [
    case(what, data, PING)
    for what, data in (
        ("star alone", b"*\r\n"),
        ("star and leading zero", b"*01\r\n"),
        ("star and two zeros", b"*00\r\n"),
        ("star and plus", b"*+1\r\n"),
        ("star and minus zero", b"*-0\r\n"),
        ("star and minus", b"*-\r\n"),
        ("star and letters", b"*abc\r\n"),
        ("star and blank", b"* 1\r\n"),
        ("star, number, blank", b"*1 \r\n"),
        ("star and 3000000000", b"*3000000000\r\n"),
        ("star and 20 digits", b"*99999999999999999999\r\n"),
        ("star and 20 digits below zero", b"*-99999999999999999999\r\n"),
        ("a word for a bulk", b"*1\r\nfoo\r\n"),
        ("a number for a bulk", b"*1\r\n:4\r\n"),
        ("an array for a bulk", b"*1\r\n*1\r\n"),
        ("an empty line for a bulk", b"*1\r\n\r\n"),
        ("bulk of minus one", b"*1\r\n$-1\r\n"),
        ("bulk with a leading zero", b"*1\r\n$04\r\nPING\r\n"),
        ("bulk with a plus", b"*1\r\n$+4\r\nPING\r\n"),
        ("bulk with a blank", b"*1\r\n$ 4\r\nPING\r\n"),
        ("bulk without length", b"*1\r\n$\r\n"),
        ("bulk of 536870913", b"*1\r\n$536870913\r\n"),
        ("bulk of 20 digits", b"*1\r\n$99999999999999999999\r\n"),
        ("bulk with letters", b"*1\r\n$4x\r\nPING\r\n"),
        ("second bulk of minus one", b"*2\r\n$4\r\nECHO\r\n$-1\r\n"),
        ("second bulk a word", b"*2\r\n$4\r\nECHO\r\nfoo\r\n"),
        ("second bulk of a hit", b"*4\r\n$6\r\nRL.HIT\r\n$-5\r\n"),
        ("last bulk of a hit", HIT.proxied[:-8] + b"+60\r\n"),
        ("LF without CR in a header", b"*1\n$4\nPING\n"),
    )
]
# One of each error: what precedes it makes no other difference.
BEHIND_OTHERS = [
    case(f"{row.name} behind {what}", *before, *row.pieces)
    for row in BROKEN
    if row.name in ("star and letters", "a word for a bulk", "bulk of minus one")
    for what, before in (("PING", (PING,)), ("a hit", (HIT, HIT)))
]

LIMITS = [
    case("1048576 elements are begun", PING, b"*1048576\r\n$4\r\nECHO\r\n$1\r\nx\r\n"),
    case("1048577 elements", PING, b"*1048577\r\n$4\r\nPING\r\n"),
    case("2147483647 elements", PING, b"*2147483647\r\n$4\r\nPING\r\n"),
    case("2147483648 elements", PING, b"*2147483648\r\n$4\r\nPING\r\n"),
    case("a bulk of 512 MB is begun", PING, b"*2\r\n$4\r\nECHO\r\n$536870912\r\nabc"),
    case("a name of 512 MB is begun", PING, b"*1\r\n$536870912\r\nabc"),
    case("inline of 100 KB without end", PING, b"a" * 100_000),
    case("blanks of 100 KB without end", PING, b" " * 100_000),
    case("inline of 60 KB", b"echo " + b"a" * 60_000 + b"\r\n", PING),
    case("hits, then inline of 100 KB without end", HIT, HIT, b"a" * 100_000),
    case("star and 100 KB of digits", PING, b"*" + b"1" * 100_000),
    case("star and 100 KB of zeros", PING, b"*" + b"0" * 100_000),
    case("star and 100 KB of letters", PING, b"*" + b"x" * 100_000),
    case("bulk header of 100 KB", PING, b"*2\r\n$4\r\nECHO\r\n$" + b"1" * 100_000),
    case("bulk header of 100 KB in a hit", HIT, b"*4\r\n$6\r\nRL.HIT\r\n$" + b"1" * 100_000),
    case("first bulk header of 100 KB", PING, b"*1\r\n$" + b"1" * 100_000),
    case("a header of 40 digits, unfinished", PING, b"*" + b"1" * 40),
    case("a header of 40 bytes that is no number, unfinished", PING, b"*abc" + b"x" * 40),
    case("a bulk header that is no number, unfinished", PING, b"*1\r\n$abc"),
    case("a hit of 70 KB", HIT, refused(command("RL.HIT", "k" * 70_000, 10, 60),
         "ERR RL command longer than 65536 bytes"), HIT, PING),
    case("a hit of 200 KB", refused(command("RL.HIT", "k" * 200_000, 10, 60),
         "ERR RL command longer than 65536 bytes"), PING, HIT),
    case("a hit of many arguments", refused(command("RL.HIT", *["k"] * 20_000),
         "ERR RL command longer than 65536 bytes"), PING, HIT),
    case("a hit with a key of 60 KB", hit("k" * 60_000), hit("k" * 60_000), PING),
    case("a hit of 70 KB that breaks off", HIT,
         refused(b"*4\r\n$6\r\nRL.HIT\r\n$70000\r\n" + b"k" * 70_000 + b"\r\n",
                 "ERR RL command longer than 65536 bytes"), b""),
]  # fmt: skip

LENIENT = [
    case("byte after a CR", b"*1\rX$4\rXPING\r\n", PING),
    case("two bytes after a bulk", b"*1\r\n$4\r\nPINGXX", PING),
    case("all of them", lenient(command("SET", "k", "v")), lenient(command("GET", "k"))),
    case("a lenient hit", hit(written=lenient(command("RL.HIT", "k", 10, 60))), HIT, PING),
    case("a hit lenient after its name", hit(written=b"*4\r\n$6\r\nRL.HIT..$1\r\nk\r\n$2\r\n10\r\n"
         b"$2\r\n60\r\n"), PING),
    case("a hit lenient after its key", hit(written=b"*4\r\n$6\r\nRL.HIT\r\n$1\r\nk--$2\r\n10\r\n"
         b"$2\r\n60\r\n"), PING),
    case("a hit lenient at its end", HIT, hit(written=HIT.proxied[:-2] + b"\0\0"), HIT),
    case("a hit lenient in its header", hit(written=b"*4\rX" + HIT.proxied[4:]), HIT),
    case("a lenient SELECT", lenient(command("SELECT", "2")), HIT, HIT),
    case("a lenient AUTH", lenient(command("AUTH", "x", "y")), HIT),
    case("a lenient MULTI", lenient(command("MULTI")), HIT, lenient(command("EXEC")), HIT),
]  # fmt: skip

HTTP = [
    case("POST", b"POST / HTTP/1.1\r\nHost: x\r\n\r\n"),
    case("post in lower case", b"post\r\n", PING),
    case("Host", b"Host: localhost\r\n", PING),
    case("host in lower case", b"host: localhost\r\n", PING),
    case("GET with Host", b"GET / HTTP/1.1\r\n", b"Host: localhost\r\nAccept: */*\r\n\r\n"),
    case("POST as multibulk", command("POST", "/"), PING),
    case("Host as multibulk", command("Host:", "x"), PING),
    case("a hit in a posted body", b"POST / HTTP/1.1\r\n\r\n", INLINE_HIT, HIT),
    case("POST before a password", b"POST / HTTP/1.1\r\n", HIT,
         setup=[("CONFIG", "SET", "requirepass", "s3")]),
]  # fmt: skip


@pytest.mark.parametrize("row", NOTHING, ids=name_of)
def test_commands_and_malformed_bytes(bench: Bench, row: Case) -> None:
    bench.compare(row)


@pytest.mark.parametrize("row", INLINE, ids=name_of)
def test_inline_words_are_split_as_in_redis(bench: Bench, row: Case) -> None:
    bench.compare(row)


@pytest.mark.parametrize("row", [*BROKEN, *BEHIND_OTHERS], ids=name_of)
def test_malformed_bytes_get_redis_own_error_and_close(bench: Bench, row: Case) -> None:
    bench.compare(row, warm="behind a hit" in row.name)


@pytest.mark.parametrize("row", LIMITS, ids=name_of)
def test_limits_are_those_of_the_server(bench: Bench, row: Case) -> None:
    bench.compare(row)


@pytest.mark.parametrize("row", LENIENT, ids=name_of)
def test_parsing_is_lenient_where_redis_is(bench: Bench, row: Case) -> None:
    bench.compare(row)


@pytest.mark.parametrize("row", HTTP, ids=name_of)
def test_http_is_closed_without_a_reply(bench: Bench, row: Case) -> None:
    bench.compare(row)


@pytest.fixture
def open_proxy(redis_server: RedisServer, module_proxy: Proxy) -> Proxy:
    """Reset the module's proxy, whatever password and keys a case has left on the server."""
    with redis_server.raw() as raw:
        for words in (("AUTH", "s3"), ("CONFIG", "SET", "requirepass", ""), ("FLUSHALL",)):
            raw.ask(*words)
    return module_proxy


# The commands before the HTTP word, their replies, and the word with the bytes after it.
RAW_HIT = command("RL.HIT", "k", 10, 60)
HIT_REPLY = b"*5\r\n:0\r\n:10\r\n:%d\r\n:-1\r\n:60\r\n"
BEHIND = [
    ("POST behind commands", PING + PING, b"+PONG\r\n" * 2, b"POST / HTTP/1.1\r\n" + PING),
    (
        "POST behind hits",
        RAW_HIT + RAW_HIT,
        HIT_REPLY % 9 + HIT_REPLY % 8,
        b"POST / HTTP/1.1\r\nHost: x\r\n\r\n" + RAW_HIT,
    ),
    ("Host behind hits", RAW_HIT, HIT_REPLY % 9, b"Host: x\r\n" + RAW_HIT),
]
# Redis 6.2 queues POST like any command and closes at EXEC; later versions close at once.
IN_MULTI = (
    "POST in MULTI",
    command("MULTI") + RAW_HIT,
    b"+OK\r\n+QUEUED\r\n+QUEUED\r\n",
    b"POST /\r\n" + command("EXEC"),
)


@pytest.mark.parametrize(("name", "before", "replies", "http"), BEHIND, ids=[r[0] for r in BEHIND])
def test_http_behind_answered_commands_is_closed_without_a_reply(
    open_proxy: Proxy, name: str, before: bytes, replies: bytes, http: bytes
) -> None:
    with open_proxy.raw() as raw:
        raw.send(before)
        assert raw.exactly(len(replies)) == replies
        raw.send(http)
        assert raw.closes()
        assert raw.exactly(1) == b""


@pytest.mark.parametrize("slow", [False, True], ids=["whole", "slow"])
@pytest.mark.parametrize(
    ("name", "before", "replies", "http"),
    [*BEHIND, IN_MULTI],
    ids=[r[0] for r in [*BEHIND, IN_MULTI]],
)
def test_http_behind_unanswered_commands_adds_no_reply(
    open_proxy: Proxy,
    name: str,
    before: bytes,
    replies: bytes,
    http: bytes,
    slow: bool,
) -> None:
    # Redis decides which earlier replies are still sent: it frees the client with its unwritten
    # replies. So the bytes are a prefix of them, never anything else.
    with open_proxy.raw() as raw:
        (raw.send_slowly if slow else raw.send)(before + http)
        assert raw.closes()
        assert replies.startswith(raw.exactly(len(replies) + 1))
