"""The open-loop generator and its rows: due times, counts and reports."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator

import pytest

from bench import latency
from bench.errors import BenchError
from bench.latency import NS, Timing
from tests import harness
from tests.harness import RedisServer, command

MS = 1_000_000
PING = command("PING")


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with harness.server(next(iter(harness.engines()))) as made:
        yield made


def run(server: RedisServer, prepared: list[bytes], rate: int, limit_s: float = 20.0) -> Timing:
    """Send each of `prepared` once, evenly spaced, over four connections."""
    due_ns = [NS // rate * number for number in range(len(prepared))]
    return latency.run(server.port, prepared, due_ns, 4, 0.0, limit_s)


# -- due times -------------------------------------------------------------------------------------


def test_schedule_is_a_poisson_process() -> None:
    due_ns = latency.schedule(10_000, 2.0)
    gaps = [after - before for before, after in itertools.pairwise(due_ns)]
    assert due_ns == sorted(due_ns)
    assert due_ns[0] >= 0
    assert due_ns[-1] < 2 * NS
    assert statistics.mean(gaps) == pytest.approx(NS / 10_000, rel=0.03)
    # Of an exponential distribution: deviation equals mean, and 1/e of the gaps are longer than the
    # mean.
    assert statistics.pstdev(gaps) == pytest.approx(statistics.mean(gaps), rel=0.05)
    longer = sum(gap > NS / 10_000 for gap in gaps) / len(gaps)
    assert longer == pytest.approx(0.368, abs=0.02)


# -- reports ---------------------------------------------------------------------------------------


def test_report_of_a_run() -> None:
    latency_ns = [1000 * number for number in range(1000, 0, -1)]
    made = Timing(latency_ns, [3000] * 1000, rate=500.0, cpu_share=0.3)
    assert latency.values(made) == {
        "p50": 500,
        "p99": 990,
        "p99.9": 999,
        "max": 1000,
        "rate": 500,
        "lag": 3,
        "load-cpu": pytest.approx(30),
    }


# -- counts ----------------------------------------------------------------------------------------


def test_stall_counts_for_every_request_it_delays(server: RedisServer) -> None:
    """A closed loop would see one slow reply on each of four connections."""
    prepared = [PING] * 400
    prepared[100] = command("CLIENT", "PAUSE", 200)
    made = run(server, prepared, rate=1000)
    late = sum(ns > 20 * MS for ns in made.latency_ns)
    assert late > 100  # most are not, unless the machine is busy
    assert max(made.latency_ns) > 150 * MS
    assert statistics.median(made.lag_ns) < 100 * MS  # it kept sending


def test_every_request_is_answered_once(server: RedisServer) -> None:
    prepared = [command("RPUSH", "k", number) for number in range(333)]
    made = run(server, prepared, rate=5000)
    assert len(made.latency_ns) == len(made.lag_ns) == 333
    with server.raw() as raw:
        assert raw.ask("LLEN", "k") == 333
    assert 0 < made.rate < 7500  # less on a busy machine
    assert 0 < made.cpu_share <= 1.1


@pytest.mark.parametrize(
    ("prepared", "limit_s", "named"),
    [
        ([PING, command("GET")], 20.0, "wrong number"),
        ([PING, command("QUIT"), PING, PING, PING, PING], 20.0, "(closed|lost)"),
        ([command("CLIENT", "PAUSE", 2000), PING], 0.2, "more than 0.2 s"),
    ],
)
def test_failed_run_reports_the_reason(
    server: RedisServer, prepared: list[bytes], limit_s: float, named: str
) -> None:
    with pytest.raises(BenchError, match=named):
        run(server, prepared, 100, limit_s)
