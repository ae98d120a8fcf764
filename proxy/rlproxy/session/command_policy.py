"""The command policy: which commands a client may not send, and the errors for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rlproxy.resp import commands, encoding
from rlproxy.resp.commands import Ban, Command, CommandTable

# The commands that Redis 7 and Valkey protect (enable-debug-command, enable-module-command and
# enable-protected-configs "local"). For Redis, every client of a proxy is a local one.
LOCAL_COMMANDS: Final = ("debug", "module|load", "module|loadex", "module|unload")
LOCAL_CONFIGS: Final = (b"dir", b"dbfilename")

# The subcommands of commands that have some, as servers list them. DEBUG lists none.
_CONTAINERS: Final = """
    ACL CAT DELUSER DRYRUN GENPASS GETUSER HELP LIST LOAD LOG SAVE SETUSER USERS WHOAMI
    CLIENT CACHING CAPA GETNAME GETREDIR HELP ID IMPORT-SOURCE INFO KILL LIST MAINT_NOTIFICATIONS \
        NO-EVICT NO-TOUCH PAUSE REPLY SETINFO SETNAME TRACKING TRACKINGINFO UNBLOCK UNPAUSE
    CLUSTER ADDSLOTS ADDSLOTSRANGE BUMPEPOCH CANCELSLOTMIGRATIONS COUNT-FAILURE-REPORTS \
        COUNTKEYSINSLOT DELSLOTS DELSLOTSRANGE FAILOVER FLUSHSLOT FLUSHSLOTS FORGET GETKEYSINSLOT \
        GETSLOTMIGRATIONS HELP INFO KEYSLOT LINKS MEET MIGRATESLOTS MIGRATION MYID MYSHARDID NODES \
        REPLICAS REPLICATE RESET SAVECONFIG SET-CONFIG-EPOCH SETSLOT SHARDS SLAVES SLOT-STATS \
        SLOTS SYNCSLOTS
    COMMAND COUNT DOCS GETKEYS GETKEYSANDFLAGS HELP INFO LIST
    COMMANDLOG GET HELP LEN RESET
    CONFIG GET HELP RESETSTAT REWRITE SET
    FUNCTION DELETE DUMP FLUSH HELP KILL LIST LOAD RESTORE STATS
    LATENCY DOCTOR GRAPH HELP HISTOGRAM HISTORY LATEST RESET
    MEMORY DOCTOR HELP MALLOC-STATS PURGE STATS USAGE
    MODULE HELP LIST LOAD LOADEX UNLOAD
    OBJECT ENCODING FREQ HELP IDLETIME REFCOUNT
    PUBSUB CHANNELS HELP NUMPAT NUMSUB SHARDCHANNELS SHARDNUMSUB
    SCRIPT DEBUG EXISTS FLUSH HELP KILL LOAD SHOW
    SLOWLOG GET HELP LEN RESET
    XGROUP CREATE CREATECONSUMER DELCONSUMER DESTROY HELP SETID
    XINFO CONSUMERS GROUPS HELP STREAM
"""
SUBCOMMANDS: Final = {
    line.split()[0]: frozenset(line.split()[1:]) for line in _CONTAINERS.strip().splitlines()
}

_ONLY_LOCAL: Final = "rlproxy lets only local clients {} (--local-commands)"
# Sent in place of a denied command where Redis must reject it: a name that no server implements.
INSTEAD: Final = b"RL.DENIED"


def table(denied: Sequence[str], local_only: bool) -> CommandTable:
    """Return the command table of a session; UNRESTRICTED if no command is denied.

    denied: names, or name|subcommand, of commands that must not be sent.
    local_only: also deny the commands that are for local clients.
    """
    errors = {rule: _not_local(rule) for rule in LOCAL_COMMANDS} if local_only else {}
    errors |= {rule: _denied(rule) for rule in denied}
    if not errors:
        return commands.UNRESTRICTED
    bans: dict[bytes, Ban] = {}
    for rule, error in errors.items():
        name, _, subcommand = rule.upper().encode().partition(b"|")
        ban = bans.setdefault(name, Ban())
        if subcommand:
            ban.subcommands[subcommand] = error
        else:
            ban.whole = error
    if local_only:
        ban = bans.setdefault(b"CONFIG", Ban())
        ban.configs = {name: _protected(name.decode()) for name in LOCAL_CONFIGS}
    made = dict(commands.COMMANDS)
    for name, ban in bans.items():
        ban.unseen = encoding.error(
            f"ERR {name.decode()} command of this size not allowed by rlproxy"
        )
        known = commands.COMMANDS.get(name, commands.UNKNOWN_COMMAND)
        row = Command(name, known.kind, known.reads)
        row.ban = ban
        row.whole = row.whole or not ban.whole
        made[name] = made[name.lower()] = row
    return CommandTable(made)


def unknown(rule: str) -> str:
    """Return why a rule of --deny-command may deny nothing; empty if its command is known."""
    name, _, subcommand = rule.upper().partition("|")
    if name.encode() not in commands.COMMANDS and "." not in name:  # a dot: of a module
        return "rlproxy knows no command of this name"
    grouped = name in SUBCOMMANDS or name == "DEBUG"
    if subcommand and name.encode() in commands.COMMANDS and not grouped:
        return f"{name} has no subcommands; each command takes its own --deny-command"
    if subcommand and subcommand not in SUBCOMMANDS.get(name, {subcommand}):
        return f"rlproxy knows no subcommand of {name} with this name"
    return ""


def _denied(rule: str) -> bytes:
    return encoding.error(f"NOPERM command '{rule}' is denied by rlproxy (--deny-command)")


def _not_local(rule: str) -> bytes:
    what = rule.upper().replace("|", " ")
    return encoding.error(f"ERR {what} command not allowed. {_ONLY_LOCAL.format('run it')}")


def _protected(name: str) -> bytes:
    return encoding.error(
        f"ERR CONFIG SET failed (possibly related to argument '{name}') - can't set protected "
        f"config. {_ONLY_LOCAL.format('do that')}"
    )
