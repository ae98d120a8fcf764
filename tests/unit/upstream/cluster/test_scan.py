"""scan: cursors over several nodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rlproxy.resp.encoding import bulks
from rlproxy.upstream.cluster import scan
from rlproxy.upstream.cluster.slot_map import MARKS

from tests.unit.upstream.cluster.replies import parsed

ERROR = b"-ERR one\r\n"
CURSORS = st.integers(0, (1 << 48) - 1)


@given(CURSORS.filter(bool), st.data(), st.integers(0, MARKS - 1))
def test_cursors_go_both_ways(node_cursor: int, data: st.DataObject, mark: int) -> None:
    steps = data.draw(st.integers(1, 200))
    step = data.draw(st.integers(0, steps - 1))
    rest = bulks(b"k")
    frame = b"*2\r\n$%d\r\n%d\r\n%b" % (len(b"%d" % node_cursor), node_cursor, rest)
    found = parsed(scan.with_cursor(frame, step, steps, mark))
    assert isinstance(found, list)
    assert found[1] == [b"k"]
    assert 0 < int(found[0]) < 1 << 64
    assert scan.split(found[0], steps, mark) == (step, b"%d" % node_cursor)


@pytest.mark.parametrize("mark", [0, 7])
def test_a_node_that_is_done_is_followed_by_the_next(mark: int) -> None:
    done = b"*2\r\n$1\r\n0\r\n*0\r\n"
    for step in range(2):
        found = parsed(scan.with_cursor(done, step, 3, mark))
        assert isinstance(found, list)
        assert found[0] != b"0"
        assert scan.split(found[0], 3, mark) == (step + 1, b"0")
    assert scan.split(b"0", 3, mark) == (0, b"0")


def test_another_mark_begins_anew() -> None:
    frame = b"*2\r\n$2\r\n96\r\n*0\r\n"
    found = parsed(scan.with_cursor(frame, 1, 3, 5))
    assert isinstance(found, list)
    assert scan.split(found[0], 3, 5) == (1, b"96")
    assert scan.split(found[0], 3, 6) == (0, b"0")


@pytest.mark.parametrize("cursor", [b"", b"x", b"-1", b"1 ", b"9" * 25, b"18446744073709551616"])
def test_invalid_cursors(cursor: bytes) -> None:
    assert scan.split(cursor, 3, 0) is None


def test_scan_errors() -> None:
    assert scan.with_cursor(ERROR, 0, 3, 0) == ERROR
    assert scan.with_cursor(b"+OK\r\n", 0, 3, 0).startswith(b"-ERR")
    large = b"*2\r\n$20\r\n18446744073709551615\r\n*0\r\n"
    assert scan.with_cursor(large, 0, 3, 0).startswith(b"-ERR")
