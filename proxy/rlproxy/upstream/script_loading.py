"""Whether Redis has the scripts, and when the control connection may load them.

    a call was answered NOSCRIPT, or the control connection was lost ──> not loaded
                                                                            │  lanes send EVAL
    the control connection sends PING twice a second: all EVALSHAs answered?│
                                                                            v
                                                                       SCRIPT LOAD ──> loaded

A lane sends its first EVAL when all its EVALSHAs are answered, and the calls among them that found
no script first. SCRIPT LOAD is sent when no lane has an EVALSHA under way. So it makes no script
appear between two calls of one client. Where the scripts can't be loaded, each hit carries its own.
"""

from __future__ import annotations

from collections.abc import Callable


class ScriptLoading:
    """What the lanes to one server and its control connection know of the scripts.

    loaded: calls may go by EVALSHA.
    drained: returns whether no lane has a call by EVALSHA under way.
    """

    def __init__(self) -> None:
        self.loaded = False
        self.drained: Callable[[], bool] = lambda: True
