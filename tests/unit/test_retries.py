"""The retry of a failed test: once, and only with the mark `flaky` and its reason."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import pytest_collection_modifyitems
from tests.harness import ROOT

# Each test fails `failures` times.
TESTS = """
import pytest
from collections import Counter

flaky = pytest.mark.flaky(reason="a machine that stands still")
runs = Counter()

def fails(name, failures):
    runs[name] += 1
    print("run", runs[name], "of", name)
    assert runs[name] > failures

@flaky
def test_never(): fails("never", 0)

@flaky
def test_once(): fails("once", 1)

@flaky
def test_twice(): fails("twice", 2)

def test_unmarked(): fails("unmarked", 1)
"""


def test_only_a_marked_test_runs_again_and_only_once(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "from tests.conftest import pytest_collection_modifyitems as pytest_collection_modifyitems"
    )
    (tmp_path / "test_x.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "-p", "no:xdist"]
    done = subprocess.run(
        [*command, "--rootdir", str(tmp_path), "-p", "no:cacheprovider", "-s", "test_x.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'proxy'}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    runs = [name for _, name in re.findall(r"run (\d) of (\w+)", done.stdout)]
    assert runs == ["never", "once", "once", "twice", "twice", "unmarked"]
    assert set(re.findall(r"^RERUN test_x.py::test_(\w+)", done.stdout, re.MULTILINE)) == {
        "once",
        "twice",
    }
    assert re.search(r"2 failed, 2 passed, 2 rerun", done.stdout)


@pytest.mark.parametrize(
    "mark",
    [
        pytest.mark.flaky,
        pytest.mark.flaky(),
        pytest.mark.flaky(reason=""),
        pytest.mark.flaky(2),
        pytest.mark.flaky(reason="slow", reruns=2),
        pytest.mark.flaky(reason="slow", condition=True),
    ],
)
def test_a_mark_states_its_reason_and_nothing_else(mark: pytest.MarkDecorator) -> None:
    item: Any = SimpleNamespace(nodeid="test_x.py::test_x", iter_markers=lambda _: [mark.mark])
    with pytest.raises(pytest.UsageError, match=r"test_x: write @pytest.mark.flaky\(reason="):
        pytest_collection_modifyitems([item])
