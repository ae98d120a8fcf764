"""session: the database of --upstream is selected before the client's commands."""

from __future__ import annotations

from rlproxy.resp.encoding import bulks
from rlproxy.resp.requests import COMMAND, RequestFramer

from tests.unit.session.bench import (
    ARITY,
    BASE,
    FIVE,
    HIT,
    NOAUTH,
    PING,
    PONG,
    Bench,
    in_place,
    probed,
)


def test_the_base_database_is_selected_first() -> None:
    bench = Bench(2)
    bench.send(HIT)
    bench.session.upstream_opened()
    assert bench.up() == BASE
    assert bench.answer(b"+OK\r\n") == b""
    assert bench.up() == in_place()
    assert bench.answer(FIVE) == FIVE
    bench.send(HIT)
    assert bench.identities[-1].key() == (None, None, 2)


def test_the_base_database_refused_and_selected_after_auth() -> None:
    bench = Bench(2)
    bench.send(HIT)
    bench.session.upstream_opened()
    assert bench.up() == BASE
    assert bench.answer(NOAUTH) == b""
    assert bench.up() == in_place()
    assert bench.answer(NOAUTH) == NOAUTH
    auth = bulks(b"AUTH", b"bob", b"pw")
    sent = bench.send(auth)
    out = bench.answer(b"+OK\r\n")
    sent += bench.up()
    assert sent == auth + BASE
    out += bench.answer(b"+OK\r\n")
    assert out == b"+OK\r\n"
    assert bench.send(HIT) == in_place()
    bench.answer(FIVE)
    assert bench.send(HIT) == b""
    assert bench.identities[-1].key() == (b"bob", b"pw", 2)


def answering(bench: Bench, sent: bytes, replies: dict[bytes, list[bytes]]) -> tuple[bytes, bytes]:
    """Plays Redis until nothing more comes: what was sent upstream, and what the client got."""
    up = bench.send(sent)
    all_up = up
    down = bench.down()
    while up:
        framer = RequestFramer()
        framer.feed(up)
        reply_slots = b""
        while framer.next() == COMMAND:
            reply_slots += replies[framer.buf[framer.start : framer.end]].pop(0)
        down += bench.answer(reply_slots)
        up = bench.up()
        all_up += up
    return all_up, down


def test_the_base_database_behind_a_hello_that_errs_and_has_logged_in() -> None:
    bench = Bench(2)
    hello = bulks(b"HELLO", b"3", b"AUTH", b"bob", b"pw", b"SETNAME", b"a b")
    bench.send(hello + PING)
    bench.session.upstream_opened()
    assert bench.up() == BASE
    assert bench.answer(NOAUTH) == b""
    assert bench.up() == hello
    spaces = b"-ERR Client names cannot contain spaces\r\n"
    assert bench.answer(spaces) == spaces
    assert bench.up() == BASE
    assert bench.answer(b"+OK\r\n") == b""
    assert bench.up() == PING
    assert bench.answer(PONG) == PONG


def test_what_decides_about_the_database_can_not_be_told_any_more() -> None:
    bench = probed(2)
    assert bench.send(bulks(b"RESET") + PING) == bulks(b"RESET")
    assert bench.answer(b"%%1\r\nno RESP\r\n") == b"%%1\r\nno RESP\r\n"
    assert bench.session.closed


def test_reset_selects_the_base_database_again() -> None:
    bench = probed(2)
    reset = bulks(b"RESET")
    up, down = answering(
        bench, reset + PING, {reset: [b"+RESET\r\n"], BASE: [b"+OK\r\n"], PING: [PONG]}
    )
    assert up == reset + BASE + PING
    assert down == b"+RESET\r\n" + PONG


def test_reset_in_single_bytes_is_not_torn() -> None:
    bench = probed(2)
    reset = bulks(b"RESET")
    sent = bench.send(*[reset[at : at + 1] for at in range(len(reset))])
    bench.answer(b"+RESET\r\n")
    assert sent + bench.up() == reset + BASE


def test_a_reset_that_redis_refuses_leaves_the_clients_database() -> None:
    bench = probed(2)
    bench.send(bulks(b"SELECT", b"3"))
    bench.answer(b"+OK\r\n")
    wrong = bulks(b"RESET", b"x")
    up, down = answering(bench, wrong, {wrong: [ARITY], BASE: [b"+OK\r\n"]})
    assert up == wrong
    assert down == ARITY


def test_the_clients_own_select_is_not_undone_by_auth() -> None:
    bench = Bench(2)
    bench.send(PING)
    bench.session.upstream_opened()
    bench.answer(NOAUTH)
    bench.answer(NOAUTH)
    bench.up()
    one, two = bulks(b"AUTH", b"a", b"a"), bulks(b"AUTH", b"b", b"b")
    select = bulks(b"SELECT", b"3")
    good = [b"+OK\r\n"] * 3
    replies = {one: good[:], two: good[:], select: good[:], BASE: good[:]}
    up, down = answering(bench, one + select + two, replies)
    assert down == b"+OK\r\n" * 3
    assert BASE not in up[up.index(select) :]
    assert bench.session.private.state.identity.key() == (b"b", b"b", 3)
