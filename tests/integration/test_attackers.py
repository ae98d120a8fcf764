"""During an attack of tests/attackers.py the proxy serves other clients, within its memory bounds,
and logs little.

Here the attacks are small and short, and no timing is judged; `python -m tests.attackers` measures.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import attackers
from tests.attackers import ROWS, Row
from tests.harness import Proxy, RedisServer, wait_until

SCALE = 0.05  # of the attack's connections
SECONDS = 0.25
ALONE_S = 0.05  # without the attack: no timing is compared
MAX_LINES = 3  # lines of the log for each attack

Parts = tuple[RedisServer, Proxy]

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def parts(one_engine: str) -> Iterator[tuple[RedisServer, Proxy]]:
    with attackers.parts(one_engine) as made:
        yield made


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_other_clients_are_served_in_bounded_memory(parts: Parts, row: Row) -> None:
    server, attacked = parts
    found = attackers.endure(attacked, server, row, 1, SECONDS, SCALE, ALONE_S)
    print(attackers.line(row, found))
    assert found.served > 0
    assert found.most < row.least + found.connections * row.bound
    assert found.kept < row.least + found.connections * row.bound
    assert len(found.lines) <= MAX_LINES, found.lines[:10]


def test_thousands_of_closed_connections_leave_no_memory(parts: Parts) -> None:
    """Memory per connection would show: at least 4 kB each."""
    _, attacked = parts
    before = attacked.memory()
    # A client that closed with more data behind a BLPOP than is read: its end of file has not
    # arrived.
    already = attackers.clients_of(attacked)
    steps = next(row for row in ROWS if row.name == "reconnecting")
    all_ = attackers.Attacker(attacked.port, 1.0, False)
    others = attackers.OtherClients(attacked)
    for _ in steps.attack(all_):
        if all_.done >= 2500:
            break
    others.serve(0.1)
    wait_until(lambda: attackers.clients_of(attacked) <= already + 4, "they are gone", 60)
    others.close()
    assert attacked.memory() - before < 4 * attackers.MB
