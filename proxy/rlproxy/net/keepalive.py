"""TCP keepalive: it detects a peer that vanished without closing."""

from __future__ import annotations

import socket


def keep_alive(sock: socket.socket, silent_s: int) -> None:
    """Turn keepalive on for a socket, or for those that a listening socket accepts.

    silent_s: seconds of silence before the first probe. Three probes follow within the same time
    again, then the kernel ends the connection. 0: no probes.
    """
    if silent_s == 0:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", silent_s),
        ("TCP_KEEPINTVL", max(1, silent_s // 3)),
        ("TCP_KEEPCNT", 3),
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
