"""session in front of a cluster: pipelines on shared lanes, and what their lanes give back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rlproxy.resp import commands
from rlproxy.resp.encoding import LOST, bulks
from rlproxy.resp.key_slot import NO_SLOT, key_slot
from rlproxy.session.call import Call, Lane
from rlproxy.session.context import ServerFacts
from rlproxy.session.session import Session
from rlproxy.session.sharing import MAX_SHARED, MAX_TOGETHER

from tests.contexts import worker_context
from tests.part_calls import PartCaller
from tests.unit.session.bench import GRAMMAR, FakeLane
from tests.unit.sides import Sides

NIL = b"$-1\r\n"
A, B = b"a", b"b"  # keys of two nodes


def get(key: bytes) -> bytes:
    return bulks(b"GET", key)


def put(key: bytes, value: bytes = b"v") -> bytes:
    return bulks(b"SET", key, value)


class NodeLane(FakeLane):
    """The lane of one kind to one node.

    inflight: calls that the node has run, with their replies.
    """

    def __init__(self) -> None:
        super().__init__()
        self.inflight: list[tuple[Call, bytes]] = []


def decline(call: Call) -> None:
    """The reply to `call` is too large."""
    assert isinstance(call.caller, PartCaller)
    call.caller.lane_declined(call)


class Share(Lane):
    """The lanes of one kind; a key without a lane stays private."""

    def __init__(self) -> None:
        super().__init__()
        self.ready = True
        self.lanes = {A: NodeLane(), B: NodeLane()}
        self.slots: list[int] = []

    def for_slot(self, slot: int) -> Lane | None:
        self.slots.append(slot)
        by_slot = {key_slot(b""): A, key_slot(A): A, key_slot(B): B}
        return self.lanes.get(by_slot.get(slot, b"private"))


class Bench(Sides):
    """A session whose first command is answered, and its lanes."""

    def __init__(self, cluster: bool = True) -> None:
        self.shares = {commands.SHARED_READ: Share(), commands.SHARED_WRITE: Share()}
        self.session = Session(
            worker_context(
                grammar=GRAMMAR,
                server=ServerFacts("redis:1", in_cluster=cluster),
                lane_of=lambda _identity, kind, _protocol: self.shares.get(kind),
                shares=True,
            )
        )
        self.session.receive(get(A))
        self.session.upstream_opened()
        self.up()
        self.answer(NIL)

    def lane(self, how: int, key: bytes) -> NodeLane:
        return self.shares[how].lanes[key]

    def taken(self) -> list[bytes]:
        """The commands on all lanes."""
        lanes = [lane for share in self.shares.values() for lane in share.lanes.values()]
        return [call.key for lane in lanes for call in lane.calls]


GETS = get(A) + get(B) + get(A)
SETS = put(A) + put(B) + put(B)


@pytest.mark.parametrize("sent", [GETS, SETS, get(A) * MAX_TOGETHER, GETS + get(A)[:9]])
def test_a_short_pipeline_of_one_kind_is_shared(sent: bytes) -> None:
    bench = Bench()
    assert bench.send(sent) == b""
    assert sum(map(len, bench.taken())) == len(sent) - bench.session.requests.unread()
    assert bench.session.requests.unread() in (0, 9)


@pytest.mark.parametrize(
    "sent",
    [
        get(A) + put(A),
        put(A) + get(A),
        get(A) * (MAX_TOGETHER + 1),
        get(A) * MAX_TOGETHER + get(A)[:9],
        put(A, b"v" * (MAX_SHARED // 2)) * 2,
        get(A) + bulks(b"MGET", A, A),
        bulks(b"MGET", A, A) + get(A),
        put(A) + bulks(b"DEL", A),
        get(A) + bulks(b"GET"),
        get(A) + bulks(b"TIME"),
        get(A) + b"GET a\r\n",
        get(A) + b"\r\n",
        get(A) + bulks(b"PING"),
        get(A) + get(b"private"),
        put(A) + bulks(b"SET", A, b"v", b"GET"),
    ],
)
def test_other_pipelines_stay_private(sent: bytes) -> None:
    bench = Bench()
    assert bench.send(sent) == sent[: len(sent) - bench.session.requests.unread()]
    assert bench.taken() == []


def test_a_lane_is_chosen_by_the_slot_of_all_keys() -> None:
    bench = Bench()
    for command in (get(b""), get(A), bulks(b"hget", B, b"f"), bulks(b"EXISTS", A), bulks(b"GET")):
        bench.send(command)
        bench.lane(commands.SHARED_READ, A).calls.clear()
        bench.lane(commands.SHARED_READ, B).calls.clear()
        bench.session.lanes.abandon()
    slots = [0, key_slot(A), key_slot(B), key_slot(A), NO_SLOT]
    assert bench.shares[commands.SHARED_READ].slots == slots


def test_the_next_commands_wait_for_all_replies() -> None:
    bench = Bench()
    bench.send(SETS)
    assert bench.send(GETS) == b""
    assert bench.taken() == [put(A), put(B), put(B)]
    first, *others = [
        call for key in (A, B) for call in bench.lane(commands.SHARED_WRITE, key).calls
    ]
    for call in (*others, first):
        call.caller.lane_answered(call, b"+OK\r\n")
        call.caller.resume()
        assert bench.down() == (b"+OK\r\n" * 3 if call is first else b"")
    assert bench.taken() == [get(A), get(A), get(B), put(A), put(B), put(B)]


def test_reads_behind_one_that_comes_back_are_sent_again() -> None:
    bench = Bench()
    bench.send(GETS)
    first, third = bench.lane(commands.SHARED_READ, A).calls
    (second,) = bench.lane(commands.SHARED_READ, B).calls
    first.caller.lane_answered(first, b"$1\r\n1\r\n")
    third.caller.lane_answered(third, b"$1\r\n3\r\n")
    bench.session.resume()
    assert (bench.up(), bench.down()) == (b"", b"")  # the second one is under way
    decline(second)
    bench.session.resume()
    assert (bench.up(), bench.down()) == (get(B) + get(A), b"$1\r\n1\r\n")
    assert bench.answer(b"$1\r\n2\r\n$1\r\n4\r\n") == b"$1\r\n2\r\n$1\r\n4\r\n"


def test_writes_that_ran_behind_one_that_comes_back_keep_their_replies() -> None:
    bench = Bench()
    bench.send(SETS)
    (first,) = bench.lane(commands.SHARED_WRITE, A).calls
    second, third = bench.lane(commands.SHARED_WRITE, B).calls
    first.caller.lane_returned(first)
    second.caller.lane_answered(second, b"+2\r\n")
    bench.session.resume()
    assert (bench.up(), bench.down()) == (b"", b"")  # the third one is under way
    third.caller.lane_returned(third)
    bench.session.resume()
    assert bench.up() == put(A) + put(B)
    assert bench.answer(b"+1\r\n+3\r\n") == b"+1\r\n+2\r\n+3\r\n"


def test_without_a_private_connection_the_client_is_closed() -> None:
    bench = Bench()
    bench.send(SETS)
    bench.session.upstream_lost()
    for key in (A, B):
        for call in bench.lane(commands.SHARED_WRITE, key).calls:
            call.caller.lane_returned(call)
    bench.session.resume()
    assert bench.session.closed


class Walk:
    """A client of a cluster of two nodes, and what the nodes have run.

    held: by key, the number of the latest write.
    sent: the commands: their numbers, kinds and keys.
    """

    def __init__(self) -> None:
        self.bench = Bench()
        self.held: dict[bytes, int] = {A: 0, B: 0}
        self.sent: list[tuple[int, str, bytes]] = []
        self.replies = b""  # of the private connection
        self.down = b""

    def run(self, command: bytes) -> bytes:
        """A node runs a command: a read returns the number of the latest write of its key."""
        words = command.split(b"\r\n")
        key = words[4]
        if words[2] == b"GET":
            return b":%d\r\n" % self.held[key]
        number = int(words[6])
        assert number > self.held[key], "writes of one key run in order, each once"
        self.held[key] = number
        return b"+%d\r\n" % number

    def step(self, step: str, key: bytes, how: int, count: int) -> None:
        bench, session = self.bench, self.bench.session
        lane = bench.shares[how].lanes.get(key)
        if step in ("reads", "writes", "mixed"):
            data = b""
            for at in range(count + 1):
                number = len(self.sent) + 1
                kind = step if step != "mixed" else ("reads", "writes")[at % 2]
                on = (A, B)[(at + (key == B)) % 2] if count % 3 else key
                self.sent.append((number, kind, on))
                data += get(on) if kind == "reads" else put(on, b"%d" % number)
            session.receive(data)
        elif step == "private":
            data, self.replies = self.replies, b""
            session.upstream_received(data)
        elif lane is None:
            return
        elif step == "flush":
            for call in lane.calls[: count + 1]:
                lane.inflight.append((call, self.run(call.key)))
            del lane.calls[: count + 1]
        elif step == "answer":
            for call, reply in lane.inflight[: count + 1]:
                call.caller.lane_answered(call, reply)
            del lane.inflight[: count + 1]
        elif step == "decline" and how == commands.SHARED_READ and lane.inflight:
            decline(lane.inflight.pop(0)[0])
        elif step == "move":  # of the node's key: no later command on it runs there
            for each in bench.shares.values():
                left = each.lanes.pop(key)
                for call, reply in left.inflight:
                    call.caller.lane_answered(call, reply)
                for call in left.calls:
                    call.caller.lane_returned(call)
        elif step == "lose" and how == commands.SHARED_READ:
            calls, lane.calls = lane.calls, []
            for call, _ in lane.inflight:
                call.caller.lane_answered(call, LOST)
            lane.inflight = []
            for call in calls:
                call.caller.lane_returned(call)
        session.resume()
        self.move()

    def move(self) -> None:
        self.down += self.bench.down()
        up = self.bench.up()
        while up:
            end = up.find(b"*", 1)
            command, up = (up[:end], up[end:]) if end > 0 else (up, b"")
            if command != b"*0\r\n":
                self.replies += self.run(command)

    def finish(self) -> None:
        for _ in range(2 * len(self.sent) + 4):
            self.step("private", A, commands.SHARED_READ, 0)
            for how in (commands.SHARED_READ, commands.SHARED_WRITE):
                for key in (A, B):
                    self.step("flush", key, how, 99)
                    self.step("answer", key, how, 99)

    def check(self) -> None:
        replies = self.down.split(b"\r\n")[:-1]
        assert len(replies) == len(self.sent)
        latest = {A: 0, B: 0}
        for (number, kind, key), reply in zip(self.sent, replies, strict=True):
            if kind == "writes":
                assert reply == b"+%d" % number
                latest[key] = number
            else:
                assert reply == b":%d" % latest[key]
        assert not self.bench.session.outstanding()


STEPS: tuple[str, ...] = ("reads", "reads", "writes", "writes", "mixed", "private")
STEPS += ("flush", "flush", "answer", "answer", "decline", "move", "lose")
STEP = st.tuples(
    st.sampled_from(STEPS),
    st.sampled_from((A, B)),
    st.sampled_from((commands.SHARED_READ, commands.SHARED_WRITE)),
    st.integers(0, 5),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(STEP, max_size=50))
def test_whatever_lanes_give_back_order_is_kept(steps: list[tuple[str, bytes, int, int]]) -> None:
    walk = Walk()
    for step in steps:
        walk.step(*step)
    walk.finish()
    walk.check()
