"""The table of log events: the stable name of each log line and of the values in it.

The text of an event is the format string that is passed to `log`, with %s and %d. For a repeated
event it is the kind, with {} for the count; see `log_throttle`. A test checks that every log line
has a row here, and every row a log line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Event:
    """One kind of log line.

    name: stable name.
    level: log level in lower case.
    text: format string, or kind of a repeated event.
    fields: names of the values in `text`, in order; "" for a value that is only in the message.
    about: explanation for the documentation.
    """

    name: str
    level: str
    text: str
    fields: tuple[str, ...]
    about: str


OTHER: Final = "other"  # event name of lines without a row here
UNEXPECTED: Final = "unexpected_error"
PYTHON_WARNING: Final = "python_warning"
CLIENT: Final = "client"  # field of repeated events: address of the latest client
COUNT: Final = "count"  # field of repeated events: number of events

EVENTS: Final = (
    Event(
        "started",
        "info",
        "rlproxy %s listens on %s, in front of %s",
        ("version", "listen", "in_front_of"),
        "It serves. On a terminal this is the banner; `listen` is a list, with the ports that were "
        "found where 0 was asked for, `admin` the address of the live page, `workers` their number",
    ),
    Event(
        "failed",
        "critical",
        "failed: %s",
        ("reason",),
        "It could not start, or can't go on, and ends with exit code 1 (as `error`: a worker)",
    ),
    Event(
        "draining",
        "info",
        "stopping: replies are owed to %d client(s), waiting up to %g s; a second signal cuts them",
        ("clients", "timeout_s"),
        "It got a signal to stop, and clients are still owed replies",
    ),
    Event(
        "clients_cut",
        "warning",
        "%d client(s) were cut: they were still owed replies",
        ("clients",),
        "`--drain-timeout` was over, or a second signal came",
    ),
    Event(
        "stopped",
        "info",
        "stopped; it served for %.1f s",
        ("seconds",),
        "After a signal it has ended its workers and all else, and ends with exit code 0; "
        "`seconds` is how long it served, from `started` on. Its last line",
    ),
    # Redis
    Event(
        "redis_unreachable",
        "warning",
        "cannot reach Redis at %s: %s; trying on",
        ("address", "reason"),
        "What answers is no Redis, or answers nothing; or the proxy lacks files or ports for "
        "connections. Once for an outage, instead of `redis_silent`",
    ),
    Event(
        "redis_silent",
        "warning",
        "Redis at %s does not answer (%s)%s; hits are answered as --on-upstream-failure says (%s)",
        ("address", "reason", "", "answer"),
        "Hits are answered without Redis from now on. `count` is how many times that began since "
        "it was last said",
    ),
    Event(
        "redis_back",
        "warning",
        "Redis at %s is back after %.1f s; hits answered without it: %d",
        ("address", "seconds", "hits"),
        "Hits are counted again",
    ),
    Event(
        "redis_back",
        "warning",
        "Redis at %s: the proxy's own connection works again",
        ("address",),
        "`redis_unreachable` or `redis_refuses` is over; no hit was answered without Redis",
    ),
    Event(
        "redis_back",
        "warning",
        "Redis at %s: the proxy's own connection was lost; a new one works",
        ("address",),
        "Redis was restarted, or closed connections; clients may have lost theirs",
    ),
    Event(
        "redis_refuses",
        "warning",
        "Redis at %s: %s",
        ("address", "reason"),
        "The server answers, but not as the proxy needs it: a wrong user or password, no right to "
        "load scripts, a database that is not there, a node of a Redis Cluster. It is tried again "
        "every 5 s",
    ),
    # Sentinels
    Event(
        "master_changed",
        "info",
        "master %s is now %s%s",
        ("master", "address", ""),
        "The Sentinels name another server; all connections move there",
    ),
    Event(
        "sentinels_doubtful",
        "warning",
        "%s; the master stays %s",
        ("reason", "address"),
        "Some Sentinels fail, or name a server that is no master",
    ),
    Event(
        "sentinels_well",
        "info",
        "all Sentinels of %s answer again",
        ("master",),
        "That is over",
    ),
    Event(
        "sentinels_failed",
        "error",
        "cannot ask the Sentinels: %r; trying on",
        ("reason",),
        "An unexpected error: please report it",
    ),
    Event(
        "sentinel_subscription_lost",
        "debug",
        "subscription at Sentinel %s: %s",
        ("address", "reason"),
        "A Sentinel no longer announces failovers; the proxy subscribes again",
    ),
    # clients
    Event(
        "clients_turned_away",
        "warning",
        "turned away {} client(s): %s",
        ("reason",),
        "`--max-clients`, or `--max-clients-per-address`",
    ),
    Event(
        "clients_turned_away",
        "warning",
        "turned away {} client(s) of other machines: %s",
        ("reason",),
        "Protected mode: Redis' default user needs no password, or it is not known yet",
    ),
    Event(
        "clients_turned_away",
        "warning",
        "turned away {} clients: %s",
        ("reason",),
        "Their PROXY header was wrong or late (`--proxy-protocol`), or 10,000 others are arriving",
    ),
    Event(
        "tls_handshakes_failed",
        "warning",
        "{} TLS handshakes failed: %s",
        ("reason",),
        "With clients. A client that connects and sends nothing is not counted",
    ),
    Event(
        "clients_stalled",
        "warning",
        "cut {} client(s) that read nothing for %s s",
        ("write_timeout_s",),
        "`--write-timeout`",
    ),
    Event(
        "more_repeats",
        "warning",
        "{} more of other kinds",
        (),
        "Repeated events of further kinds, which are counted together",
    ),
    Event(
        "protected_mode_applies",
        "warning",
        "protected mode: Redis' default user needs no password, so clients of other machines are "
        "turned away. Set a password there, or --protected-mode no",
        (),
        "Found at the start, or when a password was taken away",
    ),
    Event(
        "protected_mode_over",
        "info",
        "Redis' default user needs a password: clients of other machines may come in",
        (),
        "That is over",
    ),
    Event(
        "descriptors_short",
        "warning",
        "the limit of open files (%d, see ulimit -n) is enough for %d clients, not for the %d of "
        "--max-clients",
        ("limit", "room", "max_clients"),
        "Fewer clients come in than `--max-clients` says",
    ),
    Event(
        "accept_failed",
        "error",
        "cannot accept: %s; new clients wait. Raise the limit of open files (ulimit -n), or lower "
        "--max-clients",
        ("reason",),
        "No new client comes in until there are descriptors again. Logged once",
    ),
    # settings
    Event(
        "settings_doubtful",
        "warning",
        "check the settings: %s",
        ("reason",),
        "The settings are dangerous: a certificate that is not checked, or `--admin` at an address "
        "that other machines reach",
    ),
    Event(
        "settings_reloaded",
        "info",
        "SIGHUP: settings and certificates were read again; changed: %s",
        ("changed",),
        "By SIGHUP. Once, by the first process",
    ),
    Event(
        "restart_needed",
        "warning",
        "SIGHUP: %s has changed; that takes a restart",
        ("option",),
        "One of the options that SIGHUP can't change",
    ),
    Event(
        "settings_rejected",
        "error",
        "SIGHUP: %s; all stays as it was",
        ("reason",),
        "By SIGHUP: one line for each mistake",
    ),
    # workers
    Event(
        "worker_serves",
        "info",
        "worker %d (process %d) serves",
        ("worker", "process"),
        "A worker that was started again",
    ),
    Event(
        "worker_ends",
        "info",
        "worker %d (process %d) ends",
        ("worker", "process"),
        "A worker got a signal to stop",
    ),
    Event(
        "worker_died",
        "warning",
        "worker %d (process %d) %s; it is started again %s",
        ("worker", "process", "reason", ""),
        "It was killed, or ended unexpectedly; its clients are gone",
    ),
    Event(
        "worker_died",
        "warning",
        "worker %d %s; it is started again %s",
        ("worker", "reason", ""),
        "No process could be started for it",
    ),
    Event(
        "admin_died",
        "warning",
        "the admin process %s, {} times; it is started again",
        ("reason",),
        "The process of `--admin` was killed, or ended; clients of the proxy see nothing of that",
    ),
    # the program itself
    Event(
        "admin_failed",
        "error",
        "{} requests to the admin address failed: %s",
        ("reason",),
        "A mistake in the program: please report it",
    ),
    Event(
        UNEXPECTED,
        "critical",
        "unexpected error",
        (),
        "A mistake in the program: please report it, with `exception`. Also as `error`, with "
        "what asyncio or a package says of it",
    ),
    Event(
        "log_lines_lost",
        "warning",
        "%d line(s) of the log were lost: nobody read them",
        ("count",),
        "What standard error leads to was full; the proxy does not wait for it",
    ),
    Event(
        "log_line_broken",
        "error",
        "a line of the log could not be written: %s, %s line %d",
        ("reason", "file", "line"),
        "A mistake in the program: please report it",
    ),
)

_BY_TEXT: Final = {event.text: event for event in EVENTS}
_REPEATED: Final = [
    (event, re.compile(re.escape(event.text).replace("%s", "(.*)"), re.DOTALL))
    for event in EVENTS
    if "{}" in event.text
]


def of_text(text: str) -> Event | None:
    """Return the event with this format string, if any."""
    return _BY_TEXT.get(text)


def of_kind(kind: str) -> tuple[Event, tuple[str, ...]] | None:
    """Return the repeated event of a kind and the values in the kind; see LogThrottle."""
    for event, pattern in _REPEATED:
        found = pattern.fullmatch(kind)
        if found is not None:
            return event, found.groups()
    return None
