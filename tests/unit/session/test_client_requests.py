"""client_requests: from a framed request to a call, and what is dropped or denied."""

from __future__ import annotations

import pytest
from rlproxy.observability.counters import Counters
from rlproxy.ratelimit.hit_replies import TOO_LONG
from rlproxy.ratelimit.outcomes import RESET, other
from rlproxy.resp.encoding import bulk, bulks
from rlproxy.resp.key_slot import NO_SLOT, key_slot
from rlproxy.resp.requests import BODY, COMMAND, EMPTY, MALFORMED, OPEN, TAIL
from rlproxy.session import command_policy
from rlproxy.session.client_requests import ClientRequests

from tests.unit.session.bench import ARITY, HIT, PING, WRONG_HIT
from tests.unit.session.parts import Parts

DENIES = command_policy.table(("keys", "config|set"), False)


def denied(data: bytes) -> tuple[bytes, dict[str, int]]:
    """Return the error to the request `data` where KEYS and CONFIG SET are denied, and counts."""
    requests, stats = ClientRequests(), Counters()
    requests.use(DENIES)
    requests.feed(data)
    return requests.denied(requests.next(), stats), stats.errors


def test_a_hit_is_the_call_of_its_key_and_rule() -> None:
    call = Parts().call(HIT)
    assert call.key == bulk(b"k")
    assert call.rule.takes
    assert call.rule.limit == 10
    assert call.reply == b""


@pytest.mark.parametrize(
    "written",
    [b"rl.hit k 10 60\r\n", bulks(b"Rl.hIt", b"k", b"10", b"60"), b"  RL.HIT   k 10  60 \r\n"],
)
def test_other_writings_are_the_same_call(written: bytes) -> None:
    parts = Parts()
    one, two = parts.call(HIT), parts.call(written)
    assert (one.key, one.rule.tail, one.rule.limit) == (two.key, two.rule.tail, two.rule.limit)
    assert one.rule.script is two.rule.script


def test_equal_hits_share_a_rule() -> None:
    parts = Parts()
    assert parts.call(HIT).rule is parts.call(HIT).rule


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (WRONG_HIT, ARITY),
        (bulks(b"RL.HIT"), ARITY),
        (bulks(b"RL.RESET"), ARITY.replace(b"hit", b"reset")),
        (bulks(b"RL.HELP", b"x"), ARITY.replace(b"hit", b"help")),
    ],
)
def test_an_invalid_command_is_a_call_with_its_error(request_: bytes, error: bytes) -> None:
    assert Parts().call(request_).reply == error


def test_a_command_that_is_too_long_is_a_call_with_its_error() -> None:
    parts = Parts()
    code = parts.next(bulks(b"RL.HIT", b"k" * 70_000, b"10", b"60"))
    assert code == COMMAND
    call = parts.requests.call(parts.caller, parts.context)
    assert call is not None
    assert call.reply == TOO_LONG


@pytest.mark.parametrize("words", [(b"RL.HELP",), (b"RL.STATS",), (b"RL.TOP", b"10")])
def test_status_commands_are_no_calls(words: tuple[bytes, ...]) -> None:
    parts = Parts()
    parts.next(bulks(*words))
    assert parts.requests.call(parts.caller, parts.context) is None


def test_the_servers_own_throttle_is_no_call() -> None:
    parts = Parts()
    throttle = bulks(b"CL.THROTTLE", b"k", b"15", b"30", b"60")
    assert parts.call(throttle).rule.takes
    parts.context.server.found.has_throttle = True
    parts.next(throttle)
    assert parts.requests.call(parts.caller, parts.context) is None


def test_reset_deletes_its_keys() -> None:
    call = Parts().call(bulks(b"RL.RESET", b"a", b"b"))
    assert call.rule.head + call.key + call.rule.tail == bulks(b"DEL", b"a", b"b")
    assert call.rule.frees
    assert call.row == other(RESET)
    assert call.others is None


def test_reset_names_its_keys_while_hits_wait() -> None:
    parts = Parts()
    parts.context.waiting.count = 1
    assert parts.call(bulks(b"RL.RESET", b"a", b"b")).others == [bulk(b"b")]


@pytest.mark.parametrize("keys", [[b"a"], [b"a", b"b"], [b"a", b"b", b"c"]])
def test_reset_of_lenient_writing(keys: list[bytes]) -> None:
    call = Parts().call(b" ".join([b"rl.reset", *keys]) + b"\r\n")
    assert call.rule.head + call.key + call.rule.tail == bulks(b"DEL", *keys)


# -- denied ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "refused"),
    [
        (bulks(b"KEYS", b"*"), True),
        (b"keys *\r\n", True),
        (bulks(b"CONFIG", b"SET", b"a", b"b"), True),
        (bulks(b"CONFIG", b"GET", b"a"), False),
        (PING, False),
    ],
)
def test_denied_commands_get_an_error_and_are_counted(request_: bytes, refused: bool) -> None:
    error, counts = denied(request_)
    assert error.startswith(b"-NOPERM") == refused
    assert counts == ({"denied": 1} if refused else {})


# -- dropped ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("discarding", "code", "drops", "still"),
    [
        (False, BODY, False, False),
        (True, BODY, True, True),
        (True, TAIL, True, False),
        (True, COMMAND, False, True),
        (True, OPEN, False, True),
        (True, EMPTY, False, True),
        (True, MALFORMED, False, True),
    ],
)
def test_parts_of_a_dropped_command(discarding: bool, code: int, drops: bool, still: bool) -> None:
    requests = ClientRequests()
    requests.discarding = discarding
    assert requests.drops(code) == drops
    assert requests.discarding == still


def test_drop_leaves_nothing_unread() -> None:
    requests = ClientRequests()
    requests.feed(PING + PING[:5])
    requests.next()
    requests.rest()
    assert requests.unread() == 0


def test_the_request_as_written() -> None:
    parts = Parts()
    parts.next(HIT + PING)
    assert parts.requests.written() == HIT
    assert parts.requests.size() == len(HIT)


@pytest.mark.parametrize(
    ("request_", "slot"),
    [
        (bulks(b"GET", b"k"), key_slot(b"k")),
        (bulks(b"set", b"a\r\nb", b"v"), key_slot(b"a\r\nb")),
        (bulks(b"HSET", b"k" * 1000, b"f", b"v"), key_slot(b"k" * 1000)),
        (bulks(b"GET", b""), 0),
        (bulks(b"GET"), NO_SLOT),
        (bulks(b"DEL", b"k"), key_slot(b"k")),
        (bulks(b"MGET", b"k", b"{k}2", b"a{k}" * 99), key_slot(b"k")),
        (bulks(b"MGET", b"k", b"{k}2", b"b"), NO_SLOT),
        (bulks(b"DEL"), NO_SLOT),
        (bulks(b"MSET", b"k", b"b", b"{k}", b"c"), key_slot(b"k")),
        (bulks(b"MSET", b"k", b"v", b"b", b"v"), NO_SLOT),
        (bulks(b"RENAME", b"k", b"{k}2"), key_slot(b"k")),
        (bulks(b"RENAME", b"k", b"b"), NO_SLOT),
        (bulks(b"RENAME", b"k"), NO_SLOT),
        (bulks(b"SMOVE", b"k", b"{k}2", b"b"), key_slot(b"k")),
        (bulks(b"ECHO", b"k"), NO_SLOT),
        (bulks(b"TIME"), NO_SLOT),
        (bulks(b"LPOP", b"k"), NO_SLOT),  # never shared
    ],
)
def test_the_slot_of_all_keys(request_: bytes, slot: int) -> None:
    parts = Parts()
    parts.next(PING + request_ + PING)
    parts.requests.next()
    assert parts.requests.hash_slot() == slot


@pytest.mark.parametrize(
    ("data", "looks"),
    [
        (HIT, True),
        (bulks(b"RL.RESET", b"k"), True),
        (bulks(b"GET", b"k"), False),
        (bulks(b"rl.hit", b"k", b"1", b"2"), False),
        (HIT[:11], True),
        (HIT[:10], False),
        (b"", False),
    ],
)
def test_what_looks_like_an_rl_command(data: bytes, looks: bool) -> None:
    requests = ClientRequests()
    requests.feed(PING + data)
    requests.next()
    assert requests.looks_like_ours() == looks
