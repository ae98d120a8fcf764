"""The scripts that clients of this process have run by EVAL, for EVALSHA on other nodes.

One Redis has one script cache: behind an EVAL, an EVALSHA of the same script succeeds. In a cluster
only the node that ran the EVAL has the script. So it is loaded in front of the first EVALSHA that
goes to another node, in the same write.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha1
from typing import Final

from rlproxy.config.urls import Address
from rlproxy.resp.encoding import bulks
from rlproxy.upstream.cluster.link import Link
from rlproxy.upstream.cluster.request import Request, own

MAX_SCRIPTS: Final = 1024
MAX_BYTES: Final = 4_000_000  # of all scripts
MAX_SCRIPT_BYTES: Final = 262_144  # of one script; larger ones are not kept

# Sends a request again if its reply is a redirect; see Redirects.take().
Take = Callable[[Link, Request, bytes], bool]


class Script:
    """A script.

    load: the request that loads it.
    nodes: those that have it, as far as is known.
    """

    __slots__ = ("load", "nodes")

    def __init__(self, text: bytes) -> None:
        self.load = bulks(b"SCRIPT", b"LOAD", text)
        self.nodes: set[Address] = set()


class ScriptCache:
    """The scripts of all clients of a process; beyond the bounds, the oldest are dropped."""

    __slots__ = ("_bytes", "_scripts")

    def __init__(self) -> None:
        self._scripts: dict[bytes, Script] = {}  # by SHA1, in hexadecimal digits
        self._bytes: int = 0

    def clear(self) -> None:
        """Forget all scripts, because a client sent SCRIPT FLUSH."""
        self._scripts.clear()
        self._bytes = 0

    def ran(self, text: bytes, node: Address) -> None:
        """Record that the script `text` is sent to `node` by EVAL."""
        if len(text) > MAX_SCRIPT_BYTES:
            return
        digest = sha1(text, usedforsecurity=False).hexdigest().encode()
        found = self._scripts.get(digest)
        if found is None:
            found = self._scripts[digest] = Script(text)
            self._bytes += len(found.load)
            while len(self._scripts) > MAX_SCRIPTS or self._bytes > MAX_BYTES:
                self._bytes -= len(self._scripts.pop(next(iter(self._scripts))).load)
        found.nodes.add(node)

    def prepare(self, request: Request, digest: bytes, node: Address, take: Take) -> None:
        """Load a script in front of the EVALSHA `request`, if `node` may lack it.

        digest: the SHA1 in the request.
        take: is called with errors that are redirects.
        """
        found = self._scripts.get(digest.lower())
        if found is None:
            return
        script = found
        if node not in script.nodes:
            script.nodes.add(node)
            request.front = [own(script.load)]

        def refused(link: Link, frame: bytes) -> bool:
            if frame.startswith(b"-NOSCRIPT"):  # the node was restarted or flushed
                script.nodes.discard(link.address)
            elif frame.startswith(b"-MOVED"):  # the next node may lack it
                request.front = [own(script.load)]
            return take(link, request, frame)

        request.refused = refused
