"""Lookups of host names: connections to the same name share one.

A lookup holds one of the event loop's few threads until the resolver answers, also when its
connection has timed out long before. More lookups of a name than one would hold up connections to
other names, and the end of the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from functools import partial
from ipaddress import ip_address
from typing import Final

_Lookup = asyncio.Task[list[str]]
_under_way: Final[dict[str, _Lookup]] = {}  # by name


async def addresses(host: str) -> list[str]:
    """Return the IP addresses of `host`, in the order to try them. Raises OSError.

    host: a name or an IP address.
    """
    with contextlib.suppress(ValueError):
        return [str(ip_address(host))]
    lookup = _under_way.get(host)
    if lookup is None:
        lookup = asyncio.get_running_loop().create_task(_look_up(host))
        _under_way[host] = lookup
        lookup.add_done_callback(partial(_ended, host))
    await asyncio.wait([lookup])  # a connection that times out does not end the lookup
    return lookup.result()


async def _look_up(host: str) -> list[str]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(sockaddr[0]) for *_, sockaddr in found]


def _ended(host: str, lookup: _Lookup) -> None:
    del _under_way[host]
    if not lookup.cancelled():
        lookup.exception()  # asyncio logs an error that no waiting connection takes
