"""The benchmark's pure parts, and one quick run of the whole."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench import bounds, costs, load, options, page, parts, processes, result, rows, tasks
from bench.__main__ import MEASURES, main
from bench.errors import BenchError
from bench.figures import Figure

CSV_7 = (
    '"test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms"\n'
    '"GET key:__rand_int__","1176470.50","0.400","0.088","0.303"\n'
)


@pytest.mark.parametrize(
    ("output", "rate"),
    [
        (CSV_7, 1176470.50),
        ('"GET","81234.5"\n', 81234.5),  # before 6.2: no header
        ('"eval ""x"", 1","99.5"\n', 99.5),
    ],
)
def test_rate_is_parsed_from_each_form_of_output(output: str, rate: float) -> None:
    assert load.parse(output) == rate


@pytest.mark.parametrize(
    "output",
    [
        "",
        "\n",
        '"test","rps"\n',
        '"GET"\n',
        '"GET","-nan"\n',
        " GET: rps=0.0 (overall: 0.0)",
        '"GET","0"\n',
        '"GET","inf"\n',
    ],
)
def test_output_without_a_rate_is_an_error(output: str) -> None:
    with pytest.raises(BenchError, match="no rate"):
        load.parse(output)


def figure(**samples: list[float]) -> Figure:
    return Figure("get-1", rows.RATE, "/s", samples=samples)


def test_medians_ratios_and_spread() -> None:
    made = figure(direct=[100.0, 300.0, 200.0], proxy=[150.0, 50.0, 100.0])
    assert made.medians == {"direct": 200.0, "proxy": 100.0}
    assert made.ratio("proxy", "direct") == 0.5
    assert made.spread == 1.0
    assert made.ratio("proxy", "haproxy") is made.ratio("haproxy", "proxy") is None
    assert figure(direct=[0.0], proxy=[150.0, 50.0, 100.0]).ratio("proxy", "direct") is None
    assert figure().spread == 0


LEAST = bounds.Bound("gets", "HAProxy", "get-1", "proxy", "direct", 0.4, 0.6)
MOST = bounds.Bound("memory", "kB", "get-1", "proxy", "", 120.0, 100.0, most=True)


@pytest.mark.parametrize(
    ("bound", "value", "word"),
    [
        (LEAST, 0.39, bounds.NOT_MET),
        (LEAST, 0.4, bounds.MET),
        (LEAST, 0.6, bounds.MET_WITH_GOAL),
        (LEAST, None, bounds.NOT_MEASURED),
        (MOST, 121.0, bounds.NOT_MET),
        (MOST, 120.0, bounds.MET),
        (MOST, 100.0, bounds.MET_WITH_GOAL),
        (replace(MOST, goal=None), 1.0, bounds.MET),
    ],
)
def test_verdicts_follow_the_bounds(bound: bounds.Bound, value: float | None, word: str) -> None:
    assert bound.verdict(value) == word


STAT = "7 (a (b) c) S 3 7 8 0 -1 4194304 100 0 0 0 250 50 9 9 20 0 1 0 100 1000 10\n"


def test_session_and_ticks_are_read_from_proc() -> None:
    assert processes.parse(STAT) == processes.Stat(session=8, user=250, system=50)
    for wrong in ("", "7 (a) S 3", "7 (a) S 3 7 x 0 -1 4194304 100 0 0 0 250 50 9"):
        with pytest.raises(ValueError, match=r"stat|literal"):
            processes.parse(wrong)


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--repeats", "0"], "--repeats"),
        (["--requests", "1e6"], "--requests"),
        (["--only", "nothing"], "nothing"),
        (["--only", ","], "--only"),
        (["--engine", "redis-1.0"], "redis-1.0"),
        (["--output", "/nowhere/x.json"], "/nowhere"),
        (["--output", "/"], "directory"),
        (["--output", ""], "--output"),
        (["--frobnicate"], "--frobnicate"),
    ],
)
def test_invalid_option_is_one_line(
    argv: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("bench: ")
    assert err.count("\n") == 1
    assert named in err


def test_quick_run_is_small_by_default() -> None:
    quick = options.parse(["--quick"])
    assert quick.repeats == 1
    assert quick.requests == options.QUICK_REQUESTS
    assert max(row.keys for row in quick.rows) <= rows.QUICK_KEYS
    assert options.parse(["--quick", "--repeats", "2"]).repeats == 2
    assert options.parse(["--requests", "1,000"]).requests == 1000


def test_help_names_every_row(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    table = capsys.readouterr().out.partition("rows:\n")[2].partition("\n\n")[0]
    assert [line.split()[0] for line in table.splitlines()] == [row.name for row in rows.ROWS]


def test_bounds_are_of_rows_and_their_parties() -> None:
    by_name = {row.name: row for row in rows.ROWS}
    for bound in bounds.BOUNDS:
        row = by_name.get(bound.figure.partition(" ")[0]) or by_name[bound.figure.split("-")[0]]
        known = {*row.parties, *tasks.WAYS, costs.EVALSHA, parts.BARE}
        assert {bound.over, bound.under, bound.floor} - {""} <= known, bound


@pytest.mark.skipif(sys.platform != "linux", reason="CPU times are read from /proc")
def test_quick_run_leaves_out_a_row_that_fails_and_becomes_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> list[Figure]:
        raise BenchError("too bad")

    monkeypatch.setitem(MEASURES, rows.IDLE, fail)
    output = tmp_path / "bench.json"
    names = "hit-1,values,tasks-refused,start,cost,cluster-get-16,idle,latency"
    code = main(["--quick", "--requests", "400", "--only", names, "--output", str(output)])
    printed, progress = capsys.readouterr()
    assert code == 1, progress
    (why,) = re.findall("^bench: not measured: (.*)$", progress, re.MULTILINE)
    assert why == "idle: too bad"
    written = json.loads(output.read_text())
    assert f"not measured: {why}" in written["method"]["sentences"]
    found = {figure.name: figure.medians for figure in result.read(output, result.parse).figures}
    assert set(found) >= {"hit-1", "values", "cost LOG admitted"}
    assert {"direct", "bare", "proxy", "interpreted", "splice", "lane"} <= set(found["hit-1"])
    assert {"proxy", "interpreted", "splice"} <= set(found["start memory"])
    assert {"proxy", tasks.SCRIPT} <= set(found["tasks-refused"])
    if load.has_redis_benchmark():
        assert {"direct", "proxy"} <= set(found["cluster-get-16"])
    assert {"direct", "proxy"} <= set(found["latency-50"])
    assert found["latency-50"]["proxy"] <= found["latency-50 max"]["proxy"]
    kinds = {row["name"]: row["kind"] for row in written["rows"]}
    for name, medians in found.items():  # in a quick run the CPU time may be less than a tick
        assert kinds[name].endswith(rows.CPU) or all(value > 0 for value in medians.values()), name
    assert {"hit-1 redis", "hit-1 party", "tasks-refused driver"} <= set(found)
    for judged in ("hit-1", "hit-1 redis", "values", "tasks-refused"):
        assert f"| {judged}: proxy/" in printed
    assert "rlproxy" in written["versions"]
    assert page.main([str(output), str(tmp_path / "page.md")]) == 0
    text = (tmp_path / "page.md").read_text()
    assert text == printed
    assert all(f"| {name} |" in text for name in found if not name.startswith("latency"))
    assert str(tmp_path) not in text
    assert len(list((tmp_path / "images").iterdir())) == 1
