"""During an attack of tests/attackers.py the proxy serves other clients, within its memory bounds,
and logs little.

Here the attacks are small and short, and no timing is judged; `python -m tests.attackers` measures.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import attackers
from tests.attackers import ROWS, Row
from tests.harness import Proxy, RedisServer

SCALE = 0.05  # of the attack's connections
SECONDS = 0.25
MAX_LINES = 3  # lines of the log for each attack
# One attack for each bound of memory.
NAMES = ["never_reading", "never_reading_hits", "endless_value", "reconnecting"]
NAMES += ["unauthenticated", "wrong_passwords"]
KINDS = [row for row in ROWS if row.name in NAMES]

Parts = tuple[RedisServer, Proxy]

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def parts(one_engine: str) -> Iterator[tuple[RedisServer, Proxy]]:
    with attackers.parts(one_engine) as made:
        yield made


@pytest.mark.parametrize("row", KINDS, ids=lambda row: row.name)
def test_other_clients_are_served_in_bounded_memory(parts: Parts, row: Row) -> None:
    server, attacked = parts
    found = attackers.endure(attacked, server, row, 1, SECONDS, SCALE)
    print(attackers.line(row, found))
    assert found.served > 0
    assert found.most < row.least + found.connections * row.bound
    assert found.kept < row.least + found.connections * row.bound
    assert len(found.lines) <= MAX_LINES, found.lines[:10]
