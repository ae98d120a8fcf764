"""The table: what each command and reply does to a connection's state."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from rlproxy.resp import commands
from rlproxy.resp.commands import COMMANDS, UNKNOWN_COMMAND
from rlproxy.session.connection_state import COUNTED, DECIDING, PLAIN, RAW, ConnectionState
from rlproxy.session.identity import MAX_CREDENTIAL_BYTES
from rlproxy.session.slots import S_HIT, S_PROTOCOL, Slot

OK = b"+OK\r\n"
QUEUED = b"+QUEUED\r\n"
ERR = b"-ERR no\r\n"
NOPERM = b"-NOPERM no\r\n"
NIL = b"*-1\r\n"
HIT = "<hit>"


@dataclass
class Sent:
    """A request and what was made of it."""

    slot: Slot | None


NO_STATE = (commands.PASS, commands.BLOCKS, commands.WAIT, commands.INTROSPECT)


class Wire:
    """A connection on which requests are sent and replies read in order."""

    def __init__(self, in_cluster: bool = False) -> None:
        self.state = ConnectionState(in_cluster)
        self.owed: list[Sent] = []

    def send(self, line: str, complete: bool = True) -> Slot | None:
        words = [word.encode() for word in line.split(" ")]
        if line == HIT:
            slot: Slot | None = Slot(S_HIT)
        else:
            row = COMMANDS.get(words[0], UNKNOWN_COMMAND)
            slot = None
            if row.kind not in NO_STATE:
                slot = self.state.sent(row, words[1:] if row.whole else [], complete)
        self.owed.append(Sent(slot))
        return slot

    def answer(self, line: bytes) -> None:
        sent = self.owed.pop(0)
        if sent.slot is not None:
            self.state.answered(sent.slot, line)

    def run(self, *steps: tuple[str, bytes]) -> Wire:
        """Each request is answered before the next is sent."""
        for line, reply in steps:
            self.send(line)
            self.answer(reply)
        return self

    def pipeline(self, *steps: tuple[str, bytes]) -> Wire:
        """All requests are sent before the first is answered."""
        for line, _ in steps:
            self.send(line)
        for _, reply in steps:
            self.answer(reply)
        return self


def probed() -> Wire:
    wire = Wire()
    wire.run((HIT, b"*5\r\n"))
    assert wire.state.allows_lanes()
    return wire


STATELESS = ["GET", "SET", "WAIT", "COMMAND COUNT", "CLIENT ID", "CLIENT setname x"]
STATELESS += ["CLIENT NO-EVICT ON", "CLIENT CAPA redirect", "SCRIPT LOAD x"]
OF_CLIENT = ["TRACKING ON", "CACHING YES", "NO-TOUCH ON", "NEW-ONE", "MAINT_NOTIFICATIONS ON"]
NOT_COUNTED = ["CLIENT REPLY OFF", "CLIENT reply SKIP", "CLIENT", "SCRIPT debug YES", "SCRIPT"]
NOT_COUNTED += ["SUBSCRIBE", "PUNSUBSCRIBE", "MONITOR", "SYNC", "REPLCONF", "DEBUG", "SHUTDOWN"]

# request at PLAIN -> what is watched for in its reply, level at once, level after +OK, after -ERR
LEVELS: list[tuple[str, int | None, int, int, int]] = [
    *[(line, None, PLAIN, PLAIN, PLAIN) for line in STATELESS],
    *[(f"CLIENT {line}", commands.CLIENT, PLAIN, COUNTED, PLAIN) for line in OF_CLIENT],
    *[(line, None, RAW, RAW, RAW) for line in NOT_COUNTED],
    ("MULTI", commands.MULTI, PLAIN, PLAIN, PLAIN),
    ("EXEC", commands.EXEC, PLAIN, PLAIN, PLAIN),
    ("DISCARD", commands.DISCARD, PLAIN, PLAIN, PLAIN),
    ("QUIT", commands.QUIT, COUNTED, COUNTED, PLAIN),
    ("AUTH pw", commands.AUTH, PLAIN, PLAIN, PLAIN),
    ("AUTH bob pw", commands.AUTH, PLAIN, PLAIN, PLAIN),
    ("HELLO 3", S_PROTOCOL, PLAIN, PLAIN, PLAIN),
    ("HELLO 3 SETNAME x", S_PROTOCOL, PLAIN, PLAIN, PLAIN),
    ("HELLO 3 AUTH bob pw", commands.HELLO, PLAIN, PLAIN, PLAIN),
    ("SELECT 3", commands.SELECT, PLAIN, PLAIN, PLAIN),
    ("SELECT x", commands.SELECT, PLAIN, COUNTED, PLAIN),
    ("FOO", commands.UNKNOWN, COUNTED, COUNTED, COUNTED),
    ("READONLY", commands.UNKNOWN, COUNTED, COUNTED, COUNTED),
]


@pytest.mark.parametrize(("line", "kind", "at_once", "after_ok", "after_error"), LEVELS)
def test_level(line: str, kind: int | None, at_once: int, after_ok: int, after_error: int) -> None:
    for reply, level in ((OK, after_ok), (ERR, after_error)):
        wire = probed()
        slot = wire.send(line)
        assert (slot.kind if slot else None) == kind
        assert wire.state.level == at_once
        if slot is not None:
            wire.answer(reply)
        assert wire.state.level == level


@pytest.mark.parametrize("line", ["READONLY", "READWRITE"])
def test_the_read_mode_is_no_state_where_clients_see_one_node(line: str) -> None:
    wire = Wire(in_cluster=True).run((HIT, b"*5\r\n"), (line, OK))
    assert wire.state.allows_lanes()
    wire.run(("FOO", ERR), (line, OK))
    assert wire.state.level == COUNTED


@pytest.mark.parametrize(
    ("line", "reply", "multi"),
    [
        ("EXEC", b"-UPSTREAMDOWN x\r\n", False),
        ("EXEC", b"-CLUSTERDOWN x\r\n", False),
        ("EXEC", NOPERM, False),
        ("EXEC", b"*0\r\n", False),
        ("DISCARD", b"-UPSTREAMDOWN x\r\n", False),
        ("DISCARD", OK, False),
        ("DISCARD", b"-ERR wrong number of arguments for 'discard' command\r\n", True),
    ],
)
def test_a_cluster_has_ended_the_transaction_whatever_the_reply(
    line: str, reply: bytes, multi: bool
) -> None:
    wire = Wire(in_cluster=True).run(("MULTI", OK), (line, reply))
    assert wire.state.multi == multi


# request -> level behind it and kind of its slot, if it was COUNTED before; at RAW there is no slot
LOWER = [
    *[(line, COUNTED, None) for line in ("GET", "FOO", "EXEC", "DISCARD", "WATCH", "UNWATCH")],
    ("SELECT 1", COUNTED, None),
    *[
        (line, RAW, None)
        for line in ("MULTI", "SUBSCRIBE", "CLIENT ID", "SCRIPT LOAD x", "MONITOR")
    ],
    ("HOST:", RAW, None),
    ("AUTH pw", COUNTED, commands.AUTH),
    ("HELLO 3", COUNTED, commands.HELLO),
    ("RESET", COUNTED, commands.RESET),
    ("QUIT", COUNTED, None),
]


@pytest.mark.parametrize(("line", "counted", "kind"), LOWER)
def test_levels_only_fall(line: str, counted: int, kind: int | None) -> None:
    for first, level, slots in (("FOO", counted, kind), ("MONITOR", RAW, None)):
        wire = probed()
        wire.send(first)
        slot = wire.send(line)
        assert wire.state.level == level
        assert not wire.state.allows_lanes()
        assert (slot.kind if slot else None) == slots
        assert slot is None or slot.identity is None


# -- what each reply changes -----------------------------------------------------------------------


Facts = dict[str, object]


def facts(state: ConnectionState) -> Facts:
    return {
        "level": state.level,
        "identity": state.identity.key(),
        "known": state.known,
        "probed": state.probed,
        "probing": state.probing,
        "protocol": state.protocol,
        "multi": state.multi,
    }


BOB = (b"bob", b"pw", 3)
UNPROBED: Facts = {"probed": False}
LOST: Facts = {"known": False, "probed": False}
FRESH: Facts = {"identity": (None, None, 0), "probed": False, "protocol": 2}
DONE: Facts = {"multi": False}
HELLO_BOB = "HELLO 2 AUTH bob pw"

# the requests before, the request, its reply, and what that changes
REPLIES: list[tuple[str, str, bytes, Facts]] = [
    ("", "AUTH bob pw", OK, {"identity": BOB, **UNPROBED}),
    ("", "AUTH bob pw", ERR, {}),
    ("", "AUTH a b c", OK, LOST),
    ("FOO", "AUTH bob pw", OK, LOST),
    ("", HELLO_BOB, b"%7\r\n", {"identity": BOB, "protocol": 2, **UNPROBED}),
    ("", HELLO_BOB, ERR, {"protocol": 0, **LOST}),
    ("", "HELLO 2 FOO", b"%7\r\n", {"protocol": 2, **LOST}),
    ("", "HELLO 2", b"*14\r\n", {"protocol": 2}),
    ("", "HELLO 2", ERR, {}),
    ("", "SELECT 5", OK, {"identity": (b"ann", b"x", 5)}),
    ("", "SELECT 5", ERR, {}),
    ("", "SELECT 5", b"+FINE\r\n", {"level": COUNTED}),
    ("", "SELECT x", OK, {"level": COUNTED}),
    ("", "RESET", b"+RESET\r\n", FRESH),
    ("", "RESET", ERR, {}),
    ("", "RESET", QUEUED, {"level": RAW}),
    ("FOO", "RESET", b"+RESET\r\n", {"level": PLAIN, **FRESH}),
    ("MULTI", "RESET", b"+RESET\r\n", {**DONE, **FRESH}),
    ("", "MULTI", OK, {}),
    ("", "MULTI", NOPERM, {"multi": False}),
    ("MULTI", "EXEC", b"*0\r\n", DONE),
    ("MULTI", "EXEC", b"_\r\n", DONE),
    ("MULTI", "EXEC", b"-EXECABORT x\r\n", DONE),
    ("MULTI", "EXEC", b"-ERR EXEC without MULTI\r\n", {"multi": False}),
    ("MULTI", "EXEC", NOPERM, {}),
    ("MULTI", "DISCARD", OK, DONE),
    ("MULTI", "DISCARD", b"-ERR DISCARD without MULTI\r\n", {"multi": False}),
    ("MULTI", "DISCARD", NOPERM, {}),
    ("", "QUIT", OK, {}),
    ("", "QUIT", ERR, {"level": PLAIN}),
    ("", "FOO", b"-ERR unknown command 'FOO', with args beginning with: \r\n", {"level": PLAIN}),
    ("", "FOO", b"-ERR unknown subcommand\r\n", {}),
    ("", "FOO", OK, {}),
    ("", "READONLY", b"-ERR This instance has cluster support disabled\r\n", {"level": PLAIN}),
    ("", "CLIENT MAINT_NOTIFICATIONS ON", OK, {"level": COUNTED}),
    ("", "CLIENT MAINT_NOTIFICATIONS ON", ERR, {}),
]


@pytest.mark.parametrize(("before", "line", "reply", "changes"), REPLIES)
def test_reply(before: str, line: str, reply: bytes, changes: Facts) -> None:
    wire = probed().run(("HELLO 3 AUTH ann x", b"%7\r\n"), ("SELECT 3", OK), (HIT, b"*5\r\n"))
    for each in before.split(";") if before else []:
        wire.send(each)
    slot = wire.send(line)
    old = facts(wire.state)
    assert slot is not None
    assert wire.state.deciding == (slot.kind in DECIDING)
    wire.state.answered(slot, reply)
    assert wire.state.deciding == 0
    new = facts(wire.state)
    assert {name: new[name] for name in new if new[name] != old[name]} == changes


@pytest.mark.parametrize("line", ["AUTH x", "SELECT 1", "HELLO 3 AUTH a b"])
def test_what_was_too_long_to_be_read(line: str) -> None:
    wire = probed()
    wire.send(line, complete=False)
    assert wire.state.level == COUNTED


# -- plain -----------------------------------------------------------------------------------------

UNKNOWN = b"-ERR unknown command 'FOO'\r\n"

# steps, one after the other; whether a hit may then travel elsewhere
PLAIN_CASES: list[tuple[list[tuple[str, bytes]], bool]] = [
    ([], True),
    ([("MULTI", OK)], False),
    ([("MULTI", OK), ("MULTI", b"-ERR MULTI calls can not be nested\r\n")], False),
    ([("MULTI", OK), ("MULTI", NOPERM)], False),
    ([("MULTI", OK), ("EXEC", NIL)], True),
    ([("MULTI", OK), ("EXEC", ERR)], False),
    ([("MULTI", OK), ("DISCARD", ERR)], False),
    ([("MULTI", OK), ("MULTI", ERR), ("EXEC", b"*0\r\n")], True),
    ([("MULTI", OK), ("UNWATCH", QUEUED)], False),
    ([("WATCH", OK)], True),
    ([("ASKING", OK), ("GET", OK)], False),
    ([("MULTI", OK), ("SELECT 3", QUEUED), ("EXEC", b"*1\r\n")], False),
    ([("MULTI", OK), ("AUTH a b", QUEUED), ("EXEC", b"*1\r\n")], False),
    ([("MULTI", OK), ("HELLO 3 AUTH a b", QUEUED), ("EXEC", b"*1\r\n")], False),
    ([("MULTI", OK), ("FOO", ERR), ("EXEC", b"-EXECABORT x\r\n")], False),
    ([("WATCH", OK), ("MULTI", OK), ("EXEC", NIL)], True),
    ([("WATCH", OK), ("MULTI", OK), ("UNWATCH", QUEUED), ("EXEC", b"*1\r\n")], True),
    ([("WATCH", OK), ("MULTI", OK), ("DISCARD", OK)], True),
    ([("SELECT 03", OK)], False),
    ([("AUTH a b", OK)], False),
    ([("AUTH a b", OK), (HIT, b"*5\r\n")], True),
    ([("AUTH a b", OK), (HIT, b"-NOAUTH x\r\n")], False),
    ([("AUTH a b", OK), (HIT, QUEUED)], False),
    ([("AUTH a b", b"-WRONGPASS x\r\n")], True),
    ([("AUTH a b c", OK), (HIT, b"*5\r\n")], False),
    ([("HELLO 3 AUTH a b", b"%7\r\n"), (HIT, b"*5\r\n")], True),
    ([("HELLO 3 AUTH a b SETNAME x", b"-ERR name\r\n"), (HIT, b"*5\r\n")], False),
    ([("HELLO 3 AUTH a b", b"-WRONGPASS x\r\n"), (HIT, b"*5\r\n")], False),
    ([("HELLO 3 AUTH a b", ERR), ("AUTH a b", OK), (HIT, b"*5\r\n")], True),
    ([("HELLO 3 SETNAME x", b"%7\r\n")], True),
    ([("FOO", ERR), ("RESET", b"+RESET\r\n"), (HIT, b"*5\r\n")], True),
    ([("FOO", ERR), ("RESET", b"+RESET\r\n")], False),
    ([("FOO", ERR), ("RESET", ERR), (HIT, b"*5\r\n")], False),
    ([("FOO", ERR), ("RESET", QUEUED), (HIT, b"*5\r\n")], False),
    ([("MULTI", OK), ("RESET", b"+RESET\r\n"), (HIT, b"*5\r\n")], True),
    ([("CLIENT TRACKING ON", OK), ("RESET", b"+RESET\r\n"), (HIT, b"*5\r\n")], True),
    ([("SUBSCRIBE", OK), ("RESET", b"+RESET\r\n"), (HIT, b"*5\r\n")], False),
    ([("MONITOR", OK), ("RESET", b"+RESET\r\n"), (HIT, b"*5\r\n")], False),
    ([("HELLO 3 AUTH bob pw FOO", b"-ERR syntax\r\n"), (HIT, b"*5\r\n")], False),
    ([("HELLO 3 AUTH\0 bob pw", b"-ERR syntax\r\n"), (HIT, b"*5\r\n")], False),
]


@pytest.mark.parametrize(("steps", "plain"), PLAIN_CASES)
def test_plain(steps: list[tuple[str, bytes]], plain: bool) -> None:
    assert probed().run(*steps).state.allows_lanes() == plain


# all sent before the first reply: a reply lifts only what no later request set again
PIPELINES: list[tuple[list[tuple[str, bytes]], bool]] = [
    ([("MULTI", OK), ("EXEC", b"*0\r\n")], True),
    ([("MULTI", OK), ("EXEC", b"*0\r\n"), ("MULTI", OK)], False),
    ([("MULTI", OK), ("DISCARD", OK), ("MULTI", OK)], False),
    ([("MULTI", OK), ("MULTI", NOPERM)], False),
    ([("MULTI", NOPERM), ("EXEC", b"-ERR EXEC without MULTI\r\n")], True),
    ([("MULTI", NOPERM), ("EXEC", NOPERM), ("MULTI", OK)], False),
    ([("MULTI", OK), ("RESET", b"+RESET\r\n"), ("MULTI", OK), (HIT, QUEUED)], False),
    ([("RESET", b"+RESET\r\n"), ("FOO", ERR), (HIT, b"*5\r\n")], False),
    ([("FOO", ERR), ("RESET", b"+RESET\r\n"), ("FOO", ERR), (HIT, b"*5\r\n")], False),
    ([("FOO", ERR), ("RESET", b"+RESET\r\n"), ("AUTH a b", OK), (HIT, b"*5\r\n")], False),
    ([("FOO", ERR), ("RESET", b"+RESET\r\n"), (HIT, b"*5\r\n")], True),
    ([("RESET", b"+RESET\r\n"), ("AUTH a b", OK), (HIT, b"*5\r\n")], True),
    ([("AUTH a b", OK), (HIT, b"*5\r\n")], True),
    ([(HIT, b"*5\r\n"), ("AUTH a b", OK)], False),
    # An unknown command behind another one may have left state.
    ([("FOO", OK), ("FOO", UNKNOWN)], False),
    ([("FOO", UNKNOWN), ("FOO", UNKNOWN)], False),
    ([("FOO", OK), ("QUIT", ERR)], False),
    ([("QUIT", ERR), ("FOO", OK)], False),
    ([("QUIT", ERR), ("SELECT 0", OK)], False),
]


@pytest.mark.parametrize(("steps", "plain"), PIPELINES)
def test_pipelined(steps: list[tuple[str, bytes]], plain: bool) -> None:
    assert probed().pipeline(*steps).state.allows_lanes() == plain


# -- identity --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line", ["AUTH {}", "AUTH bob {}", "AUTH {} pw", "HELLO 3 AUTH bob {}", "HELLO 3 AUTH {} pw"]
)
def test_credentials_that_are_too_long_to_be_kept(line: str) -> None:
    wire = probed()
    slot = wire.send(line.format("x" * (MAX_CREDENTIAL_BYTES + 1)))
    assert slot is None or slot.identity is None
    wire.answer(OK)
    wire.run((HIT, b"*5\r\n"))
    assert not wire.state.allows_lanes()


def test_subscribing_inside_multi_makes_nothing_certain() -> None:
    wire = Wire().run(("MULTI", OK))
    assert wire.send("SUBSCRIBE") is None
    assert wire.state.level == RAW
