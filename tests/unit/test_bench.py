"""The benchmark's pure parts, and one quick run of the real thing."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import hiredis
import pytest

from bench import calls, cost, load, options, redis_benchmark, report, rows
from bench.__main__ import main
from bench.errors import BenchError, UsageError
from bench.figures import Figure, interleave
from bench.progress import Progress, number
from tests.harness import ROOT

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
        (
            "GET: rps=0.0 (overall: 1.0)\rGET a: 1428571.38 requests per second, p50=0.3 msec\n",
            1428571.38,
        ),
        ("WARNING: Could not fetch server CONFIG\nGET: 5.00 requests per second\n", 5.0),
    ],
)
def test_the_rate_is_read_from_each_form_of_output(output: str, rate: float) -> None:
    assert redis_benchmark.parse(output) == rate


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
        redis_benchmark.parse(output)


def figure() -> Figure:
    made = Figure("get-1", rows.RATE, "/s", "any")
    made.samples = {"direct": [100.0, 300.0, 200.0], "proxy": [150.0, 50.0, 100.0]}
    return made


def test_medians_ratios_and_spread() -> None:
    made = figure()
    assert made.medians() == {"direct": 200.0, "proxy": 100.0}
    assert made.ratios() == {"proxy/direct": 0.5}
    assert made.spread() == 1.0
    made.samples["direct"] = [0.0]
    assert made.ratios() == {}


def test_an_even_number_of_samples_has_the_mean_of_the_middle_two() -> None:
    made = Figure("x", rows.RATE, "/s", "any", samples={"direct": [1.0, 2.0, 4.0, 100.0]})
    assert made.medians() == {"direct": 3.0}


def test_columns_take_turns() -> None:
    order: list[str] = []

    def once(column: str) -> float:
        order.append(column)
        return float(len(order))

    stream = io.StringIO()
    made = Figure("x", rows.RATE, "/s", "any")
    interleave(made, ("direct", "proxy"), once, 2, Progress(1, stream))
    assert order == ["direct", "proxy", "direct", "proxy"]
    assert made.samples == {"direct": [1.0, 3.0], "proxy": [2.0, 4.0]}
    assert stream.getvalue().endswith("x (/s): direct 2.00, proxy 3.00\n")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.123, "0.12"), (12.34, "12.3"), (123.4, "123"), (1234.5, "1,234"), (1e6, "1,000,000")],
)
def test_numbers(value: float, text: str) -> None:
    assert number(value) == text


def test_the_table_has_a_dash_where_nothing_was_measured() -> None:
    other = Figure(
        "set-1", rows.RATE, "/s", "any", samples={"direct": [1000.0], "twemproxy": [5.0]}
    )
    assert report.table([figure(), other]).splitlines() == [
        "row    unit  direct  proxy  twemproxy  proxy/direct  spread",
        "get-1  /s       200    100          -          0.50    100%",
        "set-1  /s     1,000      -       5.00             -      0%",
    ]


def test_json_and_text_tell_the_same(tmp_path: Path) -> None:
    made = report.Report(
        "2026-01-02", {"cores": 2}, {"rlproxy": "1"}, ["how"], {"n": 1}, [figure()]
    )
    path = tmp_path / "out.json"
    report.write(made, path)
    assert [found.name for found in tmp_path.iterdir()] == ["out.json"]
    written = json.loads(path.read_text())
    assert written["method"] == {"told": ["how"], "n": 1}
    assert written["rows"][0]["samples"] == figure().samples
    assert written["rows"][0]["medians"] == figure().medians()
    assert written["rows"][0]["ratios"] == figure().ratios()
    assert made.to_text().startswith("2026-01-02\ncores 2\nrlproxy 1\nhow\n\nSpeed\nrow ")


def test_rows_have_names_of_their_own() -> None:
    names = [row.name for row in rows.ROWS]
    assert len(set(names)) == len(names)
    assert rows.choose([]) == rows.ROWS
    assert [row.name for row in rows.choose(["get-16", "hit"])] == ["hit-1", "hit-16", "get-16"]
    with pytest.raises(UsageError, match="hits"):
        rows.choose(["hits"])


def test_a_hit_is_called_directly_as_the_proxy_calls_it() -> None:
    hit = (b"RL.HIT", b"k", b"10", b"60")
    call = calls.of(hit)
    assert call.evalsha[:1] + call.evalsha[2:4] == (b"EVALSHA", b"1", b"k")
    assert call.eval[:2] == (b"EVAL", call.source)
    assert call.eval[2:] == call.evalsha[2:]
    assert calls.direct(hit) == call.evalsha
    assert calls.direct((b"GET", b"k")) == (b"GET", b"k")
    with pytest.raises(BenchError, match="integer"):
        calls.of((b"RL.HIT", b"k", b"0", b"60"))


def test_batches_hold_the_commands_in_turn_with_random_keys() -> None:
    commands = ((b"SET", b"a:__rand_int__", b"x"), (b"GET", b"b"))
    made = load.batches(commands, 4, 10, 3)
    assert made == load.batches(commands, 4, 10, 3)
    assert len(made) == 3
    reader = hiredis.Reader()
    reader.feed(made[0])
    found = [reader.gets() for _ in range(4)]
    assert reader.gets() is False
    assert [words[0] for words in found] == [b"SET", b"GET", b"SET", b"GET"]
    assert 0 <= int(found[0][1].removeprefix(b"a:")) < 10
    assert len(found[0][1]) == 14
    assert len(load.batches(commands, 1, 10, 10**9)) == load.MAX_BATCHES


def test_the_time_of_a_call_is_read_from_commandstats() -> None:
    info = (
        "# Commandstats\r\ncmdstat_eval:calls=4,usec=10,usec_per_call=2.50,rejected_calls=0\r\n"
        "cmdstat_evalsha:calls=2,usec=9,usec_per_call=4.50,rejected_calls=0\r\n"
    )
    assert cost.microseconds(info, "eval") == 2.5
    assert cost.microseconds(info, "evalsha") == 4.5
    with pytest.raises(BenchError):
        cost.microseconds(info, "get")


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--repeats", "0"], "--repeats"),
        (["--requests", "1e6"], "--requests"),
        (["--idle-clients", "-1"], "--idle-clients"),
        (["--only", "nothing"], "nothing"),
        (["--only", ","], "--only"),
        (["--engine", "redis-1.0"], "redis-1.0"),
        (["--output", "/nowhere/x.json"], "/nowhere"),
        (["--output", "/"], "directory"),
        (["--output", ""], "--output"),
        (["--frobnicate"], "--frobnicate"),
    ],
)
def test_a_bad_option_is_one_line(
    argv: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("bench: ")
    assert err.count("\n") == 1
    assert named in err


def test_quick_is_small_unless_told_otherwise() -> None:
    quick = options.parse(["--quick"])
    assert quick.repeats == 1
    assert quick.requests == options.QUICK_REQUESTS
    assert max(row.keys for row in quick.rows) <= options.QUICK_KEYS
    assert options.parse(["--quick", "--repeats", "2"]).repeats == 2
    assert options.parse(["--requests", "1,000"]).requests == 1000


def test_list_names_every_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == [row.name for row in rows.ROWS]


def test_a_quick_run(tmp_path: Path) -> None:
    output = tmp_path / "bench.json"
    names = "hit-1,mixed-2,large-get,space"
    argv = [sys.executable, "-m", "bench", "--quick", "--only", names, "--output", str(output)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    written = json.loads(output.read_text())
    found = {row["name"]: row["medians"] for row in written["rows"]}
    assert set(found) >= {"hit-1", "mixed-2", "large-get", "space LOG"}
    assert {"direct", "proxy"} <= set(found["hit-1"])
    assert all(value > 0 for medians in found.values() for value in medians.values())
    assert "rlproxy" in written["versions"]
    assert all(name in done.stdout for name in found)
