"""The face of the proxy in front of a cluster: one node with all slots, or a standalone server.

These replies are made or edited here. Their shapes are those of Redis 7.0.
"""

from __future__ import annotations

from hashlib import sha1
from typing import Final, NamedTuple

from rlproxy.resp.encoding import bulk, error
from rlproxy.resp.key_slot import SLOTS, key_slot

# What --present shows.
PRESENT_CLUSTER: Final = "cluster"
PRESENT_STANDALONE: Final = "standalone"

DISABLED: Final = b"-ERR This instance has cluster support disabled\r\n"
_LAST: Final = SLOTS - 1
_BUS: Final = 10_000  # distance of the port of the cluster bus from that for clients
_PORT_MOST: Final = 65_535
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
_HELP: Final = (
    "CLUSTER <subcommand> [<arg>]. The cluster is behind rlproxy, as one node. Subcommands are:",
    "INFO",
    "    Return information about the cluster.",
    "KEYSLOT <key>",
    "    Return the hash slot for <key>.",
    "MYID",
    "    Return the node id.",
    "NODES",
    "    Return cluster configuration seen by node.",
    "SHARDS",
    "    Return information about slot range mappings and the nodes associated with them.",
    "SLOTS",
    "    Return information about slots range mappings.",
    "HELP",
    "    Print this help.",
)
# The edits of INFO for a standalone server: the beginnings and ends of whole lines.
_LINES: Final = (
    (b"redis_mode:cluster\r\n", b"redis_mode:standalone\r\n"),
    (b"server_mode:cluster\r\n", b"server_mode:standalone\r\n"),
    (b"cluster_enabled:1\r\n", b"cluster_enabled:0\r\n"),
)
_MODE: Final = b"$4\r\nmode\r\n$7\r\ncluster\r\n"
_HELLO_START: Final = (b"*", b"%")
_HELLO_FIELD: Final = b"$6\r\nserver\r\n"  # the first one of a reply to HELLO


def node_id(host: str, port: int) -> bytes:
    """Return the id of the node that the proxy shows: 40 hexadecimal digits, from its address."""
    return sha1(f"rlproxy {host}:{port}".encode(), usedforsecurity=False).hexdigest().encode()


def cluster_reply(
    args: list[bytes], host: str, port: int, protocol: int, present: str = PRESENT_CLUSTER
) -> bytes:
    """Return the reply to CLUSTER.

    args: the arguments behind the name.
    host, port: the announced address.
    protocol: 2 or 3.
    present: PRESENT_CLUSTER, or PRESENT_STANDALONE for the error of a standalone server.
    """
    if not args:
        return error("ERR wrong number of arguments for 'cluster' command")
    if present == PRESENT_STANDALONE:
        return DISABLED
    word = args[0].upper()
    given = len(args) - 1
    if word == b"KEYSLOT" and given == 1:
        return b":%d\r\n" % key_slot(args[1])
    if word in (b"HELP", b"INFO", b"MYID", b"NODES", b"SHARDS", b"SLOTS") and not given:
        return _subcommand(word, host, port, protocol)
    name = word[:64].decode("utf-8", "backslashreplace")
    if word in (b"HELP", b"INFO", b"KEYSLOT", b"MYID", b"NODES", b"SHARDS", b"SLOTS"):
        return error(f"ERR wrong number of arguments for 'cluster|{name.lower()}' command")
    return error(f"ERR CLUSTER {name} is not available through rlproxy")


def _subcommand(word: bytes, host: str, port: int, protocol: int) -> bytes:
    """Return the reply to a subcommand without arguments."""
    own = node_id(host, port)
    if word == b"SLOTS":
        return _slots(own, host, port, protocol)
    if word == b"SHARDS":
        return _shards(own, host, port, protocol)
    if word == b"NODES":
        address = f"{host}:{port}@{min(port + _BUS, _PORT_MOST)}"
        line = f"{own.decode()} {address} myself,master - 0 0 1 connected 0-{_LAST}\n"
        return _text(line, protocol)
    if word == b"INFO":
        return _text(_INFO, protocol)
    if word == b"MYID":
        return bulk(own)
    return b"*%d\r\n" % len(_HELP) + b"".join([b"+%b\r\n" % line.encode() for line in _HELP])


def _slots(own: bytes, host: str, port: int, protocol: int) -> bytes:
    metadata = _map(0, protocol)
    node = b"*4\r\n%b:%d\r\n%b%b" % (bulk(host.encode()), port, bulk(own), metadata)
    return b"*1\r\n*3\r\n:0\r\n:%d\r\n%b" % (_LAST, node)


def _shards(own: bytes, host: str, port: int, protocol: int) -> bytes:
    address = bulk(host.encode())
    fields = (
        (b"id", bulk(own)),
        (b"port", b":%d\r\n" % port),
        (b"ip", address),
        (b"endpoint", address),
        (b"role", bulk(b"master")),
        (b"replication-offset", b":0\r\n"),
        (b"health", bulk(b"online")),
    )
    node = _map(len(fields), protocol) + b"".join([bulk(name) + value for name, value in fields])
    slots = b"$5\r\nslots\r\n*2\r\n:0\r\n:%d\r\n" % _LAST
    return b"*1\r\n%b%b$5\r\nnodes\r\n*1\r\n%b" % (_map(2, protocol), slots, node)


def _map(size: int, protocol: int) -> bytes:
    """Return the header of a map: an array of names and values in RESP2."""
    return b"%%%d\r\n" % size if protocol == 3 else b"*%d\r\n" % (2 * size)


def _text(text: str, protocol: int) -> bytes:
    """Return a text: a verbatim string in RESP3."""
    data = text.encode()
    return b"=%d\r\ntxt:%b\r\n" % (len(data) + 4, data) if protocol == 3 else bulk(data)


def hello_reply(reply: bytes, present: str) -> bytes:
    """Return a node's reply to HELLO with the `mode` that the proxy shows.

    reply: a map, an array or an error.
    present: PRESENT_CLUSTER: nothing is changed; PRESENT_STANDALONE: `standalone`.
    """
    if present != PRESENT_STANDALONE or reply[:1] not in _HELLO_START:
        return reply
    if not reply[reply.find(b"\r\n") + 2 :].startswith(_HELLO_FIELD):
        return reply
    # No value before this field can contain its bytes: server, version, proto and id.
    return reply.replace(_MODE, b"$4\r\nmode\r\n" + bulk(present.encode()), 1)


def info_text(text: bytes, present: str) -> bytes:
    """Return a node's text for INFO with the mode that the proxy shows.

    text: the lines of the reply, without the header of its frame.
    present: PRESENT_CLUSTER: nothing is changed; PRESENT_STANDALONE: the three fields are.
    """
    if present != PRESENT_STANDALONE:
        return text
    for found, shown in _LINES:
        if text.startswith(found):
            text = shown + text[len(found) :]
        text = text.replace(b"\n" + found, b"\n" + shown, 1)
    return text


class Face(NamedTuple):
    """What one client sees of the cluster: `present`, at the address `host` and `port`."""

    host: str
    port: int
    present: str = PRESENT_CLUSTER

    def cluster_reply(self, args: list[bytes], protocol: int) -> bytes:
        """Return the reply to CLUSTER; see the function."""
        return cluster_reply(args, self.host, self.port, protocol, self.present)

    def hello_reply(self, reply: bytes) -> bytes:
        """Return the reply to HELLO; see the function."""
        return hello_reply(reply, self.present)
