"""redirects: what MOVED and ASK name."""

from __future__ import annotations

import pytest
from rlproxy.config.urls import Address
from rlproxy.upstream.cluster.redirects import is_redirect, redirect
from rlproxy.upstream.cluster.request import NO_SLOT

ASKED = Address("10.0.0.1", 7000)


@pytest.mark.parametrize(
    ("frame", "slot", "address"),
    [
        (b"-MOVED 3999 127.0.0.1:6381\r\n", 3999, Address("127.0.0.1", 6381)),
        (b"-ASK 0 node.example:6381\r\n", 0, Address("node.example", 6381)),
        (b"-MOVED 8579 :19202\r\n", 8579, Address("10.0.0.1", 19202)),
        (b"-MOVED 8579 ?:19202\r\n", 8579, Address("10.0.0.1", 19202)),
        (b"-MOVED 1 ::1:6381\r\n", 1, Address("::1", 6381)),
        (b"-MOVED 1 [::1]:6381\r\n", 1, Address("::1", 6381)),
        (b"-MOVED 1 nowhere\r\n", NO_SLOT, None),
        (b"-MOVED x 127.0.0.1:6381\r\n", NO_SLOT, None),
        (b"-MOVED\r\n", NO_SLOT, None),
        (b"-TRYAGAIN Multiple keys request during rehashing of slot\r\n", NO_SLOT, None),
    ],
)
def test_redirect(frame: bytes, slot: int, address: Address | None) -> None:
    assert redirect(frame, ASKED) == (slot, address)
    assert is_redirect(frame) == (frame != b"-MOVED\r\n")


@pytest.mark.parametrize(
    "frame", [b"-ERR x\r\n", b"-CLUSTERDOWN x\r\n", b"-UNBLOCKED client unblocked\r\n", b"+OK\r\n"]
)
def test_other_replies_are_no_redirects(frame: bytes) -> None:
    assert not is_redirect(frame)
