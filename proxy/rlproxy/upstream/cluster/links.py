"""The links of one client to the nodes of the cluster: opened when first needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rlproxy.config.urls import Address
from rlproxy.resp import encoding
from rlproxy.upstream.cluster.cluster import Cluster
from rlproxy.upstream.cluster.link import Link, LinkOwner
from rlproxy.upstream.cluster.request import NO_SLOT, own
from rlproxy.upstream.connector import reason


class Links(LinkOwner):
    """The links of one client. The base of Exchange.

    greeting: what a further link sends first: the client's login, protocol and the like.
    links: the links by the address of their node.
    holds_state: returns whether a link holds state that another one can't replace.
    """

    def __init__(self, cluster: Cluster, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.cluster = cluster
        self.loop = loop
        self.greeting: list[bytes] = []
        self.links: dict[Address, Link] = {}
        self.holds_state: Callable[[Link], bool] = _holds_none
        self._map = cluster.map
        self._by_shard: dict[int, Link] = {}  # links by the index of the master in `_map`
        self._home: Address | None = None
        self._full = False  # a node takes no more bytes for now
        self._paused = False
        self._tasks: set[asyncio.Task[None]] = set()

    def failed(self, link: Link, error: bytes) -> None:
        """Answer all that `link` owes with `error`, and close it."""
        raise NotImplementedError

    def link(self, address: Address) -> Link:
        """Return the link to the node at `address`, made if needed."""
        link = self.links.get(address)
        if link is None:
            link = self.links[address] = Link(self, address)
            link.paused = self._paused
            self._greet(link, self.greeting)
            task = self.loop.create_task(self._connect(link))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return link

    def home(self) -> Link:
        """Return the link to the node that runs the client's commands without a key."""
        address = self._home
        if address is None or (address not in self._map.index and not self._stays(address)):
            address = self._home = self._next_home(address)
        return self.link(address)

    def _stays(self, home: Address) -> bool:
        """Return whether the home node, which is no master any more, still has to be home."""
        link = self.links.get(home)
        return link is not None and (bool(link.owed) or self.holds_state(link))

    def _next_home(self, failed: Address | None) -> Address:
        shard = self.cluster.home(failed)
        if shard is not None:
            return shard.address
        assert failed is not None  # a client gets a connection only once a master is known
        return failed

    def is_home(self, link: Link) -> bool:
        """Return whether `link` is the home node's."""
        return link.address == self._home

    def of_slot(self, slot: int) -> Link:
        """Return the link to the owner of `slot`; home if it has none, which writes the error."""
        if slot == NO_SLOT:
            return self.home()
        index = self._map.owners[slot]
        link = self._by_shard.get(index)
        if link is None:
            if index < 0:
                return self.home()
            link = self._by_shard[index] = self.link(self._map.shards[index].address)
        return link

    def masters(self) -> list[Link]:
        """Return the links to all masters, home first. Home itself, if it is no master now, is left
        out.
        """
        home = self.home()
        others = [shard.address for shard in self._map.shards]
        if home.address in others:
            others.remove(home.address)
        elif others:
            return [self.link(address) for address in others]
        return [home, *[self.link(address) for address in others]]

    def used(self) -> list[Link]:
        """Return the links to the masters that the client has used."""
        index = self._map.index
        return [link for link in self.links.values() if link.address in index] or [self.home()]

    def replicas(self) -> list[Link]:
        """Return the links to all replicas."""
        shards = self._map.shards
        return [self.link(address) for shard in shards for address in shard.replicas]

    def greet_others(self, greeting: list[bytes]) -> None:
        """Send the client's new login or protocol on all links but home's."""
        for link in list(self.links.values()):
            if not self.is_home(link):
                self._greet(link, greeting)

    def _greet(self, link: Link, greeting: list[bytes]) -> None:
        for at, written in enumerate(greeting):
            request = own(written)
            if at == 0:
                request.answered = self._login_answer(link)
            link.send(request)

    def leave_others(self) -> None:
        """Close all links but home's."""
        for link in list(self.links.values()):
            if not self.is_home(link):
                self.forget(link)

    def forget(self, link: Link) -> None:
        """Close `link`; the next command for its node opens another one."""
        if self.links.get(link.address) is link:
            del self.links[link.address]
            self._by_shard.clear()
            self._full = any(link.full for link in self.links.values())
        link.close()

    async def _connect(self, link: Link) -> None:
        try:
            await self.cluster.target(link.address).connect(lambda: link)
        except OSError as error:
            where = self.cluster.target(link.address).where
            if self.is_home(link):
                self._home = self._next_home(link.address)
            self.failed(link, encoding.unreachable(where, reason(error)))
            self.cluster.refresh()
            self.batch_over()
            return
        if self.links.get(link.address) is not link:
            link.close()

    def flush(self) -> None:
        """Write what was sent on all links."""
        while self.unsent:  # a link that is full may wake the client
            self.unsent.pop().flush()

    def pause(self, paused: bool) -> None:
        """Stop reading the nodes, or go on."""
        self._paused = paused
        for link in self.links.values():
            link.paused = paused
            link.read()

    def _login_answer(self, link: Link) -> Callable[[bytes], bytes]:
        def answered(frame: bytes) -> bytes:
            if frame.startswith(b"-"):  # this node doesn't accept what the home node did
                self.failed(link, frame)
            return frame

        return answered

    def _close_links(self) -> None:
        for task in self._tasks:
            task.cancel()
        for link in list(self.links.values()):
            link.close()
        self.links.clear()
        self._by_shard.clear()  # IdleLinks may hold the client for some seconds more
        self.holds_state = _holds_none


def _holds_none(_link: Link) -> bool:
    return False
