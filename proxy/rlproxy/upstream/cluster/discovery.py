"""Discovery: the view that one node has of its cluster, and the choice between several views.

a node ──CLUSTER SLOTS, CLUSTER INFO──> View ──┐
another one, if the first is slow or old ──────┴─> the view to use
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import hiredis

from rlproxy.config.urls import Address
from rlproxy.observability.metrics import CLUSTER, LOGIN, UNREACHABLE
from rlproxy.upstream.cluster.slot_map import Shard
from rlproxy.upstream.connector import Target, hello, reason
from rlproxy.upstream.query_connection import QueryConnection

REPLY_S: Final = 1.0  # reply limit of one node, in seconds
HEDGE_S: Final = 0.1  # seconds without a usable view after which one more node is queried
_NAMELESS: Final = ("", "?")  # hosts that stand for the one by which the node was queried
_MISSED: Final = ("cluster_slots_pfail", "cluster_slots_fail")
_NO_NODE: Final = "ERR This instance has cluster support disabled"


@dataclass
class View:
    """What one node reports of its cluster, or why it reports nothing.

    shards: the masters with slots.
    healthy: whether the node counts the cluster as available.
    suspects: whether it misses a master, whose replica may take over soon.
    epoch: the cluster's current epoch as the node has it.
    version: of the node's server.
    problem, kind: the failure; see metrics.PROBLEMS. Empty if there is none.
    """

    shards: tuple[Shard, ...] = ()
    healthy: bool = False
    epoch: int = 0
    version: str = ""
    commands: list[Any] | None = None  # the reply to COMMAND, if it was requested
    problem: str = ""
    kind: str = ""
    suspects: bool = False

    def rank(self) -> tuple[bool, bool, int, int]:
        """Return the order of preference between views, the best one last."""
        return (bool(self.shards), self.healthy, owned(self.shards), self.epoch)


class Login:
    """The credentials of the proxy's own connections to the nodes."""

    def __init__(self, user: str | None, password: str | None) -> None:
        self.user = user.encode() if user is not None else None
        self.password = password.encode() if password is not None else None

    def words(self) -> tuple[bytes, ...]:
        """Return the first command of a connection: RESP2, whose replies hold only lists."""
        words = hello(b"rlproxy-control", self.user, self.password)
        words[1] = b"2"
        return tuple(words)

    def refusal(self, error: str) -> str:
        """Describe the error reply to HELLO, without the password."""
        if error.startswith("NOAUTH"):
            return "it wants a password, and the URL has none"
        if error.startswith("WRONGPASS"):
            return "it refuses the user or password of the URL"
        if error.startswith("ERR unknown command"):  # quotes the arguments, password included
            return "it does not know HELLO (a server before Redis 6, or without that command)"
        return error.replace(self.password.decode(), "***") if self.password else error


async def view(address: Address, target: Target, login: Login, known_version: str) -> View:
    """Query the node at `address`. Never raises OSError.

    known_version: the server version whose commands are known; those of another one are requested.
    """
    connection = QueryConnection()
    try:
        async with asyncio.timeout(REPLY_S):
            await target.connect(lambda: connection)
            return await _viewed(connection, address, login, known_version)
    except OSError as error:
        return View(problem=reason(error), kind=UNREACHABLE)
    finally:
        connection.abort()


async def _viewed(
    connection: QueryConnection, address: Address, login: Login, known_version: str
) -> View:
    greeting = await connection.query(*login.words())
    if isinstance(greeting, hiredis.ReplyError):
        return View(problem=login.refusal(str(greeting)), kind=LOGIN)
    slots, info = await connection.query_all([(b"CLUSTER", b"SLOTS"), (b"CLUSTER", b"INFO")])
    if isinstance(slots, hiredis.ReplyError):
        if str(slots).startswith(_NO_NODE):
            return View(problem=no_node(address), kind=CLUSTER)
        return View(problem=f"CLUSTER SLOTS: {slots}", kind=LOGIN)
    found = View(shards(slots, address.host), version=_version(greeting))
    facts = _facts(info)
    found.healthy = facts.get("cluster_state") == "ok"
    found.suspects = any(facts.get(name, "0") != "0" for name in _MISSED)
    found.epoch = int(facts.get("cluster_current_epoch", 0))
    if found.version != known_version:
        commands = await connection.query(b"COMMAND")
        if isinstance(commands, hiredis.ReplyError):
            return View(problem=f"COMMAND: {commands}", kind=LOGIN)
        found.commands = commands
    return found


def no_node(address: Address) -> str:
    """Return the problem of a seed that is no node of a cluster, and the URL to use instead."""
    return f"it is no node of a Redis Cluster. Write --upstream redis://{address}"


def _version(greeting: Any) -> str:
    """Return name and version of the server from its reply to HELLO 2."""
    if not isinstance(greeting, list):
        return "?"
    fields = dict(zip(greeting[::2], greeting[1::2], strict=False))
    return f"{_text(fields.get(b'server', b''))} {_text(fields.get(b'version', b''))}"


def _facts(info: Any) -> dict[str, str]:
    lines = _text(info).splitlines() if isinstance(info, bytes) else []
    return dict(line.split(":", 1) for line in lines if ":" in line)


def shards(slots: Any, host: str) -> tuple[Shard, ...]:
    """Parse the reply to CLUSTER SLOTS.

    host: by which the node was queried; it stands for hosts that are NULL, empty or "?".
    Returns the masters with slots, sorted by id.
    """
    if not isinstance(slots, list):
        return ()
    ranges: dict[tuple[str, Address], list[tuple[int, int]]] = {}
    replicas: dict[str, list[Address]] = {}
    for first, last, master, *others in slots:
        name, address = _text(master[2]), node_address(master[0], master[1], host)
        ranges.setdefault((name, address), []).append((first, last))
        for each in others:
            found = node_address(each[0], each[1], host)
            if found not in replicas.setdefault(name, []):
                replicas[name].append(found)
    return tuple(
        Shard(name, address, _joined(owned), tuple(replicas.get(name, ())))
        for (name, address), owned in sorted(ranges.items(), key=lambda item: item[0][0])
    )


def node_address(host: bytes | None, port: int, asked: str) -> Address:
    """Return the address of a node as a reply of the cluster names it.

    asked: the host by which the node that replied was reached.
    """
    named = _text(host) if host is not None else ""
    return Address(asked if named in _NAMELESS else named, port)


def _joined(ranges: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Sort ranges of slots, and join those that touch."""
    out: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if out and out[-1][1] + 1 == first:
            out[-1] = (out[-1][0], last)
        else:
            out.append((first, last))
    return tuple(out)


def owned(found: Sequence[Shard]) -> int:
    """Return the number of slots that have an owner."""
    return sum(last - first + 1 for shard in found for first, last in shard.slots)


def with_owner(present: Sequence[Shard], slot: int, address: Address) -> tuple[Shard, ...]:
    """Return the shards after `slot` has moved to the node at `address`.

    A node that is not among them is added, with its address as id.
    """
    out = []
    known = False
    for shard in present:
        ranges = _without(shard.slots, slot)
        if shard.address == address:
            known = True
            ranges = _joined([*ranges, (slot, slot)])
        if ranges:
            out.append(Shard(shard.id, shard.address, ranges, shard.replicas))
    if not known:
        out.append(Shard(str(address), address, ((slot, slot),)))
    return tuple(out)


def _without(ranges: Sequence[tuple[int, int]], slot: int) -> tuple[tuple[int, int], ...]:
    out: list[tuple[int, int]] = []
    for first, last in ranges:
        if first <= slot <= last:
            out += [(first, slot - 1)] * (first < slot) + [(slot + 1, last)] * (slot < last)
        else:
            out.append((first, last))
    return tuple(out)


async def best_view(
    nodes: Sequence[Address], query: Callable[[Address], Any], epoch: int, slots: int = 0
) -> View | None:
    """Query `nodes` one after the other, until one has a view that is healthy and not old.

    query: returns the view of one node, as a coroutine.
    epoch: that of the present map; a view with a smaller one is old.
    slots: number of slots with an owner in the present map. During a failover a node can know for
        a moment that a master has become a replica, and not yet who has its slots.
    Returns the best view; None without nodes. A view without shards has a problem, or is of a
    cluster without slots. While the cluster is down, silent nodes are not waited for: so the next
    look, which may find it up again, comes sooner.
    """
    left = list(nodes)
    best: View | None = None
    pending: set[asyncio.Task[View]] = set()
    try:
        while left or pending:
            if left:
                pending.add(asyncio.ensure_future(query(left.pop(0))))
            down = best is not None and bool(best.shards) and not best.healthy
            done, pending = await asyncio.wait(
                pending,
                timeout=HEDGE_S if left or down else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if down and not (done or left):
                break
            for task in done:
                found = task.result()
                if best is None or found.rank() > best.rank():
                    best = found
                if not (found.healthy and found.shards):
                    continue
                if found.epoch >= epoch and owned(found.shards) >= slots:
                    return found
    finally:
        for task in pending:
            task.cancel()
    return best


def _text(found: Any) -> str:
    return found.decode("utf-8", "replace") if isinstance(found, bytes) else ""
