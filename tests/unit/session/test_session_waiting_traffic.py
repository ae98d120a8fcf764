"""session: whatever happens, replies keep the order of the requests around hits that wait."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from rlproxy.resp import encoding as r
from rlproxy.resp.encoding import bulks
from rlproxy.resp.requests import COMMAND, EMPTY, RequestFramer

from tests.unit.session.bench import (
    ARITY,
    PUSH,
    WRONG_HIT,
)
from tests.unit.session.waiting import (
    World,
)


class Server:
    """Answers the private connections and the lane: a limiter admits what it is given to admit."""

    def __init__(self) -> None:
        self.room: dict[bytes, int] = {}
        self.ran: list[tuple[bytes, bytes]] = []  # key and the command's own mark, as admitted

    def script(self, words: list[bytes]) -> bytes:
        """EVAL's words without the script, or a call's: key, then ARGV."""
        key, argv = words[0], words[1:]
        cost = int(argv[3]) if len(argv) > 3 else 1
        room = self.room.get(key, 0)
        micro = argv[2:3] == [b"1"]
        if len(argv) > 4 and argv[4] == b"peek":
            pass
        elif cost <= room:
            self.room[key] = room - cost
            self.ran.append((key, argv[1]))
            return r.five(0, 10, 1, -1, 1)
        retry = 700_000 if micro else 1
        return r.five(1 if cost > room else 0, 10, 0, retry if cost > room else -1, 1)


class Wire:
    """What reaches one private connection."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.framer = RequestFramer()
        self.out = b""

    def take(self, data: bytes) -> None:
        framer = self.framer
        if data:
            framer.feed(data)
        while (code := framer.next()) in (COMMAND, EMPTY):
            if code == EMPTY:
                continue
            words = framer.buf[framer.start : framer.end].split(b"\r\n")[2::2]
            if words[0] == b"EVAL":
                self.out += self.server.script(words[3:])
            else:
                self.out += r.bulk(words[1])


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("send"),
            st.integers(0, 3),
            st.lists(st.sampled_from(["wait", "wait", "hit", "echo", "wrong"]), max_size=6),
        ),
        st.tuples(st.just("redis"), st.integers(0, 3), st.integers(1, 200)),
        st.tuples(st.just("lane"), st.integers(1, 5), st.none()),
        st.tuples(st.just("time"), st.sampled_from([0.01, 0.5, 0.8, 3.0]), st.none()),
        st.tuples(st.just("room"), st.integers(1, 5), st.sampled_from([b"a", b"b"])),
        st.tuples(st.sampled_from(["lost", "ready"]), st.integers(0, 3), st.none()),
        st.tuples(st.sampled_from(["push", "eof", "gone"]), st.integers(0, 3), st.none()),
    ),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_whatever_happens_replies_keep_the_order_of_the_requests(
    steps: list[tuple[str, float, object]],
) -> None:
    world = World()
    server = Server()
    clients = [world.probed() for _ in range(4)]
    wires = [Wire(server) for _ in clients]
    expected: list[list[bytes]] = [[] for _ in clients]
    received = [b"" for _ in clients]
    pushes = [0, 0, 0, 0]
    gone: set[int] = set()
    ended: set[int] = set()
    number = 0

    def move() -> None:
        for index, client in enumerate(clients):
            received[index] += client.down()
            wires[index].take(client.up())

    def lane_answers(count: int) -> None:
        if not world.lanes:
            return
        for call in world.lane.calls[:count]:
            argv = call.rule.tail.split(b"\r\n")[1::2]
            world.lane_answers(server.script([call.key.split(b"\r\n")[1], *argv]))
        move()

    def redis(index: int, count: int) -> None:
        data, wires[index].out = wires[index].out[:count], wires[index].out[count:]
        if data and index not in gone and not clients[index].session.closed:
            received[index] += clients[index].answer(data)
        move()

    for step, what, more in steps:
        index = int(what) % 4
        client = clients[index]
        alive = index not in gone and index not in ended and not client.session.closed
        if step == "send" and alive and isinstance(more, list):
            data = b""
            for kind in more:
                number += 1
                key = b"ab"[number % 2 : number % 2 + 1]
                if kind == "wait":
                    data += bulks(b"RL.HIT", key, b"10", b"60", b"WAIT", b"%d" % (number % 3 + 1))
                    expected[index].append(b"*5")
                elif kind == "hit":
                    data += bulks(b"RL.HIT", key, b"10", b"60", b"COST", b"1")
                    expected[index].append(b"*5")
                elif kind == "wrong":
                    data += WRONG_HIT
                    expected[index].append(ARITY)
                else:
                    data += bulks(b"ECHO", b"%d" % number)
                    expected[index].append(r.bulk(b"%d" % number))
            wires[index].take(client.send(data))
        elif step == "redis" and isinstance(more, int):
            redis(index, more)
        elif step == "lane":
            lane_answers(int(what))
        elif step == "time":
            world.clock.advance(what)
        elif step == "room" and isinstance(more, bytes):
            server.room[more] = server.room.get(more, 0) + int(what)
        elif step == "lost" and world.lanes:
            world.lane_lost(sent=0)
        elif step == "ready" and world.lanes:
            world.lane.ready = True
        elif step == "push" and alive:
            move()
            wires[index].out += PUSH
            pushes[index] += 1
        elif step == "eof" and alive:
            ended.add(index)
            client.ends()
        elif step == "gone":
            gone.add(index)
            client.vanishes()
        move()
    for _ in range(3000):
        if world.waiting.count == 0 and not any(wire.out for wire in wires) and not world.calls():
            break
        if world.lanes:
            world.lane.ready = True
        for index in range(4):
            redis(index, 1 << 20)
        lane_answers(1000)
        world.clock.advance(0.3)
        move()
    assert world.waiting.count == 0
    assert world.calls() == []
    assert world.clock.live() == []
    for index, client in enumerate(clients):
        got = received[index]
        assert got.count(PUSH) <= pushes[index]
        got = got.replace(PUSH, b"").partition(b">")[0]  # (the last one may be broken off)
        cut = index in gone or client.session.closed
        for each in expected[index]:
            size = len(each)
            if each == b"*5":
                size = len(b"".join(got.splitlines(keepends=True)[:6]))
            if cut and (len(got) < size or got.count(b"\r\n") < 2):
                assert got.startswith(each[: len(got)])
                got = b""
                break
            assert got.startswith(each)
            got = got[size:]
        else:
            assert cut or not client.session.outstanding()
        assert got == b""
