"""How the calls on one connection name their scripts: by which command, and which text.

| way | used |
|---|---|
| LOADED | where the control connection has loaded the scripts |
| BRING, then BROUGHT | where it has not, or they are not found for all that |
| SOURCE | where EVALSHA is unknown, or forbidden to the user |
"""

from __future__ import annotations

import re
from typing import Final

from rlproxy.ratelimit.grammar import Rule
from rlproxy.ratelimit.scripts import BRING, BROUGHT, LOADED, SOURCE, Script

MISLED_S: Final = 10.0  # the time without scripts that were loaded, but are not there

# Redis has not run a call, because of the command by which it came.
_NO_RIGHT: Final = re.compile(
    rb"-NOPERM .* run the '(eval(?:sha)?)(_ro)?' command", re.DOTALL | re.IGNORECASE
)
_UNKNOWN: Final = re.compile(rb"-ERR unknown command ['`](eval(?:sha)?)(_ro)?['`]", re.IGNORECASE)


class ScriptCalls:
    """Those of one connection. `loaded`: EVALSHA names the text that SCRIPT LOAD brings."""

    __slots__ = ("_brought", "_misled_until", "_no_ro", "_sourced", "loaded")

    def __init__(self) -> None:
        self.loaded = True
        self._misled_until: float = 0.0  # the scripts were loaded, and were not there
        self._brought: set[Script] = set()  # those that were sent by BRING
        self._sourced = [False, False]  # EVALSHA, EVALSHA_RO is not possible
        self._no_ro = False  # one of EVALSHA_RO and EVAL_RO is unknown

    def choose(self, loaded: bool, now: float) -> None:
        """Which text EVALSHA names from now on. Only while no call is under way."""
        self.loaded = loaded and now >= self._misled_until

    def words(self, rule: Rule, has_ro: bool) -> bytes:
        """What goes before the key of the next call; see Rule.words()."""
        has_ro = has_ro and not self._no_ro
        script = rule.script
        if self._sourced[has_ro and rule.by_ro]:
            way = SOURCE
        elif self.loaded or script is None:
            way = LOADED
        elif script in self._brought:
            way = BROUGHT
        else:
            self._brought.add(script)
            way = BRING
        return rule.words(way, has_ro)

    def missing(self, again: bool, now: float) -> None:
        """NOSCRIPT came; `again`: to a call that had been answered so before."""
        if again and self.loaded:
            self._misled_until = now + MISLED_S
        self._brought.clear()

    def changes(self, error: bytes) -> bool:
        """Whether calls go by another command after `error`, which says that one did not run."""
        unknown = _UNKNOWN.match(error)
        found = unknown or _NO_RIGHT.match(error)
        if found is None:
            return False
        ro = found[2] is not None
        if unknown is not None and ro:
            self._no_ro = True
            return True
        by_sha = len(found[1]) > len(b"EVAL")
        self._sourced[ro] = by_sha  # (without EVAL, EVALSHA may be allowed first)
        return by_sha
