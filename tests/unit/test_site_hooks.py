"""site_hooks: links of the pages have the same targets on the site."""

from __future__ import annotations

import posixpath

import pytest

from scripts import site_hooks
from tests.harness import ROOT


@pytest.mark.parametrize(
    ("target", "directory", "wanted"),
    [
        ("algorithms.md#wait", "docs", "algorithms.md#wait"),
        ("#wait", "docs", "#wait"),
        ("images/log.svg", "docs", "images/log.svg"),
        ("../README.md#run-it", "docs", "readme.md#run-it"),
        ("../examples/redis_py.py", "docs", "examples/redis_py.py"),
        ("../LICENSE", "docs", "LICENSE"),
        ("docs/algorithms.md", "", "algorithms.md"),
        ("ARCHITECTURE.md", "", "architecture.md"),
        ("docs/decisions/README.md", "", "decisions/README.md"),
        ("decisions/README.md", "docs", "decisions/README.md"),
        ("0048-a.md", "docs/decisions", "0048-a.md"),
        ("../algorithms.md#wait", "docs/decisions", "../algorithms.md#wait"),
        ("../../SECURITY.md", "docs/decisions", "../security.md"),
        ("../../bench/costs.py", "docs/decisions", "../bench/costs.py"),
        ("https://example.com/docs/a.md", "", "https://example.com/docs/a.md"),
        ("tests/README.md", "", "tests/README.md"),
        ("../CONTRIBUTING.md", "tests", "../contributing.md"),
        ("../docs/cluster.md", "tests", "../cluster.md"),
    ],
)
def test_links_are_rewritten_for_the_site(target: str, directory: str, wanted: str) -> None:
    assert site_hooks.rewritten(target, directory) == wanted


def test_links_in_fenced_blocks_are_unchanged() -> None:
    text = "[a](../README.md)\n```\n[a](../README.md)\n```\n[b](../LICENSE) [c](d.md)\n"
    assert site_hooks.markdown_of(text, "docs") == (
        "[a](readme.md)\n```\n[a](../README.md)\n```\n[b](LICENSE) [c](d.md)\n"
    )


def test_bars_of_code_in_tables_have_no_backslash() -> None:
    text = r"| `--share auto\|yes` * | a\|b |"
    assert site_hooks.markdown_of(text, "docs") == r"| `--share auto|yes` * | a\|b |"


def test_linked_files_are_included() -> None:
    found = site_hooks.linked()
    assert {"examples/redis_py.py", "deploy/rlproxy.service", "tests/README.md"} <= found
    assert all((ROOT / name).is_file() for name in found)


def test_every_link_has_its_target_on_the_site() -> None:
    own = [*ROOT.glob("*.md"), *(ROOT / name for name in site_hooks.linked() if ".md" in name)]
    docs = [path for path in (ROOT / "docs").rglob("*") if path.is_file()]
    site = site_hooks.linked() | {path.relative_to(ROOT / "docs").as_posix() for path in docs}
    site |= {site_hooks.page_of(path.name) for path in ROOT.glob("*.md")}
    for page in [*own, *(path for path in docs if path.suffix == ".md")]:
        directory = site_hooks.directory_of(page)
        text = site_hooks.markdown_of(page.read_text(), directory)
        for target in filter(None, site_hooks.LINK.findall(text)):
            name = target.partition("#")[0]
            if name and ":" not in name:
                path = posixpath.normpath(posixpath.join(site_hooks.place(directory), name))
                assert path in site, (page, target)


def test_page_missing_in_nav_is_appended() -> None:
    config = site_hooks.on_config({"nav": [{"A": "index.md"}, {"B": [{"C": "readme.md"}]}]})
    *given, more = config["nav"]
    assert given == [{"A": "index.md"}, {"B": [{"C": "readme.md"}]}]
    assert "algorithms.md" in more["More"]
    assert "architecture.md" in more["More"]
    assert not {"index.md", "readme.md"} & set(more["More"])
