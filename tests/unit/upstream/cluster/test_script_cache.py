"""The cache of scripts: what is loaded in front of an EVALSHA, and the bounds."""

from __future__ import annotations

from hashlib import sha1
from typing import Any

from rlproxy.config.urls import Address
from rlproxy.resp.encoding import bulks
from rlproxy.upstream.cluster import script_cache
from rlproxy.upstream.cluster.request import Request
from rlproxy.upstream.cluster.script_cache import ScriptCache

ONE, OTHER = Address("h", 1), Address("h", 2)
TEXT = b"return 1"


class AnyLink:
    """A link as far as its address."""

    def __init__(self, address: Address) -> None:
        self.address = address


def digest(text: bytes) -> bytes:
    return sha1(text, usedforsecurity=False).hexdigest().encode()


def prepared(cache: ScriptCache, node: Address, text: bytes = TEXT) -> Request:
    """An EVALSHA for `node`."""
    request = Request(b"")
    cache.prepare(request, digest(text), node, lambda *_: False)
    return request


def loads(request: Request) -> list[bytes]:
    return [each.written for each in request.front]


def refuse(request: Request, node: Address, error: bytes) -> None:
    link: Any = AnyLink(node)
    assert request.refused is not None
    assert not request.refused(link, error)


def test_a_script_is_loaded_once_where_it_did_not_run() -> None:
    cache = ScriptCache()
    assert loads(prepared(cache, ONE)) == []
    cache.ran(TEXT, ONE)
    assert loads(prepared(cache, ONE)) == []
    assert loads(prepared(cache, OTHER)) == [bulks(b"SCRIPT", b"LOAD", TEXT)]
    assert loads(prepared(cache, OTHER)) == []


def test_digests_in_upper_case() -> None:
    cache = ScriptCache()
    cache.ran(TEXT, ONE)
    request = Request(b"")
    cache.prepare(request, digest(TEXT).upper(), OTHER, lambda *_: False)
    assert len(request.front) == 1


def test_a_node_that_lost_the_script_gets_it_again() -> None:
    cache = ScriptCache()
    cache.ran(TEXT, ONE)
    request = prepared(cache, ONE)
    refuse(request, ONE, b"-ERR other\r\n")
    assert loads(prepared(cache, ONE)) == []
    refuse(request, ONE, b"-NOSCRIPT No matching script.\r\n")
    assert len(loads(prepared(cache, ONE))) == 1


def test_a_moved_request_takes_the_script_along() -> None:
    cache = ScriptCache()
    cache.ran(TEXT, ONE)
    request = prepared(cache, ONE)
    refuse(request, ONE, b"-MOVED 1 h:2\r\n")
    assert loads(request) == [bulks(b"SCRIPT", b"LOAD", TEXT)]


def test_clear() -> None:
    cache = ScriptCache()
    cache.ran(TEXT, ONE)
    cache.clear()
    assert loads(prepared(cache, OTHER)) == []


def test_bounds() -> None:
    cache = ScriptCache()
    cache.ran(b"x" * (script_cache.MAX_SCRIPT_BYTES + 1), ONE)
    assert prepared(cache, OTHER, b"x" * (script_cache.MAX_SCRIPT_BYTES + 1)).front == []
    for number in range(script_cache.MAX_SCRIPTS + 1):
        cache.ran(b"return %d" % number, ONE)
    assert prepared(cache, OTHER, b"return 0").front == []
    assert prepared(cache, OTHER, b"return 1").front != []
    large = [b"--%d" % number + b"x" * 200_000 for number in range(25)]
    for text in large:
        cache.ran(text, ONE)
    kept = [text for text in large if prepared(cache, OTHER, text).front]
    assert kept == large[-len(kept) :]
    assert 201_000 * (len(kept) + 1) > script_cache.MAX_BYTES >= sum(map(len, kept))
