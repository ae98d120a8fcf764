"""The view of `rlproxy top`: it fits the terminal, and is right, for any keys and numbers."""

from __future__ import annotations

import io
import re
from collections import defaultdict
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.screen import Screen
from rlproxy.top.client import Client, Rows, Sample
from rlproxy.top.screen import View

Policies = dict[str, tuple[str, float, float]]  # mode, hits and refused hits by name
NONE: Rows = {}
ROWS: Rows = {"user:1": (5000.0, 0.0, "")}
TEXTS = {"version": "1.2.3", "upstream": "10.0.0.1:6379", "upstream_server": "Valkey 9.1.0"}


def sample(
    at: float,
    hits: float = 0,
    rows: Rows = ROWS,
    refused: Rows = NONE,
    policies: Policies | None = None,
    **more: float,
) -> Sample:
    numbers = {"workers": 2, "upstream_up": 1, "uptime_in_seconds": at, "top_seconds": 50}
    numbers |= {"hits": hits, "admitted": hits * 0.7, "refused": hits * 0.1}
    numbers |= {"refused_locally": hits * 0.2, "clients": 1234, "denials": 7}
    for name, (_, count, denied) in (policies or {}).items():
        numbers |= {f"{name} hits": count, f"{name} refused": denied}
    found = defaultdict(float, numbers | more)
    texts = {**TEXTS, "upstream_why": "gone"}
    modes = {name: mode for name, (mode, *_) in (policies or {}).items()}
    return Sample(at, texts, found, rows, refused, modes)


class Replies(Client):
    """The client of a proxy with these samples."""

    def __init__(self, *samples: Sample) -> None:
        self.where = "here"
        self.samples = list(samples)

    def sample(self) -> Sample:
        return self.samples.pop(0)


def seen(*samples: Sample) -> View:
    """The view after these samples."""
    view = View(Replies(*samples))
    for _ in samples[1:]:
        view.update()
    return view


def add(view: View, new: Sample) -> None:
    view.client = Replies(new)
    view.update()


def two(hits: float, rows: Rows = ROWS, refused: Rows = NONE, **more: float) -> View:
    return seen(sample(100.0), sample(102.0, hits, rows, refused, None, **more))


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
    console.print(view if rows is None else Screen(view))
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def keys_of(view: View, columns: int = 80) -> list[str]:
    """What the first column of the table of keys shows."""
    made = frame(view, columns)
    at = max(number for number, line in enumerate(made) if line.startswith("key of the"))
    return [line.split()[0] for line in made[at + 1 :] if line[:1].strip() and "last" not in line]


def test_a_frame() -> None:
    assert frame(two(2000, bytes_in=3_000_000)) == [
        "rlproxy 1.2.3 at here, workers 2, up 0:01:42",
        "Redis 10.0.0.1:6379, Valkey 9.1.0: answers",
        "clients 1,234  private connections 0  lanes 0  waiting 0  denials 7  timeouts 0",
        "errors 0  commands 0/s  bytes in 1,500,000/s  bytes out 0/s",
        "",
        "hits/s         1,000  █  at most 1,000",
        "admitted         700     70.0%",
        "in shadow          0      0.0%",
        "refused          300     30.0%",
        "locally          200     20.0%",
        "failed             0      0.0%",
        "",
        "",
        "key of the last minute                   hits/s  refused/s  refused by",
        "user:1                                      100",
    ]


def test_the_frame_that_the_page_shows() -> None:
    hits = refused = 0
    samples = []
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
        numbers |= {"login hits": at * 9000, "login refused": refused}
        numbers |= {"api hits": at * 300, "api refused": at * 9}
        busiest: Rows = {"login:203.0.113.7": (421_000, 0, ""), "api:team-blue": (9800, 0, "")}
        busiest |= {"api:team-red": (6100, 0, ""), "export:42": (95, 12, "")}
        most: Rows = {"login:203.0.113.7": (420_400, 0, "login")}
        most |= {"export:42": (60, 4, "5 3600 ALGO TOKEN")}
        modes = {"login": "enforced", "api": "shadow"}
        samples.append(Sample(at, texts, defaultdict(float, numbers), busiest, most, modes))
    view = seen(*samples)
    view.client.where = "127.0.0.1:6380"
    page = (Path(__file__).resolve().parents[3] / "docs" / "hot-keys.md").read_text()
    shown = "\n".join(frame(view, rows=24)).rstrip()
    assert f"```text\n{shown}\n```\n" in page


def test_a_small_screen_has_keys() -> None:
    rows: Rows = {f"user:{n}": (5000.0, 0.0, "") for n in range(9)}
    policies = {"login": ("enforced", 20.0, 3.0), "api": ("shadow", 2.0, 1.0)}
    view = seen(sample(100.0), sample(102.0, 2000, rows, policies=policies))
    assert frame(view, 40, 15)[-1].startswith("user:")
    assert any(line.startswith("user:8") for line in frame(view, 80, 19))
    whole = frame(view, 80, 20)
    assert whole[5:12] == frame(view, 80)[5:12]


def test_trouble_is_shown_and_the_last_values_stay() -> None:
    view = two(2000)
    view.trouble = "Connection refused"
    made = frame(view)
    assert re.fullmatch(r"no news for -?\d+ s: Connection refused", made[1])
    assert made[2].startswith("Redis 10.0.0.1:6379")
    assert "hits/s         1,000  █  at most 1,000" in made
    add(view, sample(104.0, 2000))
    assert "no news" not in "\n".join(frame(view))


def test_redis_that_does_not_answer() -> None:
    assert frame(two(10, upstream_up=0))[1].endswith("does not answer: gone")
    shown = frame(two(10, upstream_up=0, failed_open=5), colours=True)
    assert "\x1b[31mdoes not answer" in shown[1]
    assert any(line.startswith("\x1b[31mfailed") for line in shown)


def test_rates_begin_again_after_a_restart() -> None:
    view = two(2000)
    add(view, sample(104.0, 5, uptime_in_seconds=1))
    assert view.rates["hits"] == 0
    add(view, sample(105.0, 15, uptime_in_seconds=2))
    assert view.rates["hits"] == 10
    assert list(view.bars) == [1000, 0, 10]


def test_rates_that_may_be_wrong_are_marked() -> None:
    rows: Rows = {"sure": (1000, 100, ""), "unsure": (1000, 101, ""), '""': (25, 0, "")}
    made = [line.split() for line in frame(two(10, rows, {"unsure": (500, 0, "")}))[-3:]]
    assert made == [["sure", "20"], ["unsure", "~20", "10"], ['""', "0.5"]]


def test_a_filter() -> None:
    view = two(10, {"api:q": (9, 0, ""), "login:1": (3, 0, ""), "login:2": (6, 0, "")})
    assert view.press("/log")
    assert keys_of(view) == ["login:2", "login:1"]
    assert "q quit  h r k sort  / filter log_" in frame(view, rows=24)
    assert view.press("x\x7fin:1\x1b[B")
    assert keys_of(view) == ["login:1"]
    assert view.press("\r")
    assert "q quit  h r k sort  / filter login:1" in frame(view, rows=24)
    assert view.press("/") and view.press("\x1b")
    assert len(keys_of(view)) == 3
    assert view.press("/q\r")
    assert keys_of(view) == ["api:q"]


# Of each width, keys of the view among them. Hypothesis takes seconds to prepare all characters.
PRINTABLE = "aZ09 :/qhrké\u0301ß中한😀\ufe0f"
CHARACTERS = PRINTABLE + "\r\n\t\b\x1b\x7f\u200b\u202e"


@settings(max_examples=50, deadline=None)
@given(
    st.dictionaries(
        st.text(PRINTABLE, max_size=140),
        st.tuples(st.floats(0, 1e18), st.floats(0, 1e18), st.text(PRINTABLE, max_size=40)),
        max_size=12,
    ),
    st.integers(1, 200),
    st.integers(1, 60),
    st.text(CHARACTERS, max_size=100),
    st.text(CHARACTERS, max_size=9),
)
def test_a_frame_fits(rows: Rows, columns: int, height: int, trouble: str, strokes: str) -> None:
    view = two(12345, rows, dict(list(rows.items())[::2]))
    view.trouble = "".join(filter(str.isprintable, trouble))
    view.press(strokes)
    made = frame(view, columns, height)
    assert len(made) <= height
    assert all(cell_len(line) <= columns and line.isprintable() for line in made), made
