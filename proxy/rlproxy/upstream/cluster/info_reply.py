"""The reply to INFO of a cluster: home's text, with the counters of all masters added up."""

from __future__ import annotations

from typing import Final

from rlproxy.upstream.cluster.face import Face
from rlproxy.upstream.cluster.gather import first_error, text

# Fields whose sum over the nodes means something. All others are home's.
SUMMED: Final = frozenset(
    b"""
    connected_clients maxclients blocked_clients tracking_clients pubsub_clients watching_clients
    clients_in_timeout_table total_watched_keys total_blocking_keys total_blocking_keys_on_nokey

    used_memory used_memory_rss used_memory_overhead used_memory_startup used_memory_dataset
    maxmemory mem_clients_normal lazyfree_pending_objects lazyfreed_objects

    rdb_changes_since_last_save

    total_connections_received total_commands_processed instantaneous_ops_per_sec
    total_net_input_bytes total_net_output_bytes instantaneous_input_kbps instantaneous_output_kbps
    rejected_connections expired_keys expired_fields expired_subkeys evicted_keys evicted_clients
    evicted_scripts keyspace_hits keyspace_misses pubsubshard_channels tracking_total_keys
    tracking_total_items tracking_total_prefixes unexpected_error_replies total_error_replies
    acl_access_denied_auth acl_access_denied_cmd acl_access_denied_key acl_access_denied_channel
    total_reads_processed total_writes_processed
    """.split()
)
_HUMAN: Final = b"_human"  # ends the name of a field with the same number of bytes in words
_UNITS: Final = ((1 << 40, "T"), (1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K"))

# Sections with one row per database, command or error. A row is merged by its name.
_ROWS: Final = {
    b"# Keyspace": b"db",
    b"# Commandstats": b"cmdstat_",
    b"# Errorstats": b"errorstat_",
}
# Averages in rows: the field whose value each one is weighted by.
_WEIGHTS: Final[dict[bytes, bytes]] = {b"avg_ttl": b"expires", b"usec_per_call": b"calls"}


def info(replies: list[bytes], face: Face) -> bytes:
    """Join the replies of all masters to one INFO.

    replies: frames, home's first.
    face: what the client sees of the cluster.
    Returns home's text with the fields in SUMMED, the databases, the statistics of commands and of
    errors of all; or the first error.
    """
    return first_error(replies) or text(replies, lambda texts: face.info_text(_joined(texts)))


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
        elif not name.startswith(prefix):
            out.append(_line(line, values.get(name.removesuffix(_HUMAN), [])))
    return b"\r\n".join(out)


def _line(line: bytes, values: list[bytes]) -> bytes:
    """Return one line of home with the sum of `values`, if that means something."""
    name, _, value = line.partition(b":")
    if name.removesuffix(_HUMAN) not in SUMMED:
        return line
    total = sum(map(_number, values))
    return b"%b:%b" % (name, _human(int(total)) if name.endswith(_HUMAN) else _like(value, total))


def _row(values: list[bytes]) -> bytes:
    """Return one row, `field=value,...`, of those of several nodes: fields added or averaged."""
    nodes = [_parsed(value) for value in values]
    out: list[bytes] = []
    for name, value in nodes[0].items():
        weight = _WEIGHTS.get(name, b"")
        total = weights = 0.0
        for fields in nodes:
            scale = _number(fields.get(weight, b"")) if weight else 1.0
            total += _number(fields.get(name, b"")) * scale
            weights += scale
        out.append(b"%b=%b" % (name, _like(value, total / (weights or 1) if weight else total)))
    return b",".join(out)


def _parsed(value: bytes) -> dict[bytes, bytes]:
    fields = [field.partition(b"=") for field in value.split(b",")]
    return {name: number for name, _, number in fields}


def _number(value: bytes) -> float:
    try:
        return float(value) if b"." in value else int(value)
    except ValueError:
        return 0


def _like(value: bytes, total: float) -> bytes:
    """Return `total` with a fraction if `value` has one."""
    return b"%.2f" % total if b"." in value else b"%d" % int(total)


def _human(size: int) -> bytes:
    """Return a number of bytes as Redis' bytesToHuman() writes it."""
    for unit, letter in _UNITS:
        if size >= unit:
            return f"{size / unit:.2f}{letter}".encode()
    return b"%dB" % size
