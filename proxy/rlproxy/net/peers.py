"""A client's address, as its connection shows it, and whether it is on this machine."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Any, Final

from rlproxy.config.urls import Address


@dataclass(frozen=True, slots=True)
class Peer:
    """The address of a client.

    host: an IP address, or empty for a unix socket.
    """

    host: str = ""
    port: int = 0

    @property
    def local(self) -> bool:
        """Whether the client uses a unix socket or a loopback address."""
        if not self.host:
            return True
        try:
            address = ipaddress.ip_address(self.host.partition("%")[0])
        except ValueError:
            return False
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return address.is_loopback

    def __str__(self) -> str:
        return str(Address(self.host, self.port)) if self.host else "unix socket"


NOBODY: Final = Peer()


def peer_of(name: Any) -> Peer:
    """Return the Peer for `name`, the result of getpeername(): a tuple for TCP."""
    return Peer(name[0], name[1]) if isinstance(name, tuple) else NOBODY
