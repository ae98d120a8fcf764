"""client_requests: the framed requests of one client: what is denied, dropped, and looked at.

That an RL command becomes a call, test_session_family.py and the routing tests prove.
"""

from __future__ import annotations

import pytest
from rlproxy.resp.encoding import bulks
from rlproxy.resp.key_slot import NO_SLOT, key_slot
from rlproxy.session.client_requests import ClientRequests

from tests.unit.session.bench import PING

# -- dropped ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "slot"),
    [
        (bulks(b"GET", b"k"), key_slot(b"k")),
        (bulks(b"set", b"a\r\nb", b"v"), key_slot(b"a\r\nb")),
        (bulks(b"GET", b""), 0),
        (bulks(b"GET"), NO_SLOT),
        (bulks(b"DEL", b"k"), key_slot(b"k")),
        (bulks(b"MGET", b"k", b"{k}2", b"a{k}" * 99), key_slot(b"k")),
        (bulks(b"MGET", b"k", b"{k}2", b"b"), NO_SLOT),
        (bulks(b"MSET", b"k", b"b", b"{k}", b"c"), key_slot(b"k")),
        (bulks(b"MSET", b"k", b"v", b"b", b"v"), NO_SLOT),
        (bulks(b"RENAME", b"k", b"{k}2"), key_slot(b"k")),
        (bulks(b"RENAME", b"k", b"b"), NO_SLOT),
        (bulks(b"SMOVE", b"k", b"{k}2", b"b"), key_slot(b"k")),
        (bulks(b"ECHO", b"k"), NO_SLOT),
        (bulks(b"LPOP", b"k"), NO_SLOT),  # never shared
    ],
)
def test_the_slot_of_all_keys(request_: bytes, slot: int) -> None:
    requests = ClientRequests()
    requests.feed(PING + request_ + PING)
    requests.next()
    requests.next()
    assert requests.hash_slot() == slot
