"""The reply to INFO of a cluster: home's text, with the counters of all masters added up."""

from __future__ import annotations

from typing import Final

from rlproxy.upstream.cluster.face import Face
from rlproxy.upstream.cluster.gather import text

# The counters, whose sum over the nodes means something. All other fields are home's.
SUMMED: Final = frozenset(
    b"""
    lazyfreed_objects total_connections_received total_commands_processed instantaneous_ops_per_sec
    total_net_input_bytes total_net_output_bytes rejected_connections expired_keys expired_fields
    expired_subkeys evicted_keys evicted_clients evicted_scripts keyspace_hits keyspace_misses
    unexpected_error_replies total_error_replies acl_access_denied_auth acl_access_denied_cmd
    acl_access_denied_key acl_access_denied_channel total_reads_processed total_writes_processed
    """.split()
)
# Sections with one row per database, command or error. A row is merged by its name.
_ROWS: Final = {
    b"# Keyspace": b"db",
    b"# Commandstats": b"cmdstat_",
    b"# Errorstats": b"errorstat_",
}


def info(replies: list[bytes], face: Face) -> bytes:
    """Join the replies of all masters to one INFO.

    replies: frames, home's first.
    face: what the client sees of the cluster.
    Returns home's text with the fields in SUMMED, the databases, the statistics of commands and of
    errors of all; or the first error.
    """
    return text(replies, lambda texts: face.info_text(_joined(texts)))


def _joined(texts: list[bytes]) -> bytes:
    values: dict[bytes, list[bytes]] = {}  # of all nodes, by name; no two sections share one
    for line in b"\r\n".join(texts).split(b"\r\n"):
        name, _, value = line.partition(b":")
        values.setdefault(name, []).append(value)
    prefix = no_rows = b":"  # no name contains a colon
    out: list[bytes] = []
    for line in texts[0].split(b"\r\n"):
        name = line.partition(b":")[0]
        if line.startswith(b"# "):
            out.append(line)
            prefix = _ROWS.get(line, no_rows)
            out += [b"%b:%b" % (row, _row(values[row])) for row in values if row.startswith(prefix)]
        elif name in SUMMED:
            out.append(b"%b:%b" % (name, _sum(values[name])))
        elif not name.startswith(prefix):
            out.append(line)
    return b"\r\n".join(out)


def _row(values: list[bytes]) -> bytes:
    """Return one row, `field=value,...`, of those of several nodes. Averages are home's."""
    found: dict[bytes, list[bytes]] = {}
    for field in b",".join(values).split(b","):
        name, _, value = field.partition(b"=")
        found.setdefault(name, []).append(value)
    del found.get(b"avg_ttl", [])[1:]
    return b",".join([b"%b=%b" % (name, _sum(each)) for name, each in found.items()])


def _sum(values: list[bytes]) -> bytes:
    """Return the sum of whole numbers; the first of other values."""
    return b"%d" % sum(map(int, values)) if all(map(bytes.isdigit, values)) else values[0]
