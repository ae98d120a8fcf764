"""Admission: the settings that decide which clients may connect, what they may send, and their
timeouts. They can change while clients are connected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rlproxy.config.config import Config
from rlproxy.config.urls import Address
from rlproxy.resp import encoding
from rlproxy.resp.commands import CommandTable
from rlproxy.session import command_policy

TURNED_AWAY: Final = "clients turned away: {count:,}; {reason}"  # for the log


@dataclass(frozen=True, slots=True)
class Refusal:
    """The refusal of a new client.

    reply: the error that the client gets.
    reason: why, for the log.
    """

    reply: bytes
    reason: str


# The text of Redis, which client libraries recognize.
_FULL: Final = encoding.error("ERR max number of clients reached")
FULL: Final = Refusal(_FULL, "max number of clients reached")
FULL_ADDRESS: Final = Refusal(_FULL, "max number of clients of one address reached")
PROTECTED: Final = Refusal(
    encoding.error(
        "DENIED rlproxy is running in protected mode: Redis behind it requires no password, "
        "so only clients of rlproxy's own machine are served. To serve clients of other machines, "
        "set a password on Redis' default user (CONFIG SET requirepass, or ACL SETUSER default), "
        "or, where only trusted machines can reach this port, start rlproxy with "
        "--protected-mode no."
    ),
    "protected mode, and Redis' default user needs no password",
)


class Admission:
    """The settings of admission, and the decisions that follow from them.

    where: the address of Redis, for errors.
    room: the number of clients for which the process has file descriptors.

    The owner sets `needs_password` once it is known.
    """

    def __init__(self, config: Config, where: str, room: int) -> None:
        # Whether Redis' default user needs a password; None if that is not known yet.
        self.needs_password: bool | None = None
        self._room = room
        self._unjudged = Refusal(
            encoding.error(
                f"UPSTREAMDOWN rlproxy has not reached Redis at {where} yet, and serves clients of "
                "other machines only once Redis has requested a password (protected mode)"
            ),
            "protected mode, and it is not known yet whether Redis needs a password",
        )
        self.configure(config)

    def configure(self, config: Config) -> None:
        """Apply `config` from now on."""
        self.protected = config.protected_mode
        self.max_clients = min(config.max_clients, self._room)
        self.max_of_address = config.max_clients_per_address
        self.idle_timeout_s = config.idle_timeout_s
        self.write_timeout_s = config.write_timeout_s
        self._for_local = command_policy.table(config.deny_command, False)
        self._for_remote = command_policy.table(config.deny_command, not config.local_commands)

    def refusal(self, peer: Address, clients: int, of_address: int) -> Refusal | None:
        """Decide about a new client.

        clients: the number of present clients.
        of_address: the number of present clients with the same address.
        Returns the refusal, or None if the client is admitted.
        """
        if clients >= self.max_clients:
            return FULL
        if peer.host and 0 < self.max_of_address <= of_address:
            return FULL_ADDRESS
        if self.protected and not self.needs_password and not peer.local:
            return self._unjudged if self.needs_password is None else PROTECTED
        return None

    def table_of(self, peer: Address) -> CommandTable:
        """Return the table of commands that applies to a client; see command_policy.table()."""
        return self._for_local if peer.local else self._for_remote
