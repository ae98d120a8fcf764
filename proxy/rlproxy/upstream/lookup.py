"""Lookups of host names: connections to the same name share one.

A lookup holds a thread until the resolver answers, also when its connection has timed out long
before. So there is one for each name. The end of the process does not wait for it.
"""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import errno
import socket
from concurrent.futures import Future
from ipaddress import ip_address
from typing import Final

_under_way: Final[dict[str, Future[list[str]]]] = {}  # by name


async def addresses(host: str) -> list[str]:
    """Return the IP addresses of `host`, in the order to try them. Raises OSError.

    host: a name or an IP address.
    """
    with contextlib.suppress(ValueError):
        return [str(ip_address(host))]
    found = _under_way.get(host)
    if found is None:
        found = Future()
        found.set_running_or_notify_cancel()  # a connection that times out does not cancel it
        try:
            # threading.Thread would hold up the event loop until the thread runs, for some 800 µs.
            _thread.start_new_thread(_resolve, (host, found))
        except RuntimeError as error:
            raise OSError(errno.ENOMEM, str(error)) from None
        _under_way[host] = found
        found.add_done_callback(lambda _: _under_way.pop(host))
    return await asyncio.wrap_future(found)


def _resolve(host: str, found: Future[list[str]]) -> None:
    """Set the result of a lookup. Runs in a thread for which neither loop nor process waits."""
    try:
        answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        found.set_result([str(sockaddr[0]) for *_, sockaddr in answers])
    except Exception as error:
        found.set_exception(error)
