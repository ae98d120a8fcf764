"""A few seconds of chaos, of chaos in a cluster, and of soak."""

from __future__ import annotations

import pytest

from tests import chaos, cluster_chaos, harness, soak
from tests.harness import ON_ONE_ENGINE

SLOW_MACHINE_S = 10.0  # the test requires that service returns; the command requires it within 1 s


@ON_ONE_ENGINE
async def test_proxy_survives_seconds_of_chaos(
    engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = await chaos.run(2, 7, engine, [], clients=3, back_s=SLOW_MACHINE_S)
    assert code == 0, capsys.readouterr().out


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


async def test_violation_sets_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(chaos, "FAULTS", (_nothing,))
    code = await chaos.run(1, 7, sorted(harness.engines())[-1], [], clients=1, back_s=-1.0)
    assert code == 1
    out = capsys.readouterr().out
    assert "VIOLATION late" in out
    assert "--seed 7" in out


async def _nothing(_: chaos.Chaos) -> None:
    """No fault."""
