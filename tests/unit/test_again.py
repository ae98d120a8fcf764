"""scripts/again.py: who gets a second try, and that it is told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import again
from tests.harness import ROOT

SERVED = [f"tests/integration/test_x.py::test_{n}" for n in range(6)]
TESTS = """
from pathlib import Path

def test_once():
    seen = Path("seen")
    first = not seen.exists()
    seen.touch()
    assert not first

def test_fine():
    with open("runs", "a") as file:
        file.write("x")
"""


@pytest.mark.parametrize(
    ("failed", "may"),
    [
        (SERVED[:5], True),
        (SERVED, False),
        ([], False),
        (["tests/integration/test_x.py"], False),  # which could not be read
        (["tests/unit/test_lane.py::test_x"], False),
        ([*SERVED[:1], "tests/unit/test_lane.py::test_x"], False),
        (["tests/unit/test_bench_latency.py::test_x", "tests/scripts/test_x.py::test_x"], True),
    ],
)
def test_who_may_try_again(failed: list[str], may: bool) -> None:
    assert again.may_try_again(failed) == may


def test_what_failed_is_run_again_and_told(tmp_path: Path) -> None:
    path = tmp_path / "tests" / "conformance" / "test_x.py"
    path.parent.mkdir(parents=True)
    path.write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, str(ROOT / "scripts" / "again.py"), "told", "-q", "tests"]
    command += ["-p", "xdist"]
    few = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # (or most of it is importing them)
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=few)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "told").read_text() == "passed: tests/conformance/test_x.py::test_once\n"
    assert (tmp_path / "runs").read_text() == "x"  # what had passed was not run again
    path.write_text("def test_never(): assert False\n")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=few)
    assert done.returncode == 1
    told = (tmp_path / "told").read_text().splitlines()[1:]
    assert told == ["failed again: tests/conformance/test_x.py::test_never"]
