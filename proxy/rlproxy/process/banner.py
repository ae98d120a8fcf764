"""What a proxy logs once it serves: its addresses, and the state of its upstream in words."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rlproxy.build import describe
from rlproxy.config.urls import Address, Upstream
from rlproxy.observability.logs import log
from rlproxy.observability.metrics import FULL, UNREACHABLE
from rlproxy.process.admin_process import AdminProcess
from rlproxy.process.upstreams import FIRST_CONTACT_S, State
from rlproxy.version import VERSION


def print_banner(
    addresses: Sequence[Address],
    upstream: str,
    workers: int,
    admin: AdminProcess | None,
) -> None:
    """Log the version, the addresses, and a command to try.

    upstream: text about the upstream and its state.
    workers: number of worker processes.
    """
    first = addresses[0]
    secured = " --tls" if first.tls else ""
    cli = f"redis-cli{secured} " + (f"-s {first.path}" if first.path else f"-p {first.port}")
    where = ", ".join(map(str, addresses))
    banner = [
        f"rlproxy {describe()}, process {os.getpid()}",
        f"  listening on  {where}",
        f"  in front of   {upstream}",
    ]
    if workers > 1:
        banner.append(f"  served by     {workers} workers")
    if admin is not None:
        banner.append(f"  admin         {admin.url}")
    banner.append(f"  try           {cli} RL.HIT user:42 5 60")
    log.info(
        "started",
        "rlproxy {version} listens on {listen}, in front of {in_front_of}",
        version=VERSION,
        in_front_of=upstream,
        listen=[str(each) for each in addresses],
        admin=admin.url if admin is not None else None,
        workers=workers,
        pid=os.getpid(),
        plain=banner,
    )


def describe_upstream(upstream: Upstream, server: str, state: State) -> str:
    """Return the upstream and its state as text for the banner.

    server: name and version of the server; "" if unknown.
    """
    if upstream.embedded:
        kind = f"embedded cluster of {upstream.masters} masters" if upstream.masters else "embedded"
        return f"{server or 'Valkey'}, {kind} (its data ends with this process)"
    where = str(upstream)
    if upstream.tls:
        where += " (TLS)"
    if state.now:
        where += f" ({state.now})"
    if state.kind in (FULL, UNREACHABLE):
        return f"{where}: {state.problem}; retrying"
    if state.settled:
        found = f"{server or 'a server'} at {where}"
        return f"{found}: {state.problem}" if state.problem else found
    if state.reached:
        silent = "it accepts connections, but does not answer as Redis does"
        return f"{where}: {silent} (nothing within {FIRST_CONTACT_S:g} s)"
    return f"{where}: no connection within {FIRST_CONTACT_S:g} s; retrying"
