"""Key prefixes: hits by the beginning of their key, for a bounded number of prefixes."""

from __future__ import annotations

from collections import Counter

import pytest
from rlproxy.observability import key_prefixes
from rlproxy.observability.counters import MAX_KEY, SHOWN, brief
from rlproxy.observability.key_prefixes import Prefixes
from rlproxy.observability.metrics import Labels
from rlproxy.resp import escape


def bulk(key: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(key), key)


def bulks(*keys: bytes) -> Counter[bytes]:
    return Counter(bulk(key) for key in keys)


def test_prefix_ends_at_the_first_colon() -> None:
    prefixes = Prefixes(10, {})
    prefixes.add(bulks(b"user:1", b"user:23:x", b"ip:10.0.0.1", b":", b"plain"), bulks(b"user:1"))
    assert prefixes.samples == {
        ("user", "hits"): 2,
        ("user", "refused"): 1,
        ("ip", "hits"): 1,
        ("ip", "refused"): 0,
        ("", "hits"): 1,
        ("", "refused"): 0,
        ("(none)", "hits"): 1,
        ("(none)", "refused"): 0,
    }


def test_a_long_key_counts_as_its_short_name_does() -> None:
    for at, found in ((SHOWN - 1, "a" * 64), (SHOWN, "(none)")):
        whole = bulk(b"a" * at + b":" + b"b" * MAX_KEY)
        for key in (whole, brief(whole)):
            prefixes = Prefixes(10, {})
            prefixes.add({key: 2}, {})
            assert prefixes.samples[found, "hits"] == 2


def test_first_prefixes_have_labels() -> None:
    prefixes = Prefixes(2, {})
    prefixes.add(bulks(b"none", b"a:1", b"b:1", b"c:1", b"d:1", b"a:22", b"other:1"), bulks(b"c:1"))
    hits = {prefix: n for (prefix, kind), n in prefixes.samples.items() if kind == "hits"}
    assert hits == {"(none)": 1, "a": 2, "b": 1, "(other)": 3}
    assert prefixes.samples["(other)", "refused"] == 1


def test_successor_continues_the_counts_and_the_labels() -> None:
    before = Prefixes(2, {})
    before.add(bulks(b"none", b"a:1", b"\xff:1", b"c:1"), bulks(b"a:1", b"c:1"))
    prefixes = Prefixes(2, before.samples)
    assert prefixes.samples == before.samples
    prefixes.add(bulks(b"\xff:2", b"d:1", b"a:3", b"none"), bulks(b"d:1"))
    assert prefixes.samples == {
        ("(none)", "hits"): 2,
        ("(none)", "refused"): 0,
        ("a", "hits"): 2,
        ("a", "refused"): 1,
        (r"\xff", "hits"): 2,
        (r"\xff", "refused"): 0,
        ("(other)", "hits"): 2,
        ("(other)", "refused"): 2,
    }


def test_a_prefix_is_escaped_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Escaping bytes that are no text takes 20 times as long as counting them."""
    escaped: list[bytes] = []

    def shown(prefix: bytes) -> str:
        escaped.append(prefix)
        return escape.shown(prefix)

    monkeypatch.setattr(key_prefixes, "shown", shown)
    before: dict[Labels, float] = {}
    for _ in range(2):  # the second one continues the counts of the first
        prefixes = Prefixes(1, before)
        for _ in range(2):
            prefixes.add(bulks(b"\xff:1", b"\xfe:1", b"none"), bulks(b"\xff:1"))
        before = prefixes.samples
    assert escaped == [b"\xff"]
    assert before[r"\xff", "hits"] == before["(other)", "hits"] == 4
