"""Remembered refusals of one lane: its entries in the denial cache. No I/O.

The lane submits each hit to known() and each reply to judge(). Pushes about touched
keys go to pushed().
"""

from __future__ import annotations

from typing import Final

from rlproxy.ratelimit import denial_cache
from rlproxy.ratelimit.denial_cache import Denial, DenialCache
from rlproxy.ratelimit.hit_replies import integers, rounded
from rlproxy.resp.encoding import INVALIDATE
from rlproxy.session.call import Call

# Bytes of a key's bulk; refusals of longer keys are not remembered.
MAX_KEPT_KEY: Final = 512 + len("$512\r\n\r\n")


class LaneDenials:
    """The entries of one lane.

    entries: by key as a bulk string.
    tracks: whether Redis reports touched keys, so refusals may be remembered.
    """

    def __init__(self, cache: DenialCache) -> None:
        self._cache = cache
        self.entries: dict[bytes, Denial] = {}
        self.tracks = False

    def track(self, tracks: bool) -> None:
        """Record whether Redis reports touched keys, and forget all remembered refusals."""
        self.tracks = tracks
        self.entries = {}

    def _entry(self, call: Call) -> Denial | None:
        """Find the entry of exactly this hit, before the hit is sent.

        An entry of another hit on the same key is dropped if `call` may write.
        """
        denial = self.entries.get(call.key)
        if denial is None:
            return None
        if denial.rule is not call.rule:
            if call.rule.writes():
                self._cache.drop(denial)
            return None
        call.denial = denial
        return denial

    def known(self, call: Call, earlier_unsent: bool) -> bytes:
        """Return the remembered refusal of `call`, or nothing.

        earlier_unsent: calls that Redis did not run are to be sent before this one.

        Updates the entry of its key: a marked entry makes `call` the one that opens it.
        """
        denial = self._entry(call)
        if denial is None or denial.state == denial_cache.OPENING:
            return b""
        now = self._cache.clock()
        if denial.state == denial_cache.OPEN:
            if earlier_unsent or call.caller.fenced or now < call.caller.trusts_at:
                return b""
            known = denial.answer(now)
            if known:
                self._cache.answered(denial)
                return known
        denial.state = denial_cache.OPENING
        denial.sent_at = now
        call.opens = True
        return b""

    def not_tracked(self, call: Call) -> None:
        """Take back that `call` opens its entry: its key is not tracked. The next one may open it.

        Its reply stays in microseconds.
        """
        denial = call.denial
        if denial is not None and denial.state == denial_cache.OPENING:
            denial.state = denial_cache.MARKED

    def take_back(self, call: Call) -> None:
        """Take back that `call` opens its entry: Redis did not run it, and it is sent again."""
        if call.opens:
            self.not_tracked(call)
        call.opens = False
        if self.tracks:
            self._entry(call)  # calls that were sent behind this one now run before it

    def judge(self, call: Call, frame: bytes) -> bytes:
        """Open, mark or drop the entry of the key by the reply to `call`.

        Returns the reply for the client.
        """
        if call.opens:
            return self._opened(call, frame)
        if not self.tracks:
            return frame
        refused = len(frame) > 5 and frame[0] == 42 and frame[4] == 58 and frame[5] == 49  # *5 :1
        if call.denial is not None:
            if not refused:
                self._cache.drop(call.denial)
        elif (
            refused
            and call.rule.denies
            and len(call.key) <= MAX_KEPT_KEY
            and call.key not in self.entries
        ):
            self._cache.mark(self.entries, call.key, call.rule)
        return frame

    def _opened(self, call: Call, frame: bytes) -> bytes:
        denial = call.denial
        assert denial is not None
        found = integers(frame)
        if found and found[0] == 1:
            denial.opened(found, self._cache.clock())
        else:
            self._cache.drop(denial)
        return rounded(found, call.rule.unit_us) if found else frame

    def pushed(self, push: bytes) -> None:
        """Drop the entry of a touched key, or all entries after a null push (FLUSHDB)."""
        if not push.startswith(INVALIDATE):
            return
        if push.startswith(b"*1\r\n", len(INVALIDATE)):
            denial = self.entries.get(push[len(INVALIDATE) + 4 :])
            if denial is not None:
                self._cache.drop(denial)
        else:
            self.entries = {}
