"""The view of `rlproxy top`: it fits the terminal, and is right, for any keys and numbers."""

from __future__ import annotations

import io
import re
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rlproxy.top.client import Policies, Rows, Sample
from rlproxy.top.screen import POLICIES, View

NONE: Rows = {}
ROWS: Rows = {"user:1": (5000.0, 0.0)}
TEXTS = {"version": "1.2.3", "upstream": "10.0.0.1:6379", "upstream_server": "Valkey 9.1.0"}


def sample(
    at: float,
    hits: float = 0,
    rows: Rows = ROWS,
    refused: Rows = NONE,
    rules: dict[str, str] | None = None,
    policies: Policies | None = None,
    **more: float,
) -> Sample:
    numbers = {"workers": 2, "upstream_up": 1, "uptime_in_seconds": at, "top_seconds": 50}
    numbers |= {"hits": hits, "admitted": hits * 0.7, "refused": hits * 0.1}
    numbers |= {"refused_locally": hits * 0.2, "clients": 1234, "denials": 7}
    calls = {100.0: int(more.pop("fast", 0)), 250.0: int(more.pop("slow", 0))}
    found = defaultdict(float, numbers | more)
    texts = {**TEXTS, "upstream_why": "gone"}
    return Sample(at, texts, found, calls, rows, refused, rules or {}, policies or {})


def two(hits: float, rows: Rows = ROWS, refused: Rows = NONE, **more: float) -> View:
    view = View("here", sample(100.0))
    view.add(sample(102.0, hits, rows, refused, None, None, **more))
    return view


def frame(
    view: View, columns: int = 80, rows: int | None = None, colours: bool = False
) -> list[str]:
    console = Console(
        file=io.StringIO(),
        width=columns,
        height=rows,
        color_system="standard" if colours else None,
        force_terminal=colours,
        highlight=False,
    )
    console._is_alt_screen = rows is not None
    console.print(view)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_frame() -> None:
    assert frame(two(2000, fast=98, slow=2, bytes_in=3_000_000)) == [
        "rlproxy 1.2.3 at here, workers 2, up 0:01:42",
        "Redis 10.0.0.1:6379, Valkey 9.1.0: answers: half in 0.1 ms, 99 % in 0.25 ms",
        "clients 1,234  private connections 0  lanes 0  waiting 0  denials 7",
        "timeouts 0  errors 0  commands 0/s  bytes in 1,500,000/s  bytes out 0/s",
        "",
        "hits/s         1,000  █  at most 1,000",
        "admitted         700     70.0%",
        "refused          300     30.0%",
        "locally          200     20.0%",
        "failed             0      0.0%",
        "",
        "key of the last minute                                         hits/s  refused/s",
        "user:1                                                            100",
    ]


def test_the_frame_that_the_page_shows() -> None:
    hits = refused = 0
    view: View | None = None
    texts = {"version": "0.1.0", "upstream": "10.0.0.5:6379", "upstream_server": "Valkey 9.1.0"}
    for at, rate in enumerate((8000, 8200, 8100, 8900, 11900, 14800, 15900, 16100, 15800, 16200)):
        hits += rate
        refused += max(rate - 8000, 0)
        numbers = {"workers": 2, "upstream_up": 1, "clients": 412, "private_connections": 406}
        numbers |= {"lanes": 2, "denials": 1873, "top_seconds": 56, "errors": 3}
        numbers |= {"uptime_in_seconds": 273_600 + at, "hits": hits, "shadow_refused": at * 9}
        numbers |= {"admitted": hits - refused - at * 9}
        numbers |= {"refused_locally": refused, "commands": at * 2210}
        numbers |= {"bytes_in": hits * 61, "bytes_out": hits * 29}
        busiest = {"login:203.0.113.7": (421_000, 0), "api:team-blue": (9800, 0)}
        busiest |= {"api:team-red": (6100, 0), "export:42": (95, 12)}
        most = {"login:203.0.113.7": (420_400, 0), "export:42": (60, 4)}
        rules = {"login:203.0.113.7": "login", "export:42": "5 3600 ALGO TOKEN"}
        named = {
            "login": ("enforced", at * 9000.0, refused),
            "api": ("shadow", at * 300.0, at * 9.0),
        }
        made: defaultdict[str, float] = defaultdict(float, numbers)
        calls = {250.0: hits, 500.0: 0}
        now = Sample(at, texts, made, calls, busiest, most, rules, named)  # type: ignore[arg-type]
        if view is None:
            view = View("127.0.0.1:6380", now)
        else:
            view.add(now)
    assert view is not None
    page = (Path(__file__).resolve().parents[3] / "docs" / "hot-keys.md").read_text()
    assert f"```text\n{chr(10).join(frame(view, rows=24))}\n```\n" in page


def test_policies_with_most_hits_come_first() -> None:
    policies: Policies = {f"p{number}": ("enforced", 9.0, 9.0) for number in range(20)}
    view = View("here", sample(100.0, policies=policies))
    for name, mode, hits in (("p7", "enforced", 1000.0), ("trial", "shadow", 4000.0)):
        policies = {**policies, name: (mode, policies.get(name, ("", 0.0, 0.0))[1] + hits, 259.0)}
    view.add(sample(102.0, 5000, policies={**policies, "unused": ("enforced", 0.0, 0.0)}))
    made = [line.split() for line in frame(view)[11:]]
    assert made[:4] == [
        ["policy", "mode", "hits/s", "refused/s", "in", "shadow/s", "share"],
        ["trial", "shadow", "2,000", "130", "6.5%"],
        ["p7", "enforced", "500", "125", "25.0%"],
        ["p0", "enforced", "0", "0"],
    ]
    assert made[POLICIES + 1 :][:2] == [
        [],
        ["key", "of", "the", "last", "minute", "hits/s", "refused/s"],
    ]
    narrow = [line.split() for line in frame(view, 40)]
    assert narrow[narrow.index(["policy", "hits/s", "share"]) :][:2] == [
        ["policy", "hits/s", "share"],
        ["trial", "2,000", "6.5%"],
    ]


def test_many_policies_are_requested_less_often_and_keep_their_rates() -> None:
    def policies(hits: float) -> Policies:
        return {f"p{number}": ("enforced", hits, 0.0) for number in range(10_000)}

    view = View("here", sample(100.0, policies=policies(0.0)))
    assert not view.policies_due(104.9)
    view.add(sample(101.0)._replace(policies=None))
    assert view.policies == []
    assert view.policies_due(105.0)
    view.add(sample(105.0, policies=policies(50.0)))
    view.add(sample(106.0)._replace(policies=None))
    assert view.policies[0] == ("p0", "enforced", 10.0, 0.0)
    few = View("here", sample(100.0, policies={"p": ("enforced", 1.0, 0.0)}))
    assert few.policies_due(100.1)


def test_hits_refused_in_shadow_have_a_line() -> None:
    made = frame(two(2000, shadow_refused=100))
    assert made[7:9] == ["in shadow         50      5.0%", "refused          300     30.0%"]


def test_what_refused_a_key_is_shown_beside_it() -> None:
    view = View("here", sample(100.0))
    rules = {"user:1": "5 60 PENALTY 300 AND 20 3600"}
    view.add(sample(102.0, 10, refused={"user:1": (50, 0)}, rules=rules))
    made = [line.split() for line in frame(view)[11:]]
    assert made[0][-2:] == ["refused", "by"]
    assert made[1:] == [
        ["user:1", "100", "1", *["5", "60", "PENALTY", "300", "AND", "20"]],
        ["3600"],
    ]
    assert frame(view, 40)[-1].split() == ["user:1", "100"]


def test_before_two_samples_rates_are_zero() -> None:
    view = View("here", sample(100.0, 50))
    assert frame(view)[5] == "hits/s             0    at most 0"
    assert "half in" not in frame(view)[1]


def test_trouble_is_shown_and_the_last_values_stay() -> None:
    view = two(2000)
    view.trouble = "Connection refused"
    made = frame(view)
    assert re.fullmatch(r"no news for -?\d+ s: Connection refused", made[1])
    assert made[2].startswith("Redis 10.0.0.1:6379") and made[6].startswith("hits/s         1,000")
    view.add(sample(104.0, 2000))
    assert "no news" not in "\n".join(frame(view))


def test_redis_that_does_not_answer() -> None:
    assert frame(two(10, upstream_up=0))[1].endswith("does not answer: gone")
    shown = frame(two(10, upstream_up=0, failed_open=5), colours=True)
    assert "\x1b[31mdoes not answer" in shown[1]
    assert shown[9].startswith("\x1b[31mfailed")


def test_rates_begin_again_after_a_restart() -> None:
    view = two(2000)
    view.add(sample(104.0, 5, uptime_in_seconds=1))
    assert view.rates["hits"] == 0
    view.add(sample(105.0, 15, uptime_in_seconds=2))
    assert view.rates["hits"] == 10
    assert list(view.bars) == [1000, 0, 10]


def test_rates_that_may_be_wrong_are_marked() -> None:
    rows: Rows = {"sure": (1000, 100), "unsure": (1000, 101), '""': (25, 0)}
    made = [line.split() for line in frame(two(10, rows, {"unsure": (500, 0)}))[12:]]
    assert made == [["sure", "20"], ["unsure", "~20", "10"], ['""', "0.5"]]


def test_bars_show_the_latest_that_have_room() -> None:
    view, hits = View("here", sample(100.0)), 0
    for at in range(1, 200):
        hits += 10 * min(at, 100)
        view.add(sample(100.0 + at, hits))
    line = frame(view)[5]
    assert line.startswith("hits/s         1,000  ██") and line.endswith("██  at most 1,000")
    assert 70 < len(line) <= 80
    assert re.search("▁▁+▂▂+▃▃+▄▄+▅▅+▆▆+▇▇+███+", frame(view, 260)[5])


def test_a_long_key_is_wrapped() -> None:
    key = "login:" + "x" * 90 + ":203.0.113.7"
    made = frame(two(10, {key: (10, 0)}))[12:]
    assert made[0].endswith("x     0.2") or made[0].split()[1] == "0.2"
    assert "".join(line.split()[0] for line in made if line) == key
    assert key in frame(two(10, {key: (10, 0)}), 260)[12]


def test_a_narrow_terminal_has_one_column_of_rates() -> None:
    view = two(10, refused={"user:2": (50, 0)})
    made = frame(view, 40)
    assert made[-2].split() == ["key", "of", "the", "last", "minute", "hits/s"]
    assert made[-1].split() == ["user:1", "100"]
    assert "private" not in "\n".join(made)
    assert view.press("r")
    assert frame(view, 40)[-1].split() == ["user:2", "1"]


def keys(view: View) -> list[str]:
    return [line.split()[0] for line in frame(view)[12:]]


def test_sorting() -> None:
    view = two(10, {"b": (9, 0), "a": (3, 0), "c": (6, 0)}, {"a": (2, 0), "c": (1, 0)})
    assert keys(view) == ["b", "c", "a"]
    for stroke, order in (
        ("r", "acb"),
        ("k", "abc"),
        ("x", "abc"),
        ("\x1b[A", "abc"),
        ("h", "bca"),
    ):
        assert view.press(stroke)
        assert "".join(keys(view)) == order


def test_a_filter() -> None:
    view = two(10, {"api:q": (9, 0), "login:1": (3, 0), "login:2": (6, 0)})
    assert view.press("/log")
    assert keys(view) == ["login:2", "login:1"]
    assert frame(view, rows=24)[-1] == "q quit  h r k sort  / filter log_"
    assert view.press("x\x7fin:1\x1b[B")
    assert keys(view) == ["login:1"]
    assert view.press("\r")
    assert frame(view, rows=24)[-1] == "q quit  h r k sort  / filter login:1"
    assert view.press("/") and view.press("\x1b")
    assert len(keys(view)) == 3
    assert view.press("/q\r")
    assert keys(view) == ["api:q"]


@pytest.mark.parametrize("stroke", ["q", "Q", "\x04", "hq"])
def test_the_keys_that_end_it(stroke: str) -> None:
    assert not two(10).press(stroke)


@settings(max_examples=50, deadline=None)
@given(
    st.dictionaries(
        st.text(max_size=140).filter(str.isprintable),
        st.tuples(st.floats(0, 1e18), st.floats(0, 1e18)),
        max_size=12,
    ),
    st.integers(1, 200),
    st.integers(1, 60),
    st.text(max_size=100),
    st.text(max_size=9),
)
def test_a_frame_fits(rows: Rows, columns: int, height: int, trouble: str, strokes: str) -> None:
    view = two(12345, rows, dict(list(rows.items())[::2]))
    view.trouble = "".join(filter(str.isprintable, trouble))
    view.press(strokes)
    made = frame(view, columns, height)
    assert len(made) <= height
    assert all(cell_len(line) <= columns and line.isprintable() for line in made), made
