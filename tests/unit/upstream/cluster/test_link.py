"""A client's link to a node, on a real socket."""

from __future__ import annotations

import asyncio
import socket
import struct

from rlproxy.config.urls import Address
from rlproxy.upstream.cluster.link import Link, LinkOwner
from rlproxy.upstream.cluster.request import Request

RESETS = struct.pack("ii", 1, 0)  # SO_LINGER: close() ends the connection at once


class Owner(LinkOwner):
    """Takes replies, and the loss of its link."""

    def __init__(self) -> None:
        super().__init__()
        self.replies: list[bytes] = []
        self.ended = asyncio.Event()

    def replied(self, link: Link, request: Request, frame: bytes) -> None:
        self.replies.append(frame)

    def lost(self, link: Link, error: bytes = b"") -> None:
        self.ended.set()


def test_replies_are_read_after_a_failed_write() -> None:
    """A node closes behind a protocol error, while the client sends on."""

    async def run() -> list[bytes]:
        owner = Owner()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            host, port = listener.getsockname()
            link = Link(owner, Address(host, port))
            await asyncio.get_running_loop().create_connection(lambda: link, host, port)
            node, _ = listener.accept()
            link.send(Request(b"*1\r\n+PING\r\n"))
            link.flush()
            assert node.recv(100) == b"*1\r\n+PING\r\n"
            node.sendall(b"-ERR Protocol error\r\n")
            node.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESETS)
            node.close()
            link.send_raw(b"further")
            link.flush()
            await asyncio.wait_for(owner.ended.wait(), 5)
        return owner.replies

    assert asyncio.run(run()) == [b"-ERR Protocol error\r\n"]
