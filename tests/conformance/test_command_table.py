"""The proxy's table of commands, checked against COMMAND of the servers."""

from __future__ import annotations

from rlproxy.resp import commands
from rlproxy.session.command_policy import SUBCOMMANDS

from tests.harness import ON_EVERY_ENGINE, RedisServer

# In READS although the server flags them otherwise or not at all: none of them changes data.
NOT_FLAGGED = {
    "COMMANDLOG": "a log of Valkey, no data and no right",
    "ECHO": "no key",
    "INFO": "no key",
    "LASTSAVE": "no key",
    "MEMORY": "a container: PURGE and DOCTOR change no data",
    "OBJECT": "a container: its subcommands are readonly",
    "PING": "no key",
    "PUBSUB": "a container: its subcommands only look",
    "ROLE": "no key",
    "TIME": "no key",
    "UNWATCH": "no key",
    "WATCH": "changes no data",
    "XINFO": "a container: its subcommands are readonly",
}
# Flags for more than one reply, or for state on the connection.
LEAVES_STATE = {"pubsub", "no_multi"}
# Commands with such a flag that are stateless and have exactly one reply.
ONE_REPLY = {
    "PUBLISH": "its messages go to others; to oneself as pushes",
    "SPUBLISH": "the same",
    "PUBSUB": "only looks",
    "SAVE": "no_multi: acts on the server",
    "WATCH": "no_multi: a hit on the key is noted, whichever connection it comes by",
}

Entry = tuple[set[str], dict[str, set[str]]]


def served(server: RedisServer) -> dict[str, Entry]:
    """Every command of a server in capitals: its flags, and its subcommands' flags."""
    with server.raw() as raw:
        answer = raw.ask("COMMAND")
    assert isinstance(answer, list)
    found: dict[str, Entry] = {}
    for row in answer:
        below = {}
        if len(row) > 9:
            for sub in row[9]:
                below[sub[0].decode().partition("|")[2].upper()] = flags(sub[2])
        found[row[0].decode().upper()] = (flags(row[2]), below)
    assert len(found) > 200
    return found


def flags(row: object) -> set[str]:
    assert isinstance(row, list)
    return {flag.decode() if isinstance(flag, bytes) else str(flag) for flag in row}


def lists() -> dict[str, set[str]]:
    return {
        "READS": {name.decode() for name in commands.READS.split()},
        "WRITES": {name.decode() for name in commands.WRITES.split()},
        "FOLLOWED": {name.decode() for name in commands.FOLLOWED},
        "STATEFUL": {name.decode() for name in commands.STATEFUL.split()},
    }


@ON_EVERY_ENGINE
def test_every_command_is_in_exactly_one_list(redis_server: RedisServer) -> None:
    wrong = {}
    for name in served(redis_server):
        where = [what for what, names in lists().items() if name in names]
        if len(where) != 1:
            wrong[name] = where
    assert wrong == {}


@ON_EVERY_ENGINE
def test_every_subcommand_is_known(redis_server: RedisServer) -> None:
    """A rule of --deny-command with another one gets a warning."""
    unknown = {
        name: below.keys() - SUBCOMMANDS.get(name, set())
        for name, (_, below) in served(redis_server).items()
    }
    assert {name: found for name, found in unknown.items() if found} == {}


def test_no_name_is_in_two_lists() -> None:
    names = [name for found in lists().values() for name in found]
    assert sorted(names) == sorted(set(names))


@ON_EVERY_ENGINE
def test_commands_in_reads_change_nothing(redis_server: RedisServer) -> None:
    known = served(redis_server)
    reads = {name for name in lists()["READS"] if name in known}
    wrong = {
        name: sorted(known[name][0])
        for name in reads
        if "readonly" not in known[name][0] and name not in NOT_FLAGGED
    }
    assert wrong == {}
    assert {name for name in reads if "write" in known[name][0]} == set()


@ON_EVERY_ENGINE
def test_commands_that_block_are_known(redis_server: RedisServer) -> None:
    known = served(redis_server)
    flagged = {name.encode() for name, (found, _) in known.items() if "blocking" in found}
    if redis_server.version >= (7, 0):  # older servers have no such flag
        assert flagged
    waits = {name for name, row in commands.COMMANDS.items() if row.kind == commands.WAIT}
    assert flagged <= {*commands.BLOCKING, *waits}


@ON_EVERY_ENGINE
def test_containers_in_reads_hold_no_writes(redis_server: RedisServer) -> None:
    known = served(redis_server)
    for name in lists()["READS"]:
        below = known[name][1] if name in known else {}
        assert {sub for sub, said in below.items() if "write" in said} == set(), name


@ON_EVERY_ENGINE
def test_commands_that_leave_state_are_not_stateless(redis_server: RedisServer) -> None:
    known = served(redis_server)
    stateless = lists()["READS"] | lists()["WRITES"]
    wrong = {
        name: sorted(known[name][0] & LEAVES_STATE)
        for name in stateless & known.keys()
        if known[name][0] & LEAVES_STATE and name not in ONE_REPLY
    }
    assert wrong == {}


@ON_EVERY_ENGINE
def test_only_one_blocking_command_is_a_read(redis_server: RedisServer) -> None:
    known = served(redis_server)
    blocking = {name for name, (said, _) in known.items() if "blocking" in said}
    # XREAD blocks and reads; it still has one reply.
    assert (blocking & lists()["READS"]) - {"XREAD"} == set()
    assert blocking - lists()["READS"] - lists()["WRITES"] - {"WAIT", "WAITAOF"} == set()


@ON_EVERY_ENGINE
def test_subcommands_of_client_and_script_are_listed(redis_server: RedisServer) -> None:
    known = served(redis_server)
    listed = {
        # Commands that leave state on their connection, or change the number of replies.
        "CLIENT": (
            commands.CLIENT_STATELESS,
            {"REPLY", "TRACKING", "CACHING", "NO-TOUCH", "IMPORT-SOURCE", "MAINT_NOTIFICATIONS"},
        ),
        "SCRIPT": (commands.SCRIPT_STATELESS, {"DEBUG"}),
    }
    for name, (stateless, stateful) in listed.items():
        words = {word.decode() for word in stateless}
        assert not words & stateful
        assert set(known[name][1]) - words - stateful == set(), name


@ON_EVERY_ENGINE
def test_commands_without_authentication_are_tracked(redis_server: RedisServer) -> None:
    no_auth = {name for name, (said, _) in served(redis_server).items() if "no_auth" in said}
    assert no_auth <= lists()["FOLLOWED"]


def test_exceptions_name_commands_in_the_table() -> None:
    assert NOT_FLAGGED.keys() <= lists()["READS"]
    assert ONE_REPLY.keys() <= lists()["READS"] | lists()["WRITES"]
