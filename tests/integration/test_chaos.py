"""A few seconds of chaos, of chaos in a cluster, and of soak."""

from __future__ import annotations

import re

import pytest

from tests import chaos, cluster_chaos, harness, soak
from tests.chaos import Plan
from tests.harness import ON_ONE_ENGINE

SLOW_MACHINE_S = 10.0  # the test requires that service returns; the command requires it within 1 s
ALLOW = ["--on-upstream-failure", "allow", "--hit-timeout", "60"]
CUTS = (chaos.cut, chaos.scripts_flushed)


@ON_ONE_ENGINE
@pytest.mark.parametrize(
    ("plan", "args"),
    [
        (Plan(3, SLOW_MACHINE_S), []),
        (Plan(8, SLOW_MACHINE_S, 0.02, CUTS), []),
        (Plan(8, SLOW_MACHINE_S, 0.02, (chaos.cut,)), ["--share"]),
        (Plan(4, SLOW_MACHINE_S, 0.1, (chaos.stopped_briefly,)), ALLOW),
    ],
    ids=["all faults", "cuts and lost scripts", "cuts, shared", "short hangs, fail open"],
)
async def test_proxy_survives_seconds_of_chaos(
    engine: str, plan: Plan, args: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code = await chaos.run(2, 7, engine, args, plan)
    out = capsys.readouterr().out
    assert code == 0, out
    without = re.search(r"(\d+) hits admitted without the server", out)
    assert without is not None and (int(without[1]) > 20) == (args == ALLOW), out


@ON_ONE_ENGINE
@pytest.mark.parametrize("clustered", [False, True])
async def test_proxy_survives_seconds_of_soak(
    engine: str, clustered: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    code = await soak.run(1, 7, engine, ["--share"], clients=2, clustered=clustered)
    assert code == 0, capsys.readouterr().out


@ON_ONE_ENGINE
async def test_proxy_survives_seconds_of_cluster_chaos(
    engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = await cluster_chaos.run(2, 7, engine, [], clients=3, back_s=SLOW_MACHINE_S, exact_s=1)
    assert code == 0, capsys.readouterr().out


async def test_violation_sets_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    engine = sorted(harness.engines())[-1]
    code = await chaos.run(1, 7, engine, [], Plan(1, -1.0, faults=(_nothing,)))
    assert code == 1
    out = capsys.readouterr().out
    assert "VIOLATION late" in out
    assert "--seed 7" in out


async def _nothing(_: chaos.Chaos) -> None:
    """No fault."""
