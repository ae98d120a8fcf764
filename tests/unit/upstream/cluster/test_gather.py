"""gather: replies of several nodes joined, with frames of real servers and with generated ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rlproxy.resp.encoding import bulks
from rlproxy.upstream.cluster import gather as g

ERROR = b"-ERR one\r\n"
OTHER = b"-ERR other\r\n"
BLOB = b"!7\r\nERR one\r\n"
NIL2, NIL3 = b"$-1\r\n", b"_\r\n"
GOOD = [
    (g.summed, b":1\r\n"),
    (g.concatenated, bulks(b"a")),
    (g.union, bulks(b"a")),
    (g.least, b"*1\r\n:1\r\n"),
    (g.least, b":1\r\n"),
    (g.pairs, b"*2\r\n$1\r\na\r\n:1\r\n"),
    (g.text, b"$1\r\na\r\n"),
]


def placed(parts: list[tuple[list[int], bytes]]) -> bytes:
    """The reply to an MGET of these parts: the places of the keys, and the reply."""
    return g.placed([at for places, _ in parts for at in places], [frame for _, frame in parts])


@pytest.mark.parametrize(("merge", "good"), [*GOOD, (g.first, b"+OK\r\n"), (g.one_not_nil, NIL2)])
@pytest.mark.parametrize("error", [ERROR, BLOB])
def test_the_first_error_wins(merge: g.Merge, good: bytes, error: bytes) -> None:
    assert merge([error, good, OTHER]) == merge([good, error, OTHER]) == error
    assert merge([good]) == good


@pytest.mark.parametrize(("merge", "good"), GOOD)
def test_another_type_is_an_error(merge: g.Merge, good: bytes) -> None:
    assert merge([good, b"+OK\r\n"]).startswith(b"-ERR")
    assert merge([b"#t\r\n", good]).startswith(b"-ERR")


def test_union() -> None:
    assert g.union([bulks(b"a", b"b"), bulks(b"b", b"c")]) == bulks(b"a", b"b", b"c")


def test_least() -> None:
    assert g.least([b":3\r\n", b":2\r\n"]) == b":2\r\n"
    assert g.least([b"*2\r\n:1\r\n:0\r\n", b"*2\r\n:0\r\n:5\r\n"]) == b"*2\r\n:0\r\n:0\r\n"
    assert g.least([b"*1\r\n:1\r\n", b"*2\r\n:1\r\n:0\r\n"]) == g.UNEXPECTED


def test_one_succeeded() -> None:
    idle = b"-NOTBUSY No scripts in execution right now.\r\n"
    busy = b"-UNKILLABLE Sorry\r\n"
    assert g.one_succeeded([idle, b"+OK\r\n"]) == b"+OK\r\n"
    assert g.one_succeeded([idle, busy]) == busy
    assert g.one_succeeded([idle, idle]) == idle


@pytest.mark.parametrize("nil", [NIL2, NIL3])
def test_one_not_nil(nil: bytes) -> None:
    assert g.one_not_nil([nil, b"$1\r\na\r\n"]) == b"$1\r\na\r\n"
    assert g.one_not_nil([nil, nil]) == nil
    assert {g.one_not_nil([b"$1\r\na\r\n", nil, b"$1\r\nb\r\n"]) for _ in range(99)} == {
        b"$1\r\na\r\n",
        b"$1\r\nb\r\n",
    }


VALUES = st.lists(
    st.none() | st.binary(max_size=20) | st.sampled_from([b"\r\n", b"$-1\r\n", b"$3\r\n"]),
    min_size=1,
    max_size=12,
)


def encoded(values: list[bytes | None], nil: bytes) -> bytes:
    words = [nil if value is None else b"$%d\r\n%b\r\n" % (len(value), value) for value in values]
    return b"*%d\r\n" % len(words) + b"".join(words)


@given(VALUES, st.data(), st.sampled_from([NIL2, NIL3]))
def test_a_split_mget_equals_the_whole(
    values: list[bytes | None], data: st.DataObject, nil: bytes
) -> None:
    owners = data.draw(st.lists(st.integers(0, 3), min_size=len(values), max_size=len(values)))
    parts = []
    for node in range(4):
        places = [at for at, owner in enumerate(owners) if owner == node]
        if places:
            parts.append((places, encoded([values[at] for at in places], nil)))
    assert placed(parts) == encoded(values, nil)
