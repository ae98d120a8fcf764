"""The pages of docs/: links have targets, nothing is missing, and tables equal those of the
code.
"""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rlproxy.ratelimit.algorithms import ALGORITHMS
from rlproxy.ratelimit.grammar import OPTIONS

from bench import costs, pictures
from bench.errors import UsageError
from bench.model import page as model_page
from bench.page import PREFIX
from bench.pictures import Picture
from tests import documents
from tests.documents import DECISIONS, PAGES, RECORDS
from tests.harness import ROOT

DOCS = ROOT / "docs"
CHOOSING = (DOCS / "algorithms.md").read_text()
BENCHMARKS = DOCS / "benchmarks.md"
WORDS = ("COST", "BURST", "GAP", "STRICT", "PENALTY", "WAIT", "AND")


LINKING = [*PAGES, DECISIONS, *RECORDS, *ROOT.glob("*.md")]


@pytest.mark.parametrize("page", LINKING, ids=lambda page: page.name)
def test_links_have_targets(page: Path) -> None:
    for link in documents.links(page):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{page.name}: {link}"
        if anchor:
            assert anchor in documents.anchors(target), f"{page.name}: {link}"


def test_index_lists_every_page() -> None:
    listed = {link.partition("#")[0] for link in documents.links(DOCS / "index.md")}
    assert {page.name for page in PAGES} - {"index.md"} <= listed
    assert "decisions/README.md" in listed


def test_table_of_decisions_lists_every_record() -> None:
    table = documents.rows(DECISIONS.read_text(), "| number ")
    assert len(table) == len(RECORDS) > 0
    for number, ((cell, title, status), path) in enumerate(zip(table, RECORDS, strict=True), 1):
        head, state = re.match(r"# (.+)\n\nStatus: (.+)\n", path.read_text()).groups()  # type: ignore[union-attr]
        plain = re.sub(r"\[(\d+)\]\([^)]*\)", r"\1", state)
        assert path.name.startswith(f"{number:04}-")
        assert (cell, title, status) == (
            str(number),
            f"[{head.partition('. ')[2]}]({path.name})",
            plain,
        )
        assert head.startswith(f"{number}. ")
        form = r"accepted|(accepted, amended|superseded) by \d+( and \d+)*"
        assert re.fullmatch(form, plain), path.name
        for later in re.findall(r"\d+", plain):
            assert number < int(later) <= len(RECORDS), path.name


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.name)
def test_record_has_its_headings(path: Path) -> None:
    text = path.read_text()
    headings = ["Context", "Choice"]
    if "\nStatus: superseded by " not in text:
        headings += ["Evidence", "Consequences"]
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == headings


def test_every_page_has_one_title_and_short_lines() -> None:
    root = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")]
    for page in [*root, *PAGES, DECISIONS, *RECORDS]:
        text = page.read_text()
        assert re.match(r"# \S", text), page.name
        outside = documents.outside(page)
        assert len(re.findall(r"^# ", outside, re.MULTILINE)) == 1, page.name
        for line in outside.splitlines():
            assert len(line) <= 110 or re.match(r"\||Measured|<!--|!?\[", line), line
            # The site needs four blanks. With fewer it shows a list of the outer level, or no list.
            assert not re.match(r" {1,3}- ", line), line
        assert not re.search(r"\n(?!- )\S.*\n- ", outside), f"{page.name}: empty line before a list"


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 1000


def test_every_algorithm_has_a_row_a_picture_and_a_command() -> None:
    table = documents.rows(CHOOSING, "| if you want")
    chosen = " ".join(row[1] for row in table)
    for name in ALGORITHMS:
        assert name.decode() in chosen
        assert f"images/{name.decode().lower()}.svg" in CHOOSING


def test_every_picture_is_shown() -> None:
    shown = set(re.findall(r"!\[[^]]+\]\(images/([\w.]+)\)", CHOOSING))
    assert shown == {f"{picture.name}.svg" for picture in pictures.PICTURES}
    measured = (PREFIX, model_page.PREFIX)
    assert shown == {path.name for path in images() if not path.name.startswith(measured)}


@pytest.mark.parametrize(
    ("prefix", "page"), [(PREFIX, BENCHMARKS), (model_page.PREFIX, DOCS / "scale.md")]
)
def test_every_picture_of_the_benchmark_is_shown(prefix: str, page: Path) -> None:
    drawn = {path.name for path in images() if path.name.startswith(prefix)}
    shown: set[str] = set()
    if page.exists():  # a full run creates it
        shown = set(re.findall(r"!\[[^]]+\]\(images/([\w.-]+)\)", page.read_text()))
    assert shown == drawn


def images() -> list[Path]:
    return list((DOCS / "images").iterdir())


@pytest.mark.parametrize("picture", pictures.PICTURES, ids=lambda picture: picture.name)
def test_picture_is_accessible(picture: Picture) -> None:
    root = ElementTree.parse(DOCS / "images" / f"{picture.name}.svg").getroot()
    space = "{http://www.w3.org/2000/svg}"
    ids = {child.get("id"): child for child in root if child.get("id")}
    assert root.get("role") == "img"
    labels = [ids[name] for name in str(root.get("aria-labelledby")).split()]
    assert [label.tag for label in labels] == [f"{space}title", f"{space}desc"]
    assert all(label.text for label in labels)
    style = root.findtext(f"{space}style")
    assert style is not None
    assert "prefers-color-scheme:dark" in style


def test_table_of_options_equals_the_code() -> None:
    table = {row[0]: row[1:] for row in documents.rows(CHOOSING, "| ALGO | COST")}
    assert list(table) == [name.decode() for name in ALGORITHMS]
    for name, algorithm in ALGORITHMS.items():
        *marks, most, cost = table[name.decode()]
        assert len(marks) == len(WORDS)
        for word, mark in zip(WORDS, marks, strict=True):
            assert mark == ("yes" if word.encode() in algorithm.options else "")
        bounds = algorithm.bounds
        assert (most, cost) == (f"{bounds['max']:,}", f"{bounds['COST']:,}")


def test_every_option_is_explained() -> None:
    for word in {word.decode() for words in OPTIONS.values() for word in words} - {"ALGO"}:
        assert re.search(rf"^#+ .*\b{word}\b", CHOOSING, re.MULTILINE), word


def test_table_of_costs_is_inserted_between_its_markers() -> None:
    text = "a\n<!-- costs: x -->\nold\n<!-- /costs -->\nb\n"
    assert costs.filled(text, "new") == text.replace("old", "new")
    for wrong in ("", "<!-- costs: x -->\n", "<!-- /costs -->\n<!-- costs: x -->\n"):
        with pytest.raises(UsageError):
            costs.filled(wrong, "new")
