"""What one process tells of itself and of its fellow workers: samples for the metrics, the text of
RL.STATS, what the live page shows. Publishes it on the board ten times a second.

    Stats, circuit, lanes, ... ──samples()──> own ──publish──> board ──> the admin process
                                               │                  │
                                               └──── totals() <───┘  those of the other workers
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

from .board import Board
from .metrics import Samples, from_plain, to_plain

EVERY_S: Final = 0.1  # what others see is so old at most
HEARD_S: Final = 2.0  # a worker that has published nothing for so long does not serve


@dataclass(frozen=True)
class Published:
    """What one worker has told: at a time (of time.time()), its samples, its keys (see `sketch`),
    and what people want to know besides (see Telemetry.facts).
    """

    at: float
    samples: Samples
    top: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> bytes:
        """See from_json()."""
        plain = {"at": self.at, "samples": to_plain(self.samples)}
        plain |= {"top": self.top, "facts": self.facts}
        return json.dumps(plain, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Published:
        """What to_json() has written."""
        found = json.loads(text)
        return cls(found["at"], from_plain(found["samples"]), found["top"], found["facts"])


def published(board: Board) -> list[Published]:
    """What each worker has published last."""
    texts = [board.latest(worker) for worker in range(board.workers)]
    return [Published.from_json(text) for text in texts if text]
