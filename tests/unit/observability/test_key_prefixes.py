"""Key prefixes: hits by the beginning of their key, for a bounded number of prefixes."""

from __future__ import annotations

from rlproxy.observability.key_prefixes import MAX_KNOWN, Prefixes, samples


def bulk(key: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(key), key)


def bulks(*keys: bytes) -> list[bytes]:
    return [bulk(key) for key in keys]


def test_prefix_ends_at_the_first_colon() -> None:
    prefixes = Prefixes(10)
    prefixes.add(bulks(b"user:1", b"user:23:x", b"ip:10.0.0.1", b":", b"plain"), bulks(b"user:1"))
    assert samples([prefixes.counts()]) == {
        ("user", "hits"): 2,
        ("user", "refused"): 1,
        ("ip", "hits"): 1,
        ("ip", "refused"): 0,
        ("", "hits"): 1,
        ("", "refused"): 0,
        ("(none)", "hits"): 1,
        ("(none)", "refused"): 0,
    }


def test_first_prefixes_have_labels() -> None:
    prefixes = Prefixes(2)
    prefixes.add(bulks(b"none", b"a:1", b"b:1", b"c:1", b"d:1", b"a:22", b"other:1"), bulks(b"c:1"))
    hits = {
        prefix: n for (prefix, kind), n in samples([prefixes.counts()]).items() if kind == "hits"
    }
    assert hits == {"(none)": 1, "a": 2, "b": 1, "(other)": 3}
    assert samples([prefixes.counts()])["(other)", "refused"] == 1


def test_known_prefixes_are_bounded_and_can_be_reset() -> None:
    prefixes = Prefixes(2)
    for length in range(1, MAX_KNOWN * 2):
        prefixes.add([b"$%d\r\na:" % length], [])  # each length is a new prefix
        assert len(prefixes._known) <= MAX_KNOWN
    assert samples([prefixes.counts()])["a", "hits"] == MAX_KNOWN * 2 - 1


def test_successor_continues_the_counts_and_the_labels() -> None:
    before = Prefixes(2)
    before.add(bulks(b"none", b"a:1", b"\xff:1", b"c:1"), bulks(b"a:1", b"c:1"))
    prefixes = Prefixes(2, before.counts())
    assert prefixes.counts() == before.counts()
    prefixes.add(bulks(b"\xff:2", b"d:1", b"a:3", b"none"), bulks(b"d:1"))
    assert samples([prefixes.counts()]) == {
        ("(none)", "hits"): 2,
        ("(none)", "refused"): 0,
        ("a", "hits"): 2,
        ("a", "refused"): 1,
        (r"\xff", "hits"): 2,
        (r"\xff", "refused"): 0,
        ("(other)", "hits"): 2,
        ("(other)", "refused"): 2,
    }
