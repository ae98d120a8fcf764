"""WAIT and WAITAOF behind writes by lane: the private connection rewrites a key first. No I/O.

Redis counts the replicas that have the latest write of the connection that sends WAIT. A hit by
lane is a write of another connection. So the private connection first rewrites the key of the
latest accepted hit. Where that fails, or where replies cannot be counted, the client gets an error.
It never gets a number that is too high.

In a cluster the rewrite covers one server, that of its key's hash slot. There the client gets an
error if its writes by lane are in several hash slots, or are ordinary commands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rlproxy.resp import encoding
from rlproxy.resp.key_slot import NO_SLOT, slot_of_bulk
from rlproxy.session.call import Call

# A write that is replicated and leaves its key as it was. It returns 0 where the key has no time to
# live. It needs only rights that hits need.
_REWRITE_SCRIPT: Final = (
    b"local k,t=KEYS[1],redis.call('PTTL',KEYS[1])"
    b"if t==-1 then return 0 elseif t>=0 then redis.call('PEXPIRE',k,t+(t==0 and 1 or 0))"
    b"else redis.call('SET',k,'')redis.call('DEL',k)end return 1"
)
REWRITE: Final = b"*4\r\n" + encoding.bulks(b"EVAL", _REWRITE_SCRIPT, b"1").partition(b"\r\n")[2]
_ERROR_SCRIPT: Final = b"return redis.error_reply(ARGV[1])"
_REWRITTEN: Final = b":1\r\n"
_SEVERAL: Final = -2  # in place of a hash slot: there are several, or writes other than hits


def not_covered(name: bytes) -> bytes:
    """Return the error for a WAIT or WAITAOF (`name`) whose number might be too high."""
    return encoding.error(
        f"ERR {name.decode()} can't cover this connection's earlier writes here: they went over a "
        "lane of rlproxy. Send it outside of MULTI, SUBSCRIBE and CLIENT TRACKING; "
        "with --share, send WAIT 0 0 before the first write, too; on a Redis Cluster only hits on "
        "keys of one slot can be covered"
    )


def refusal(name: bytes) -> bytes:
    """Return the request whose reply is not_covered(): Redis puts it in its place."""
    return encoding.bulks(b"EVAL", _ERROR_SCRIPT, b"0", not_covered(name)[1:-2])


class WaitCover:
    """What one client has written by lane since the latest covered WAIT.

    in_cluster: see ServerFacts.
    lane_wrote: a WAIT on the private connection would not cover a write.
    last_hit: key of the latest hit by lane that Redis accepted, as a bulk. Before the first, of a
        hit on the private connection; b"": there was none.
    """

    def __init__(self, in_cluster: bool) -> None:
        self._in_cluster = in_cluster
        self.lane_wrote = False
        self._hash_slot: int = NO_SLOT  # in a cluster: of all hits by lane, or _SEVERAL
        self.last_hit: bytes = b""

    def sent(self, call: Call) -> None:
        """Note a call that goes by lane."""
        if call.rule.writes():
            self.lane_wrote = True
            if self._in_cluster:
                slot = call.hash_slot()
                self._hash_slot = slot if self._hash_slot in (NO_SLOT, slot) else _SEVERAL

    def sent_privately(self, key: bytes, probed: bool) -> None:
        """Note the key of a hit on the private connection. It serves until a lane's hit has one.

        probed: Redis has let a hit of the client pass. Then a key that is noted stays.
        """
        if not self.last_hit or not probed:
            self.last_hit = key

    def sent_shared(self) -> None:
        """Note an ordinary command that writes and goes by lane."""
        self.lane_wrote = True
        self._hash_slot = _SEVERAL

    def can_rewrite(self) -> bool:
        """Return whether a rewrite of one key covers all that lanes wrote, if it succeeds."""
        if not self.last_hit:
            return False
        return not self._in_cluster or slot_of_bulk(self.last_hit) == self._hash_slot

    def answered(self, call: Call, reply: bytes) -> None:
        """Note the reply of a lane. An array shows that Redis gave the call access to its key."""
        if reply[0] == 42 and call.rule.writes():
            self.last_hit = call.key

    def rewritten(self, reply: bytes) -> bytes:
        """Read the reply to REWRITE with `last_hit`; the client does not get it."""
        if reply == _REWRITTEN:
            self.lane_wrote = False
            self._hash_slot = NO_SLOT
        return b""

    def judge(self, name: bytes) -> Callable[[bytes], bytes]:
        """Return the function that returns the client's reply for Redis' reply to `name`."""
        error = not_covered(name)

        def judged(reply: bytes) -> bytes:
            return error if self.lane_wrote and not reply.startswith(b"-") else reply

        return judged
