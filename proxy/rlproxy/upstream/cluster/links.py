"""The links of one client to the nodes: opened when first needed, closed when idle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from rlproxy.config.urls import Address
from rlproxy.resp import encoding
from rlproxy.upstream.cluster.cluster import Cluster
from rlproxy.upstream.cluster.discovery import EMPTY, FAILED, NEW
from rlproxy.upstream.cluster.link import Link, LinkOwner
from rlproxy.upstream.cluster.request import Request
from rlproxy.upstream.connector import reason

# A master drops replicas that are silent for 60 s (repl-timeout), so that those which a later WAIT
# counts have received what the closed link wrote.
IDLE_S: Final = 60.0  # seconds without a command after which a link is closed
REFUSED_S: Final = 1.0  # seconds for which a node that has refused the login gets no further one


class Links:
    """The links of one client.

    owner: that client; once it has ended, one that does nothing.
    by_address: the links by the address of their node.
    setup: what a further link sends first, by what it sets up, login and protocol before the rest;
        empty where it isn't set.
    holds_state: returns whether a link holds state that another one can't replace.
    """

    def __init__(self, cluster: Cluster, loop: asyncio.AbstractEventLoop, owner: LinkOwner) -> None:
        self.cluster = cluster
        self.loop = loop
        self.owner = owner
        self.by_address: dict[Address, Link] = {}
        self.setup: dict[bytes, bytes] = {b"AUTH": b"", b"HELLO": b""}
        self.holds_state: Callable[[Link], bool] = lambda _link: False
        self._home: Address | None = None
        # Nodes that have refused the login: until when, and the error.
        self._refused: dict[Address, tuple[float, bytes]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def to(self, address: Address) -> Link:
        """Return the link to the node at `address`, made if needed."""
        link = self._made(address)
        link.aside = False
        return link

    def _made(self, address: Address) -> Link:
        """Return the link to the node at `address`; one that is made here is aside."""
        link = self.by_address.get(address)
        if link is not None and link.finished and not (link.owed or self.holds_state(link)):
            self.forget(link)
            link = None
        if link is None:
            link = self.by_address[address] = Link(self.owner, address)
            link.aside = True
            self._set_up(link)
            task = self.loop.create_task(self._connect(link))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return link

    def home(self) -> Link:
        """Return the link to the node that runs the client's commands without a key."""
        address = self._home
        if address is None or not (address in self.cluster.map.index or self._in_use(address)):
            address = self._home = self.cluster.home(address)
        assert address is not None  # a client gets a connection only once a master is known
        return self.to(address)

    def _in_use(self, address: Address) -> bool:
        """Return whether the link to the node at `address` owes a reply, or holds state."""
        link = self.by_address.get(address)
        return link is not None and (bool(link.owed) or self.holds_state(link))

    def is_home(self, link: Link) -> bool:
        """Return whether `link` is the home node's."""
        return link.address == self._home

    def of_slot(self, slot: int) -> Link:
        """Return the link to the owner of `slot`; home if it has none, which writes the error."""
        if slot < 0:
            return self.home()
        index = self.cluster.map.owners[slot]
        return self.to(self.cluster.map.shards[index].address) if index >= 0 else self.home()

    def masters(self) -> list[Link]:
        """Return the links to all masters, home first if it is one."""
        home = self.home()
        links = [self.to(shard.address) for shard in self.cluster.map.shards]
        return sorted(links, key=lambda link: link is not home)

    def everywhere(self, replicas: bool) -> list[Link]:
        """Return the links to all masters, home first, and to those without slots.

        replicas: also to replicas.
        """
        wanted = (EMPTY, NEW) if replicas else (EMPTY,)
        others = [at for at, state in self.cluster.unlisted.items() if state in wanted]
        if replicas:
            others += self.cluster.replicas
        return list(dict.fromkeys([*self.masters(), *map(self._made, others)]))

    def errors_of_failed(self) -> list[bytes]:
        """Return the errors that stand for the replies of the nodes that have failed."""
        nodes = self.cluster.unlisted.items()
        return [encoding.unreachable(str(at), FAILED) for at, state in nodes if state == FAILED]

    def used(self) -> list[Link]:
        """Return the links to the masters that the client has used; the map may lack a new one."""
        links, replicas = self.by_address.values(), self.cluster.replicas
        found = [link for link in links if not link.aside and link.address not in replicas]
        return found or [self.home()]

    def others(self) -> list[Link]:
        """Return the links but home's."""
        return [link for link in self.by_address.values() if not self.is_home(link)]

    def set_up_others(self) -> None:
        """Repeat the set-up, with a new login or protocol, on all links but home's."""
        self._refused.clear()
        for link in self.others():
            self._set_up(link)

    def _set_up(self, link: Link) -> None:
        is_login = self.setup[b"AUTH"] != b""
        for at, written in enumerate(filter(None, self.setup.values())):
            request = Request(written)
            if at == 0:
                request.on_reply = partial(self._on_first_reply, link, is_login)
            if at == 0 and is_login:
                link.log_in(request)
            else:
                link.send(request)

    def leave_others(self) -> None:
        """Close all links but home's, for another login."""
        self._refused.clear()
        for link in self.others():
            self.forget(link)

    def forget(self, link: Link) -> bool:
        """Close `link`; the next command for its node opens another one.

        Returns whether it was the present one to its node.
        """
        known = self.by_address.get(link.address) is link
        if known:
            del self.by_address[link.address]
        link.close()
        return known

    def sweep(self, now: float) -> None:
        """Close the links but home's that are idle for IDLE_S; answer what failed nodes owe.

        now: loop time in seconds.
        """
        if len(self.by_address) < 2:
            return
        for link in list(self.by_address.values()):
            if link.owed and self.cluster.unlisted.get(link.address) == FAILED:
                self.owner.lost(link, encoding.unreachable(str(link.address), FAILED))
            elif not link.idle_since or link.owed:
                link.idle_since = now
            elif now - link.idle_since >= IDLE_S and not (
                self.is_home(link) or self.holds_state(link)
            ):
                self.forget(link)

    async def _connect(self, link: Link) -> None:
        until, error = self._refused.get(link.address, (0.0, b""))
        if self.loop.time() < until:
            self.owner.lost(link, error)
            return
        target = self.cluster.target(link.address)
        try:
            await target.connect(lambda: link)
        except OSError as failure:
            self.cluster.refresh()
            if self.is_home(link):
                self._home = self.cluster.home(link.address)
            self.owner.lost(link, encoding.unreachable(target.where, reason(failure)))
            return
        if self.by_address.get(link.address) is not link:
            link.close()

    def _on_first_reply(self, link: Link, is_login: bool, frame: bytes) -> bytes:
        """Take the reply to the first item of a set-up: the login, if it has one."""
        if frame.startswith(b"-"):  # this node doesn't accept what the home node did
            self._refused[link.address] = (self.loop.time() + REFUSED_S, frame)
            self.owner.lost(link, frame)
        elif is_login:
            link.logged_in()
        return frame

    def close(self) -> None:
        """Close all links, those that are being opened once they are open.

        A connection whose opening is cancelled may reach its link all the same, and stay there.
        """
        for link in self.by_address.values():
            link.owed.clear()
            link.pieces.clear()
            link.close()
        self.by_address.clear()
        self.owner = LinkOwner()
        self.holds_state = lambda _link: False
