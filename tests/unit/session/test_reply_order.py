"""reply_order: replies leave in request order, whichever source delivers first."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rlproxy.session.reply_order import ReplyOrder, Source


class Replies(Source):
    """A source whose replies the test delivers. `runs` are the numbers of replies it still owes."""

    def __init__(self) -> None:
        super().__init__([])
        self.runs: list[int] = []

    def owes(self) -> bool:
        return sum(self.runs) > 0


class Client:
    """A client with `count` sources: its requests, and the replies that it has got."""

    def __init__(self, count: int) -> None:
        self.got: list[bytes] = []
        self.order = ReplyOrder(self.got)
        self.sources = [Replies() for _ in range(count)]
        self.waiting: list[list[bytes]] = [[] for _ in range(count)]  # replies of each source
        self.asked: list[bytes] = []  # all replies in request order
        self._last = -1

    def request(self, number: int) -> None:
        """Send a request whose reply comes from source `number`."""
        source = self.sources[number]
        self.order.expect(source)
        if number != self._last or not source.runs:
            source.runs.append(0)
        self._last = number
        source.runs[-1] += 1
        self.asked.append(b"%d" % len(self.asked))
        self.waiting[number].append(self.asked[-1])

    def reply(self, number: int) -> None:
        """Source `number` delivers its next reply, if it owes one."""
        source = self.sources[number]
        if not self.waiting[number]:
            return
        source.replies.append(self.waiting[number].pop(0))
        source.runs[0] -= 1
        last_run = len(source.runs) == 1 and number == self._last
        if source.runs[0] == 0 and not last_run:
            source.runs.pop(0)
            self.order.finished(source)
        elif source.runs[0] == 0:
            source.runs.pop(0)


def test_one_source_writes_straight_to_the_client() -> None:
    client = Client(1)
    for _ in range(3):
        client.request(0)
        assert client.sources[0].replies is client.got
    client.reply(0)
    assert client.got == [b"0"]
    assert client.order.buffered() == 0


def test_a_source_that_owes_nothing_is_followed_without_a_buffer() -> None:
    client = Client(2)
    client.request(0)
    client.reply(0)
    client.request(1)
    assert client.sources[1].replies is client.got
    client.reply(1)
    assert client.got == [b"0", b"1"]


def test_a_later_run_is_buffered_until_the_one_before_it_has_finished() -> None:
    client = Client(2)
    client.request(0)
    client.request(1)
    client.reply(1)
    assert client.got == []
    assert client.order.buffered() == 1
    client.reply(0)
    assert client.got == [b"0", b"1"]
    assert client.order.buffered() == 0
    assert client.sources[1].replies is client.got


def test_a_run_that_finished_early_leaves_in_its_turn() -> None:
    client = Client(3)
    for number in (0, 1, 2):
        client.request(number)
    client.reply(1)
    client.reply(2)
    assert client.got == []
    client.reply(0)
    assert client.got == [b"0", b"1", b"2"]


def test_a_run_in_progress_writes_straight_to_the_client_once_it_is_the_first() -> None:
    client = Client(2)
    client.request(0)
    client.request(1)
    client.request(1)
    client.reply(1)
    client.reply(0)
    assert client.got == [b"0", b"1"]
    client.reply(1)
    assert client.got == [b"0", b"1", b"2"]


def test_bytes_that_the_client_has_not_taken_are_not_buffered() -> None:
    client = Client(2)
    client.request(0)
    client.request(0)
    client.request(1)
    client.reply(0)
    client.sources[1].replies.append(b"four")
    assert client.got == [b"0"]
    assert client.order.buffered() == 4


def test_replies_of_a_run_that_has_become_the_first_are_not_buffered() -> None:
    client = Client(3)
    for number in (0, 1, 1, 2):
        client.request(number)
    client.reply(2)
    client.reply(0)
    client.reply(1)
    assert client.got == [b"0", b"1"]
    assert client.order.buffered() == 1


def test_finished_without_runs_is_nothing() -> None:
    client = Client(1)
    client.request(0)
    client.order.finished(client.sources[0])
    assert client.got == []
    assert client.order.buffered() == 0


EVENTS = st.lists(st.tuples(st.booleans(), st.integers(0, 2)), max_size=60)


def played(events: list[tuple[bool, int]], *, returns: bool, drained: bool) -> Client:
    """Return a client after requests (True) and replies (False) of three sources, and the rest.

    returns: whether a source may get a run while it owes the replies of an earlier one.
    drained: whether a run may be followed by another after all its replies were buffered.
    """
    client = Client(3)
    for is_request, number in events:
        if not is_request:
            client.reply(number)
            continue
        if number != client._last:
            if not returns and client.sources[number].owes():
                continue
            done = client._last >= 0 and not client.sources[client._last].owes()
            if not drained and done and client.got != client.asked:
                continue
        client.request(number)
    for number in (2, 1, 0):
        while client.waiting[number]:
            client.reply(number)
    return client


@settings(max_examples=300, deadline=None)
@given(EVENTS)
def test_all_replies_leave_in_request_order(events: list[tuple[bool, int]]) -> None:
    client = played(events, returns=False, drained=False)
    assert client.got == client.asked
    assert client.order.buffered() == 0


def test_a_run_that_was_buffered_whole_may_be_followed_by_another() -> None:
    client = Client(3)
    client.request(0)
    client.request(1)
    client.reply(1)
    client.request(2)
    client.reply(2)
    client.reply(0)
    assert client.got == [b"0", b"1", b"2"]


def test_a_source_may_get_a_run_while_it_owes_an_earlier_one() -> None:
    client = Client(2)
    for number in (0, 1, 0):
        client.request(number)
    client.reply(0)
    assert client.got == [b"0"]
    client.reply(1)
    client.reply(0)
    assert client.got == [b"0", b"1", b"2"]


@settings(max_examples=300, deadline=None)
@given(EVENTS)
def test_all_replies_leave_in_request_order_whatever_the_runs(
    events: list[tuple[bool, int]],
) -> None:
    client = played(events, returns=True, drained=True)
    assert client.got == client.asked
    assert client.order.buffered() == 0


def test_a_source_without_owes_is_refused() -> None:
    with pytest.raises(NotImplementedError):
        Source([]).owes()
