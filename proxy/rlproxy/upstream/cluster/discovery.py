"""Discovery: the view that one node has of its cluster, and the choice between several views.

a node ──CLUSTER SLOTS, NODES, INFO──> View ──┐
another one, if the first is slow or old ─────┴─> the view to use

It also parses redirects: they name another node as these replies do.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import hiredis

from rlproxy.config.urls import Address, Upstream
from rlproxy.observability.metrics import LOGIN, UNREACHABLE
from rlproxy.resp.key_slot import NO_SLOT
from rlproxy.upstream.cluster.slot_map import NO_MAP, Shard, SlotMap, slot_map
from rlproxy.upstream.connector import Target, control_hello, reason
from rlproxy.upstream.control import hello_error, wrong_mode
from rlproxy.upstream.query_connection import opened, text

# Limit of a connection to one node, and of its replies to each write, in seconds. A line with round
# trips of 0.4 s, with TLS, is fast enough.
REPLY_S: Final = 1.0
HEDGE_S: Final = 0.1  # seconds without a usable view after which one more node is queried
# The nodes that CLUSTER SLOTS leaves out.
EMPTY: Final = "a master without slots"
NEW: Final = "a replica that holds no data yet"
FAILED: Final = "the cluster counts it as failed"
_NAMELESS: Final = ("", "?")  # hosts that stand for the one by which the node was queried
# A line of CLUSTER NODES: id, IP, port, host name (None from servers without it), flags.
_NODE: Final = re.compile(r"(\S+) ([^\s,]*):([0-9]{1,5})(?:@[0-9]+)?(?:,([^\s,]*)\S*)? (\S+)")
_NUMBER: Final = re.compile(rb"[0-9]{1,5}")  # a slot or a port in a redirect
_MISSED: Final = ("cluster_slots_pfail", "cluster_slots_fail")


@dataclass
class View:
    """What one node reports of its cluster, or why it reports nothing.

    map: the owners of the slots.
    replicas: the replicas that CLUSTER SLOTS lists.
    unlisted: the nodes that CLUSTER SLOTS leaves out, each with EMPTY, NEW or FAILED.
    healthy: whether the node counts the cluster as available.
    suspects: whether it misses a master, whose replica may take over soon.
    foreign: whether it has no node in common with the present map: it is of another cluster.
    epoch: the cluster's current epoch as the node has it.
    version: of the node's server.
    problem, kind: the failure; see metrics.PROBLEMS. Empty if there is none.
    """

    map: SlotMap = NO_MAP
    healthy: bool = False
    epoch: int = 0
    version: str = ""
    commands: list[Any] | None = None  # the reply to COMMAND, if it was requested
    problem: str = ""
    kind: str = ""
    suspects: bool = False
    foreign: bool = False
    replicas: list[Address] = field(default_factory=list)
    unlisted: dict[Address, str] = field(default_factory=dict)

    def nodes(self) -> set[object]:
        """Return the ids and addresses of its masters, and the addresses of its replicas."""
        return {*(shard.id for shard in self.map.shards), *self.map.index, *self.replicas}

    def rank(self) -> tuple[bool, bool, bool, int, int]:
        """Return the order of preference between views, the best one last."""
        known = not self.foreign
        return (bool(self.map.shards), known, self.healthy, self.map.owned(), self.epoch)


async def view(target: Target, upstream: Upstream, known_version: str) -> View:
    """Query the node of `target`. Never raises OSError.

    upstream: the URL, with the login.
    known_version: the server version whose commands are known; those of another one are requested.
    """
    try:
        async with opened(target, REPLY_S) as connection:
            words = control_hello(upstream)
            words[1] = b"2"  # in RESP2, replies hold only lists
            about = [(b"CLUSTER", b"SLOTS"), (b"CLUSTER", b"NODES"), (b"CLUSTER", b"INFO")]
            reply, slots, nodes, info = await connection.query_all([tuple(words), *about])
            if isinstance(reply, hiredis.ReplyError):
                return View(problem=hello_error(str(reply), upstream.password), kind=LOGIN)
            named = reply if isinstance(reply, list) else []
            fields = dict(zip(named[::2], named[1::2], strict=False))
            if isinstance(slots, hiredis.ReplyError):
                # Some servers with the commands of a cluster name another mode.
                kind, problem = wrong_mode(text(fields.get(b"mode")), upstream, target.address)
                return View(problem=problem or f"CLUSTER SLOTS: {slots}", kind=kind or LOGIN)
            if isinstance(nodes, hiredis.ReplyError):
                return View(problem=f"CLUSTER NODES: {nodes}", kind=LOGIN)
            version = f"{text(fields.get(b'server'))} {text(fields.get(b'version'))}"
            found = View(read_slots(slots, target.address.host), version=version)
            others = [each for _, _, _, *listed in slots or () for each in listed]
            found.replicas = [node_address(at[0], at[1], target.address.host) for at in others]
            found.unlisted = unlisted(slots, text(nodes), target.address.host)
            facts = dict(line.split(":", 1) for line in text(info).splitlines() if ":" in line)
            found.healthy = facts.get("cluster_state") == "ok"
            found.suspects = any(facts.get(name, "0") != "0" for name in _MISSED)
            found.epoch = int(facts.get("cluster_current_epoch", 0))
            if found.version != known_version:
                commands = await connection.query(b"COMMAND")
                if isinstance(commands, hiredis.ReplyError):
                    return View(problem=f"COMMAND: {commands}", kind=LOGIN)
                found.commands = commands
            return found
    except OSError as error:
        return View(problem=reason(error), kind=UNREACHABLE)


def read_slots(reply: Any, host: str) -> SlotMap:
    """Parse the reply to CLUSTER SLOTS.

    host: by which the node was queried; it stands for hosts that are NULL, empty or "?".
    """
    ranges: dict[Shard, list[tuple[int, int]]] = {}
    for first, last, master, *_ in reply if isinstance(reply, list) else []:
        shard = Shard(text(master[2]), node_address(master[0], master[1], host))
        ranges.setdefault(shard, []).append((first, last))
    return slot_map(ranges)


def unlisted(slots: Any, nodes: str, host: str) -> dict[Address, str]:
    """Return the nodes that CLUSTER SLOTS leaves out, each with EMPTY, NEW or FAILED.

    slots, nodes: the replies to CLUSTER SLOTS and CLUSTER NODES. The second has the address and the
        host name of each node; the first shows which of them to connect to. A line of the second
        in another form is left out.
    host: see read_slots().
    """
    shown = {text(each[2]): text(each[0]) for _, _, *shard in slots or () for each in shard}
    rows = [line.groups() for line in map(_NODE.match, nodes.splitlines()) if line]
    nameless = all(each in _NAMELESS for each in shown.values())
    named = any(name and shown.get(number) == name for number, _, _, name, _ in rows)
    found: dict[Address, str] = {}
    for number, ip, port, name, flag_list in rows:
        flags = flag_list.split(",")
        if number in shown or "handshake" in flags or "noaddr" in flags:
            continue
        at = name or "" if named else "" if nameless else ip
        state = FAILED if "fail" in flags else EMPTY if "master" in flags else NEW
        found[node_address(at.encode(), int(port), host)] = state
    return found


def node_address(host: bytes | None, port: int, reached: str) -> Address:
    """Return the address of a node as a reply of the cluster names it.

    reached: the host by which the node that replied was reached.
    """
    named = text(host).strip("[]")
    return Address(reached if named in _NAMELESS else named, port)


def redirect(frame: bytes, node: Address) -> tuple[int, Address | None]:
    """Read a MOVED or ASK: the slot, and the node that it names. None for other errors.

    node: the node that wrote it. Nodes may leave out their host: `MOVED 8579 :19202`.
    """
    words = frame[1:].split()
    if len(words) < 3 or words[0] not in (b"MOVED", b"ASK") or not _NUMBER.fullmatch(words[1]):
        return NO_SLOT, None
    host, _, port = words[2].rpartition(b":")
    if not _NUMBER.fullmatch(port):
        return NO_SLOT, None
    return int(words[1]), node_address(host, int(port), node.host)


async def best_view(
    nodes: Sequence[Address],
    query: Callable[[Address], Coroutine[Any, Any, View]],
    epoch: int,
    slots: int,
) -> View:
    """Query `nodes` one after the other, until one has a view that is healthy and not old.

    query: returns the view of one node.
    epoch: that of the present map; a view with a smaller one is old.
    slots: number of slots with an owner in the present map; a view with fewer is old. During a
        failover a node may report for a moment no owner of the slots of a former master.
    Returns the best view. A view without masters has a problem, or is of a cluster without slots.
    While the cluster is down, silent nodes are not waited for: so the next look, which may find it
    up again, comes sooner.
    """
    left = list(nodes)
    best: View | None = None
    pending: set[asyncio.Task[View]] = set()
    try:
        while left or pending:
            if left:
                pending.add(asyncio.ensure_future(query(left.pop(0))))
            down = best is not None and bool(best.map.shards) and not best.healthy
            done, pending = await asyncio.wait(
                pending,
                timeout=HEDGE_S if left or down else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if not (done or left):
                break
            for task in done:
                found = task.result()
                if best is None or found.rank() > best.rank():
                    best = found
                present = found.epoch >= epoch and found.map.owned() >= slots
                if present and found.healthy and not found.foreign:
                    return found
    finally:
        for task in pending:
            task.cancel()
    return best or View()
