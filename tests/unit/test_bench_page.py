"""The page of results and its pictures equal the JSON, and are legible."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from bench import bounds, page, result, rows
from bench.bounds import Bound
from bench.figures import Figure
from bench.page import PREFIX
from bench.plots import Image
from bench.result import Head, Result
from tests import documents
from tests.unit import pages


def figure(name: str, kind: str, unit: str = "/s", **samples: float) -> Figure:
    found = {column: [value] for column, value in samples.items()}
    return Figure(name, kind, unit, f"what {name} is", found)


FIGURES = [
    figure("hit-1", rows.RATE, direct=70_000, proxy=49_000, splice=52_500),
    figure("values", rows.VALUES, "MB/s", direct=1000, proxy=2000),
    figure("latency peak", rows.LATENCY, proxy=40_000),
    *(
        figure(f"latency-{load}{name}", rows.LATENCY, "µs", direct=50 + load, proxy=2 * load)
        for load in (25, 50, 75)
        for name in ("", " p50", " p99.9", " max", " lag", " rate", " load-cpu")
    ),
    figure("idle", rows.IDLE, "kB", proxy=4.25),
]
BOUNDS = (
    Bound("hit | P1", "EVALSHA", "hit-1", "proxy", "direct", 0.95, 1.0, floor="splice"),
    Bound("idle client", "kB", "idle", "proxy", "", 6.0, 4.0, True),
    Bound("tasks", "libraries", "tasks-refused", "proxy", "script", 1.0),
)


def made() -> Result:
    """The result after it was written to a file and read again."""
    facts: dict[str, str | int | float] = {"processor": "Some CPU", "cores": 2}
    versions = {"rlproxy": "1.2.3 (compiled)"}
    sentences = ["one turn of all", "and so on"]
    head = Head("2026-01-02T03:04:05+00:00", facts, versions, sentences)
    return result.parse(json.loads(json.dumps(Result(head, FIGURES).to_json())))


@cache
def rendered() -> str:
    return page.page(made(), BOUNDS)[0]


@cache
def images() -> dict[str, Image]:
    return {image.name: image for image in page.page(made(), [])[1]}


# -- the page --------------------------------------------------------------------------------------


def test_missed_bounds_come_first() -> None:
    text = rendered()
    assert "**Not reached: 1 of the 2 bounds that were measured.**" in text
    missed = (
        "- hit | P1 (EVALSHA): 0.70, to be at least 0.95 (hit-1: proxy/direct; floor: splice 0.75)"
    )
    assert missed in text
    assert "Not measured in this run: tasks (libraries)." in text
    assert text.index("Not reached") < text.index("## The machine")
    table = documents.rows(text, "| what | against")
    assert [row[3] for row in table] == [bounds.NOT_MET, bounds.MET, bounds.NOT_MEASURED]
    assert table[0][4:] == ["0.70", "at least 0.95", "1.00", "splice 0.75"]
    assert table[1][4:] == ["4.25", "at most 6.00", "4.00", ""]
    assert table[0][0] == "hit \\| P1"


def test_page_follows_the_rules_of_pages() -> None:
    pages.check_page(rendered(), "Benchmarks", images(), PREFIX)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (None, "No such file"),
        ("{", "no JSON"),
        ("[]", "no JSON of a whole result"),
        ("{}", "date"),
        ('{"date": "x"}', "machine"),
    ],
)
def test_invalid_result_is_an_error(
    text: str | None, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pages.check_invalid_result(page.main, text, named, tmp_path, capsys)


# -- pictures --------------------------------------------------------------------------------------


def test_pictures_are_accessible_legible_and_the_same_each_time() -> None:
    pages.check_pictures(images(), page.page(made(), [])[1])
