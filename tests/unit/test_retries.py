"""The retry of a failed test: once, and only with the mark `flaky` and its reason."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import ROOT

FAILS_ONCE = """
import pytest
from pathlib import Path

{mark}
def test_x():
    runs = Path("runs")
    runs.write_text(runs.read_text() + "x" if runs.exists() else "x")
    assert runs.read_text().count("x") > {failures}
"""
REASON = '@pytest.mark.flaky(reason="a machine that stands still")'


def run(directory: Path, mark: str, failures: int) -> subprocess.CompletedProcess[str]:
    """Run a test that fails `failures` times, under the options and hooks of this suite."""
    (directory / "conftest.py").write_text(
        "from tests.conftest import pytest_collection_modifyitems as pytest_collection_modifyitems"
    )
    (directory / "test_x.py").write_text(FAILS_ONCE.format(mark=mark, failures=failures))
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "-p", "no:xdist"]
    return subprocess.run(
        [*command, "--rootdir", str(directory), "-p", "no:cacheprovider", "test_x.py"],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    ("mark", "failures", "code", "runs"),
    [
        (REASON, 0, pytest.ExitCode.OK, 1),
        (REASON, 1, pytest.ExitCode.OK, 2),
        (REASON, 2, pytest.ExitCode.TESTS_FAILED, 2),
        ("", 1, pytest.ExitCode.TESTS_FAILED, 1),
    ],
)
def test_only_a_marked_test_runs_again_and_only_once(
    tmp_path: Path, mark: str, failures: int, code: int, runs: int
) -> None:
    done = run(tmp_path, mark, failures)
    assert done.returncode == code, done.stdout + done.stderr
    assert (tmp_path / "runs").read_text() == "x" * runs
    assert ("RERUN test_x.py::test_x" in done.stdout) == (runs > 1)


@pytest.mark.parametrize(
    "mark",
    [
        "@pytest.mark.flaky",
        "@pytest.mark.flaky()",
        '@pytest.mark.flaky(reason="")',
        "@pytest.mark.flaky(2)",
        '@pytest.mark.flaky(reason="slow", reruns=2)',
        '@pytest.mark.flaky(reason="slow", condition=True)',
    ],
)
def test_a_mark_states_its_reason_and_nothing_else(tmp_path: Path, mark: str) -> None:
    done = run(tmp_path, mark, 1)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "write @pytest.mark.flaky(reason=" in done.stderr
    assert not (tmp_path / "runs").exists()
