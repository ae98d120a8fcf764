"""A wheel of the files that the Dockerfile copies works as the checkout does."""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import ROOT, Raw, wait_until


def docker_sources() -> Iterator[Path]:
    """The files that the Dockerfile copies and .dockerignore permits, relative to ROOT."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    copied = re.findall(r"^COPY (.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    for top in (ROOT / name for line in copied for name in line.split()):
        for path in [top] if top.is_file() else sorted(top.rglob("*")):
            here = path.relative_to(ROOT)
            if path.is_file() and sent(here, patterns):
                yield here


def sent(path: Path, patterns: list[str]) -> bool:
    """Whether `docker build` sends a file. The last pattern that matches it, or a folder of it,
    decides.
    """
    names = [str(path), *map(str, path.parents)]
    kept = True
    for pattern in patterns:
        glob = pattern.removeprefix("!").replace("**/", "*")
        if any(fnmatch.fnmatchcase(name, glob) for name in names):
            kept = pattern.startswith("!")
    return kept


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that contains only what an interpreted wheel installs."""
    directory = tmp_path_factory.mktemp("wheel")
    source = directory / "source"  # a build leaves files behind, which other users may not remove
    source.mkdir()
    for path in docker_sources():
        (source / path).parent.mkdir(exist_ok=True, parents=True)
        shutil.copy(ROOT / path, source / path)
    for name in ("tests", "bench"):
        shutil.copytree(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(directory)]
        + [str(source)],
        check=True,
        env={**os.environ, "RLPROXY_COMPILE": "0"},
        timeout=300,
    )
    wheel = next(directory.glob("rlproxy-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    lua = {"rlproxy/lua/sliding_window_log.lua", "rlproxy/lua/shared/exact_windows.lua"}
    assert lua | {"rlproxy/admin/page.html"} <= set(names)
    assert "rlproxy/admin/actions.html" in names
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


def test_version_names_the_interpreted_build(installed: Path) -> None:
    found = run(installed, "--version")
    assert found.returncode == 0
    assert "(interpreted, Python" in found.stdout


def test_installed_command_admits_and_refuses(installed: Path) -> None:
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
