"""An RL.RESET of keys in several slots: one call for each key, and one reply. No I/O."""

from __future__ import annotations

from typing import Final

from rlproxy.ratelimit.grammar import Rule
from rlproxy.resp import encoding
from rlproxy.session.call import Call, Caller

_HEAD: Final = encoding.bulks(b"DEL", b"").partition(b"$0")[0]


def one_key() -> Rule:
    """Return the rule of a call that deletes one key."""
    rule = Rule()
    rule.head = _HEAD
    rule.frees = True
    return rule


_ONE_KEY: Final = one_key()


def keys_of(call: Call) -> list[bytes]:
    """Return the keys of an RL.RESET as bulk strings."""
    found = [call.key]
    tail, at = call.rule.tail, 0
    while at < len(tail):
        start = tail.index(b"\n", at) + 1
        end = start + int(tail[at + 1 : start - 2]) + 2
        found.append(tail[at:end])
        at = end
    return found


class SplitReset(Caller):
    """The sender of the parts of an RL.RESET, as lanes see it.

    Its reply is the sum of the parts' replies, or the first error. Finished parts stay.
    """

    __slots__ = ("_call", "_error", "_left", "_owner", "_sum")

    def __init__(self, call: Call) -> None:
        super().__init__()
        self.flush = call.caller.flush
        self._owner = call.caller
        self._call: Call | None = call
        self._left: int = 0
        self._sum: int = 0
        self._error: bytes = b""

    def parts(self, keys: list[bytes]) -> list[Call]:
        """Return the calls to send, one for each key."""
        self._left = len(keys)
        return [Call(self, _ONE_KEY, key) for key in keys]

    def lane_answered(self, call: Call, reply: bytes) -> None:
        """See Caller.lane_answered()."""
        call.reply = reply
        if reply.startswith(b":"):
            self._sum += int(reply[1:])
        else:
            self._error = self._error or reply
        self._left -= 1
        whole = self._call
        if self._left == 0 and whole is not None:
            self._call = None
            whole.caller.lane_answered(whole, self._error or b":%d\r\n" % self._sum)

    def lane_lost(self, call: Call) -> None:
        """See Caller.lane_lost()."""
        self.lane_answered(call, encoding.LOST)

    def lane_late(self, call: Call) -> None:
        """See Caller.lane_late()."""
        whole, self._call = self._call, None
        if whole is not None:
            whole.caller.lane_late(whole)

    def lane_down(self, call: Call, error: bytes) -> None:
        """See Caller.lane_down()."""
        self.lane_answered(call, error)

    def resume(self) -> None:
        """See Caller.resume()."""
        self._owner.now = self.now
        self._owner.resume()
