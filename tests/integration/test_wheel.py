"""An installed wheel works as well as the checkout: the Lua files are inside, and the command."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.harness import ROOT, Raw, wait_until

SOURCES = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "proxy", "lua", "tests", "bench")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with nothing but what an interpreted wheel installs."""
    directory = tmp_path_factory.mktemp("wheel")
    source = directory / "source"  # (a build leaves files behind, which are not everybody's)
    source.mkdir()
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--wheel-dir", str(directory), str(source)],
        check=True,
        env={**os.environ, "RLPROXY_COMPILE": "0"},
        timeout=300,
    )
    wheel = next(directory.glob("rlproxy-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {"rlproxy/lua/sliding_window_log.lua", "rlproxy/admin/page.html"} <= set(names)
    assert not [name for name in names if name.startswith(("tests/", "bench/"))]
    target = directory / "site"
    subprocess.run(
        [*pip, "install", "--no-deps", "--target", str(target), str(wheel)],
        check=True,
        timeout=300,
    )
    return target


def run(installed: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "import sys; from rlproxy.cli import main; sys.exit(main())", *args],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=installed.parent,
        env={**os.environ, "PYTHONPATH": str(installed)},
    )


def test_the_version_tells_that_it_is_interpreted(installed: Path) -> None:
    found = run(installed, "--version")
    assert found.returncode == 0
    assert "(interpreted, Python" in found.stdout


def test_the_installed_command_admits_and_refuses(installed: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "rlproxy", "--listen", "127.0.0.1:0", "--upstream", "embedded:"],
        stderr=subprocess.PIPE,
        text=True,
        cwd=installed.parent,
        env={**os.environ, "PYTHONPATH": str(installed), "RLPROXY_LOG_FORMAT": "text"},
    )
    try:
        assert process.stderr is not None
        port = 0
        for line in process.stderr:
            if "listening on" in line:
                port = int(line.rsplit(":", 1)[1])
            if "try " in line:
                break
        with Raw(port) as raw:
            replies = [raw.ask("RL.HIT", "user:42", 2, 60) for _ in range(3)]
        assert replies == [[0, 2, 1, -1, 60], [0, 2, 0, -1, 60], [1, 2, 0, 60, 60]]
        process.terminate()
        wait_until(lambda: process.poll() is not None, "the proxy ends")
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()
