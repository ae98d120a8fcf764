"""The pages of docs/ build as a site without a warning, and its links have targets."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.documents import RECORDS
from tests.harness import ROOT

PARTS = ("mkdocs.yml", "docs", "scripts", "examples", "deploy", "LICENSE", "Dockerfile")


def build(directory: Path, site: Path) -> str:
    """Build `directory` and return the warnings about the project."""
    for package in ("mkdocs", "material"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"no {package} on this machine")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)],
        cwd=directory,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    lines = [line for line in done.stdout.splitlines() if not line.startswith("INFO ")]
    assert (done.returncode == 0) == (lines == []), done.stdout
    return "\n".join(lines)


def test_site_builds_and_its_links_have_targets(tmp_path: Path) -> None:
    assert build(ROOT, tmp_path) == ""
    checked = 0
    for page in tmp_path.rglob("*.html"):
        text = page.read_text()
        for link in re.findall(r'(?:href|src)="([^"]*)"', text):
            if re.match(r"[a-z]+:|//", link) or page.name == "404.html":
                continue
            name, _, anchor = unquote(link).partition("#")
            target = page.parent / name if name else page
            assert target.exists() and target.resolve().is_relative_to(tmp_path.resolve()), link
            if anchor and target.suffix == ".html":
                assert f'id="{anchor}"' in target.read_text(), f"{page.name}: {link}"
                checked += 1
    assert checked > 50
    assert len(list((tmp_path / "decisions").glob("*.html"))) == len(RECORDS) + 1
    assert (tmp_path / "examples" / "redis_py.py").read_text() == (
        ROOT / "examples" / "redis_py.py"
    ).read_text()


def test_broken_link_fails_the_build(tmp_path: Path) -> None:
    copy = tmp_path / "project"
    copy.mkdir()
    for part in (*PARTS, *(path.name for path in ROOT.glob("*.md"))):
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, copy / part)
        else:
            shutil.copy(ROOT / part, copy / part)
    (copy / "tests").mkdir()
    shutil.copy(ROOT / "tests" / "README.md", copy / "tests")  # pages link to it
    with (copy / "docs" / "index.md").open("a") as page:
        page.write("\n[a](no-page.md) [b](algorithms.md#no-anchor) [c](../no-file)\n")
    said = build(copy, tmp_path / "site")
    assert "Aborted with 3 warnings" in said
    for name in ("no-page.md", "#no-anchor", "no-file"):
        assert name in said
