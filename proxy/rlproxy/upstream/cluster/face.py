"""The face of the proxy in front of a cluster: one node with all slots, or a standalone server.

These replies are made or edited here. Their shapes are those of Redis 7.0.
"""

from __future__ import annotations

from hashlib import sha1
from typing import Final, NamedTuple

from rlproxy.resp.encoding import bulk, encoded, error
from rlproxy.resp.key_slot import SLOTS, key_slot

DISABLED: Final = b"-ERR This instance has cluster support disabled\r\n"
_LAST: Final = SLOTS - 1
_BUS: Final = 10_000  # distance of the port of the cluster bus from that for clients
_MAX_PORT: Final = 65_535
_NUMBERS: Final = (
    ("cluster_slots_assigned", SLOTS),
    ("cluster_slots_ok", SLOTS),
    ("cluster_slots_pfail", 0),
    ("cluster_slots_fail", 0),
    ("cluster_known_nodes", 1),
    ("cluster_size", 1),
    ("cluster_current_epoch", 1),
    ("cluster_my_epoch", 1),
    ("cluster_stats_messages_sent", 0),
    ("cluster_stats_messages_received", 0),
    ("total_cluster_links_buffer_limit_exceeded", 0),
)
_INFO: Final = "cluster_state:ok\r\n" + "".join(f"{name}:{n}\r\n" for name, n in _NUMBERS)
# The subcommands of CLUSTER, and how many arguments they have.
_ARGUMENTS: Final = {
    **dict.fromkeys((b"INFO", b"MYID", b"NODES", b"SHARDS", b"SLOTS"), 0),
    b"KEYSLOT": 1,
}
# The edits of INFO for a standalone server: whole lines, each with the end of the one before it.
_LINES: Final = (
    (b"\nredis_mode:cluster\r\n", b"\nredis_mode:standalone\r\n"),
    (b"\nserver_mode:cluster\r\n", b"\nserver_mode:standalone\r\n"),
    (b"\ncluster_enabled:1\r\n", b"\ncluster_enabled:0\r\n"),
)
_MODE: Final = b"$4\r\nmode\r\n$7\r\ncluster\r\n"
_STANDALONE: Final = b"$4\r\nmode\r\n$10\r\nstandalone\r\n"


class Face(NamedTuple):
    """What one client sees of the cluster, at the announced address `host` and `port`.

    standalone: it sees one server, and no cluster (--present standalone).
    """

    host: str
    port: int
    standalone: bool = False

    def id(self) -> bytes:
        """Return the id of the node that the proxy shows: 40 hexadecimal digits."""
        where = f"rlproxy {self.host}:{self.port}".encode()
        return sha1(where, usedforsecurity=False).hexdigest().encode()

    def cluster_reply(self, args: list[bytes], protocol: int) -> bytes:
        """Return the reply to CLUSTER.

        args: the arguments behind the name.
        protocol: 2 or 3.
        """
        if not args:
            return error("ERR wrong number of arguments for 'cluster' command")
        if self.standalone:
            return DISABLED
        word = args[0].upper()
        number = _ARGUMENTS.get(word)
        name = word[:64].decode("utf-8", "backslashreplace")
        if number is None:
            return error(f"ERR CLUSTER {name} is not available through rlproxy")
        if number != len(args) - 1:
            return error(f"ERR wrong number of arguments for 'cluster|{name.lower()}' command")
        if word == b"KEYSLOT":
            return b":%d\r\n" % key_slot(args[1])
        if word == b"SLOTS":
            return self._slots(protocol)
        if word == b"SHARDS":
            return self._shards(protocol)
        if word == b"INFO":
            return _text(_INFO, protocol)
        if word == b"MYID":
            return bulk(self.id())
        address = f"{self.host}:{self.port}@{min(self.port + _BUS, _MAX_PORT)}"
        line = f"{self.id().decode()} {address} myself,master - 0 0 1 connected 0-{_LAST}\n"
        return _text(line, protocol)

    def _slots(self, protocol: int) -> bytes:
        node = [self.host.encode(), self.port, self.id(), {}]
        return encoded([[0, _LAST, node]], protocol == 3)

    def _shards(self, protocol: int) -> bytes:
        host = self.host.encode()
        node = {
            b"id": self.id(),
            b"port": self.port,
            b"ip": host,
            b"endpoint": host,
            b"role": b"master",
            b"replication-offset": 0,
            b"health": b"online",
        }
        return encoded([{b"slots": [0, _LAST], b"nodes": [node]}], protocol == 3)

    def hello_reply(self, reply: bytes) -> bytes:
        """Return a node's reply to HELLO, a map or an array, with the `mode` shown."""
        if not self.standalone:
            return reply
        # No value before this field can contain its bytes: server, version, proto and id.
        return reply.replace(_MODE, _STANDALONE, 1)

    def info_text(self, text: bytes) -> bytes:
        """Return a node's text for INFO, without the header of its frame, with the mode shown."""
        if not self.standalone:
            return text
        text = b"\n" + text
        for found, shown in _LINES:
            text = text.replace(found, shown, 1)
        return text[1:]


def _text(text: str, protocol: int) -> bytes:
    """Return a text: a verbatim string in RESP3."""
    data = text.encode()
    return b"=%d\r\ntxt:%b\r\n" % (len(data) + 4, data) if protocol == 3 else bulk(data)
