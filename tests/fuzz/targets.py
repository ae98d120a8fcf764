"""The table of fuzz targets: a name, and the function run on each input. An input that raises is a
failure.
"""

from __future__ import annotations

from tests.fuzz import framing, grammar, session
from tests.fuzz.mutate import Target

TARGETS: dict[str, Target] = {
    "requests": framing.requests,
    "replies": framing.replies,
    "inline": framing.inline,
    "grammar": grammar.calls,
    "session": session.session,
}
