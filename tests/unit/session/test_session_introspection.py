"""session and answers: COMMAND's replies are edited at their place."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from rlproxy.ratelimit.command_entries import ENTRIES, docs, info
from rlproxy.resp.encoding import bulk, bulks
from rlproxy.session.command_replies import MAX_EDITED, UNKNOWN

from tests.unit.session.bench import FIVE, HIT, PING, PONG, in_place, opened

COUNT = bulks(b"COMMAND", b"COUNT")
ALL = bulks(b"COMMAND")
LIST = bulks(b"COMMAND", b"LIST")
DOCS = bulks(b"COMMAND", b"DOCS", b"GET", b"RL.HELP")
INFO = bulks(b"COMMAND", b"INFO", b"get", b"RL.HIT")
KEYS = bulks(b"COMMAND", b"GETKEYS", b"RL.HIT", b"k", b"1", b"2")
OURS = len(ENTRIES)
GET = b"*7\r\n$3\r\nget\r\n:2\r\n*2\r\n+readonly\r\n+fast\r\n:1\r\n:1\r\n:1\r\n*1\r\n+@read\r\n"
NOPERM = b"-NOPERM no\r\n"


INFOS = [info(entry, False) for entry in ENTRIES]
HELP_DOCS = next(docs(entry, True) for entry in ENTRIES if entry.name == b"rl.help")
NAMES = b"".join(bulk(entry.name) for entry in ENTRIES)
PAIR = bulk(b"get") + b"%1\r\n" + bulk(b"group") + bulk(b"string")

# The request, Redis' reply, what the client gets. test_command_replies.py has the other replies.
ROWS: dict[str, tuple[bytes, bytes, bytes]] = {
    "COUNT": (COUNT, b":240\r\n", b":%d\r\n" % (240 + OURS)),
    "inline COUNT": (b"command  'count'\r\n", b":240\r\n", b":%d\r\n" % (240 + OURS)),
    "all": (ALL, b"*2\r\n" + GET * 2, b"*%d\r\n" % (2 + OURS) + GET * 2 + b"".join(INFOS)),
    "INFO": (INFO, b"*2\r\n" + GET + b"$-1\r\n", b"*2\r\n" + GET + INFOS[0]),
    "DOCS": (DOCS, b"%1\r\n" + PAIR, b"%2\r\n" + PAIR + HELP_DOCS),
    "LIST": (LIST, b"*1\r\n" + bulk(b"get"), b"*%d\r\n" % (1 + OURS) + bulk(b"get") + NAMES),
    "GETKEYS": (KEYS, UNKNOWN, bulks(b"k")),
    "NOPERM": (COUNT, NOPERM, NOPERM),
}


def each(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


@pytest.mark.parametrize("name", ROWS)
def test_in_a_pipeline(name: str) -> None:
    request, reply, expected = ROWS[name]
    bench = opened()
    written = PING + HIT + request + HIT + request + request + PING
    sent = PING + in_place() + request + in_place() + request + request + PING
    replies = PONG + FIVE + reply + FIVE + reply + reply + PONG
    got = PONG + FIVE + expected + FIVE + expected + expected + PONG
    for send in ([written], each(written)):
        assert bench.send(*send) == sent
        assert bench.answer(replies) == got
        assert bench.send(*send) == sent
        assert bench.answer(*each(replies)) == got


@pytest.mark.parametrize(("longer", "edits"), [(0, True), (1, False)])
def test_the_reply_to_a_long_command_is_not_edited(longer: int, edits: bool) -> None:
    name = b"x" * (MAX_EDITED - len(bulks(b"COMMAND", b"INFO", b"RL.HIT", b"")) - 2 + longer)
    request = bulks(b"COMMAND", b"INFO", b"RL.HIT", name)
    assert len(request) == MAX_EDITED + longer
    bench = opened()
    assert bench.send(request) == request
    entry = INFOS[0] if edits else b"$-1\r\n"
    assert bench.answer(b"*2\r\n" + b"$-1\r\n" * 2) == b"*2\r\n" + entry + b"$-1\r\n"


@pytest.mark.parametrize("pieces", [lambda data: [data], each])
def test_a_push_behind_the_last_value_stays_behind_ours(
    pieces: Callable[[bytes], list[bytes]],
) -> None:
    subscribe = bulks(b"SUBSCRIBE", b"c")
    push = b">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n"
    for request, reply, expected in ROWS.values():
        bench = opened()
        assert bench.send(request + subscribe) == request + subscribe
        assert bench.answer(*pieces(reply + push)) == expected + push
