"""The script calls of one connection: EVAL or EVALSHA, and of which text.

| way | used |
|---|---|
| LOADED | if the control connection has loaded the scripts |
| BRING, then BROUGHT | if it has not, or if Redis does not find the loaded scripts |
| SOURCE | if EVALSHA is unknown to the server, or forbidden to the user |
"""

from __future__ import annotations

from typing import Final

from rlproxy.ratelimit.grammar import Rule
from rlproxy.ratelimit.scripts import BRING, BROUGHT, LOADED, SOURCE, Script
from rlproxy.resp import encoding
from rlproxy.session.call import Call

MISLED_S: Final = 10.0  # seconds without LOADED after loaded scripts were not found

# Requests a push when the key of the next call is touched.
_CACHING: Final = encoding.bulks(b"CLIENT", b"CACHING", b"YES")
# Lets a cluster node run the next call on a slot that it imports.
_ASKING: Final = encoding.bulks(b"ASKING")


class ScriptCalls:
    """The script calls of one lane.

    number: of the lane; see Script.words().
    loaded: whether EVALSHA names the text that the control connection loads.
    """

    def __init__(self, number: int = 1) -> None:
        self._number = number
        self.reset()

    def reset(self) -> None:
        """Forget what is known of the server: the connection was lost."""
        self.loaded = True
        self._misled_until: float = 0.0  # time until which loaded scripts are taken for missing
        self._brought: set[Script] = set()  # scripts that were sent by BRING
        self._by_source = False  # whether EVALSHA cannot be used

    def choose(self, loaded: bool, now: float) -> None:
        """Choose the text that EVALSHA names from now on.

        To be called only while no call is under way.

        loaded: whether the latest SCRIPT LOAD succeeded.
        now: the time in seconds.
        """
        self.loaded = loaded and now >= self._misled_until

    def by_sha(self, rule: Rule) -> bool:
        """Return whether `rule` may go by EVALSHA of the loaded text, as far as is known."""
        return self.loaded and rule.script is not None and not self._by_source

    def words(self, rule: Rule) -> bytes:
        """Return the words before the key of the next call; see Rule.words()."""
        script = rule.script
        if self._by_source:
            way = SOURCE
        elif self.loaded or script is None:
            way = LOADED
        elif script in self._brought:
            way = BROUGHT
        else:
            self._brought.add(script)
            way = BRING
        return rule.words(way, self._number)

    def requests(self, calls: list[Call]) -> list[bytes]:
        """Return the words of `calls` as Redis commands; see words()."""
        out: list[bytes] = []
        for call in calls:
            rule = call.rule
            if call.expects_ok:
                if call.opens:
                    rule = rule.final()
                    out.append(_CACHING)
                else:
                    out.append(_ASKING)
            out.append(self.words(rule))
            out.append(call.key)
            out.append(rule.tail)
        return out

    def missing(self, again: bool, now: float) -> None:
        """Record a NOSCRIPT.

        again: whether the same call got a NOSCRIPT before.
        now: the time in seconds.
        """
        if again and self.loaded:
            self._misled_until = now + MISLED_S
        self._brought.clear()

    def changes(self, error: bytes) -> bool:
        """Switch to another command if `error` shows that the present one cannot be used.

        Returns whether the call that got `error` did not run and can be sent again.
        """
        refused = encoding.refused_eval(error)
        if refused is None:
            return False
        self._by_source = refused  # (an error for EVAL: EVALSHA may be allowed by now)
        return refused
