"""The run times of scripts, as Redis measures them."""

from __future__ import annotations

import re
from bisect import bisect_left
from typing import Any, Final

from rlproxy.observability.metrics import SCRIPT_TIMES_S, Distribution

QUERIES: Final = [
    (b"LATENCY", b"HISTOGRAM", b"evalsha", b"eval", b"evalsha_ro", b"eval_ro"),
    (b"INFO", b"commandstats"),
]
_USEC: Final = re.compile(rb"cmdstat_(?:evalsha|eval|evalsha_ro|eval_ro):calls=\d+,usec=(\d+)")


def script_times(found: Any, took: Any) -> Distribution | None:
    """Combine the replies to QUERIES; None if they have not the shape of Redis' replies."""
    classes = [0] * (len(SCRIPT_TIMES_S) + 1)
    try:
        # Redis counts cumulatively, by upper bound in microseconds; a Distribution by class.
        for name in found.values():
            before = 0
            for upper_us, total in sorted(name.get(b"histogram_usec", {}).items()):
                at = bisect_left(SCRIPT_TIMES_S, upper_us / 1_000_000)
                classes[at] += total - before
                before = total
        return Distribution(tuple(classes), sum(map(int, _USEC.findall(took))) / 1_000_000)
    except (AttributeError, TypeError, ValueError):
        return None
