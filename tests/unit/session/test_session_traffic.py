"""session: random traffic keeps the order of the requests."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from rlproxy.resp import encoding as r
from rlproxy.resp.encoding import bulks
from rlproxy.resp.requests import COMMAND, EMPTY, RequestFramer

from tests.unit.session.bench import (
    ARITY,
    PUSH,
    UNKNOWN,
    WRONG_HIT,
    probed,
)


class Redis:
    """Answers what reaches the private connection, in order, each with what names the request."""

    def __init__(self) -> None:
        self.framer = RequestFramer()
        self.executed: list[bytes] = []
        self.out = b""

    def take(self, data: bytes) -> None:
        framer = self.framer
        if data:
            framer.feed(data)
        while (code := framer.next()) in (COMMAND, EMPTY):
            if code == EMPTY:
                continue
            words = framer.buf[framer.start : framer.end].split(b"\r\n")[2::2]
            if words[0] == b"EVAL" and len(words) == 4:
                self.out += b":1\r\n"  # (of REWRITE)
            elif words[0] == b"EVAL":
                self.executed.append(words[3])
                self.out += r.five(0, int(words[3]), 1, -1, 1)
            elif words[0] == b"WAIT" and words[1] == b"0":
                self.out += b":0\r\n"
            elif words[0] == b"RL.HIT":
                self.out += UNKNOWN
            else:
                self.executed.append(words[1])
                self.out += b"$%d\r\n%b\r\n" % (len(words[1]), words[1])


KINDS = ["hit", "hit", "hit", "echo", "wrong", "wait", "blank"]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.lists(st.sampled_from(KINDS), min_size=1, max_size=90)),
        st.tuples(st.just("cut"), st.integers(1, 60)),
        st.tuples(st.just("lane"), st.integers(1, 70)),
        st.tuples(st.just("redis"), st.integers(1, 300)),
        st.tuples(st.sampled_from(["push", "slow", "fast", "lost", "ready"]), st.none()),
    ),
    max_size=25,
)


@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_whatever_happens_replies_keep_the_order_of_the_requests(
    steps: list[tuple[str, object]],
) -> None:
    bench = probed()
    redis = Redis()
    number = 0
    expected: list[bytes] = []
    unsent = b""
    down = b""
    pushes = 0

    def move() -> None:
        nonlocal down
        down += bench.down()
        redis.take(bench.up())

    def lane_answers(count: int) -> None:
        for call in bench.lane.calls[:count]:
            key = call.key.split(b"\r\n")[1]
            redis.executed.append(key)
            bench.session.lane_answered(call, r.five(0, int(key), 1, -1, 1))
        del bench.lane.calls[:count]
        bench.session.resume()

    ends: list[tuple[str, object]] = [("fast", None), ("ready", None), ("flush", None)]
    for step, what in [*steps, *ends]:
        if step == "send" and isinstance(what, list):
            for kind in what:
                number += 1
                name = b"%d" % number
                if kind == "hit":
                    unsent += bulks(b"RL.HIT", name, b"10", b"60")
                    expected.append(r.five(0, number, 1, -1, 1))
                elif kind == "wrong":
                    unsent += WRONG_HIT
                    expected.append(ARITY)
                elif kind == "blank":
                    unsent += b"\r\n"
                else:
                    unsent += bulks(b"ECHO" if kind == "echo" else b"WAIT", name)
                    expected.append(r.bulk(name))
            bench.session.receive(unsent)
            unsent = b""
        elif step == "cut" and isinstance(what, int):
            number += 1
            data = bulks(b"RL.HIT", b"%d" % number, b"10", b"60")
            expected.append(r.five(0, number, 1, -1, 1))
            bench.session.receive(unsent + data[:what])
            unsent = data[what:]
        elif step == "lane" and isinstance(what, int):
            lane_answers(what)
        elif step == "redis" and isinstance(what, int):
            move()
            if redis.out:
                bench.session.upstream_received(redis.out[:what])
            redis.out = redis.out[what:]
        elif step == "push":
            move()
            redis.out += PUSH
            pushes += 1
        elif step in ("slow", "fast"):
            if step == "slow":
                bench.session.leaves_unread()
            else:
                bench.session.reads_on()
        elif step in ("lost", "ready"):
            bench.lane.ready = step == "ready"
            if step == "lost":
                for call in bench.lane.calls:
                    bench.session.lane_returned(call)
                bench.lane.calls.clear()
                bench.session.resume()
        else:
            if unsent:
                bench.session.receive(unsent)
            for _ in range(1000):
                move()
                if not redis.out and not bench.lane.calls:
                    break
                if redis.out:
                    bench.session.upstream_received(redis.out)
                redis.out = b""
                lane_answers(100)
        move()
    assert down.count(PUSH) == pushes
    assert down.replace(PUSH, b"") == b"".join(expected)
    assert not bench.session.outstanding()
    numbers = [int(each) for each in redis.executed]
    assert len(set(numbers)) == len(numbers)  # nothing is counted twice
