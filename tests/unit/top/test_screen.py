"""dashboard: what is shown fits the terminal, and is right, whatever keys and numbers there are."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from unicodedata import combining, east_asian_width

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rlproxy.top.screen import History, Look, Sample, lines, parse

STATS = (
    b"# Server\r\nversion:1.2.3\r\nuptime_in_seconds:%d\r\nworkers:2\r\n\r\n# Hits\r\n"
    b"hits:%d\r\nadmitted:%d\r\nrefused:%d\r\nrefused_locally:%d\r\nfailed:0\r\nfailed_open:%d\r\n"
    b"top_seconds:50.0\r\ndenials:7\r\n# Upstream\r\nupstream:10.0.0.1:6379\r\n"
    b"upstream_server:Valkey 9.1.0\r\nupstream_up:%d\r\nupstream_why:gone \x1b[2J\r\n"
    b"round_trips_us:100=%d,250=%d,inf=0\r\nclients:1234\r\nbytes_in:%d\r\n"
)


def sample(at: float, hits: int = 0, **more: int) -> Sample:
    told = {"up": 1, "open": 0, "began": 0, "fast": 0, "slow": 0, "bytes": 0} | more
    refused, local = hits // 10, hits // 5
    admitted = hits - refused - local - told["open"]
    numbers = (int(at - told["began"]), hits, admitted, refused, local)
    rest = (told["open"], told["up"], told["fast"], told["slow"], told["bytes"])
    return Sample(at, parse(STATS % (*numbers, *rest)), [(b"user:1", 5000, 0)], [])


def two(hits: int, seconds: float = 2.0, **more: int) -> History:
    history = History()
    history.add(sample(100.0))
    history.add(sample(100.0 + seconds, hits, **more))
    return history


def text(history: History, trouble: str = "", foot: str = "", columns: int = 80) -> list[str]:
    return lines(history, "here", trouble, foot, Look(columns))


def width(line: str) -> int:
    cells = 0
    for char in line:
        if not combining(char):
            cells += 2 if east_asian_width(char) in "WF" else 1
    return cells


def test_a_frame() -> None:
    made = text(two(2000, fast=98, slow=2, bytes=3_000_000), foot="q quits")
    assert made[:11] == [
        "rlproxy 1.2.3 at here, 2 workers, up 1 min 42 s",
        "Redis 10.0.0.1:6379, Valkey 9.1.0: answers: half in 0.1 ms, 99 % in 0.25 ms",
        "clients 1,234   private connections 0   lanes 0   hits that wait 0",
        "remembered refusals 7   late calls 0   errors 0",
        "other commands 0/s   in 1.5 MB/s   out 0 B/s",
        "",
        "hits/s         1,000  █  at most 1,000",
        "admitted         700    70.0 %",
        "refused          300    30.0 %   200 of them unasked",
        "failed             0     0.0 %",
        "",
    ]
    assert made[11].split() == ["busiest", "keys", "hits/s", "most", "refused", "keys", "refused/s"]
    assert made[12].split()[:2] == ["user:1", "100"]
    assert "(none in the last minute)" in made[12]
    assert made[13:] == [""] * 10 + ["q quits"]


def test_whole_addresses() -> None:
    """Where nobody has to see all of it at once, they are not cut; everything else is."""
    where = "/run/" + "long/" * 20 + "rlproxy.sock"
    history = two(2000)
    assert history.latest is not None
    history.latest.stats["upstream"] = f"unix:{where}"
    narrow = Look(40, 12)
    cut = lines(history, where, "some trouble", "", narrow)
    assert all(width(line) <= 40 for line in cut)
    whole = lines(history, where, "some trouble", "", replace(narrow, whole=True))
    assert whole[0] == f"rlproxy 1.2.3 at {where}, 2 workers, up 1 min 42 s"
    assert whole[1] == "some trouble"
    assert whole[2] == f"Redis unix:{where}, Valkey 9.1.0: answers"
    assert whole[3:] == cut[3:]
    (only,) = lines(History(), where, "", "", replace(narrow, whole=True))
    assert only == f"rlproxy at {where}"


def test_the_frame_that_the_page_shows() -> None:
    stats = {"version": "0.1.0", "workers": "2", "upstream": "10.0.0.5:6379", "upstream_up": "1"}
    stats |= {"upstream_server": "Valkey 9.1.0", "clients": "412", "private_connections": "406"}
    stats |= {"lanes": "2", "denials": "1873", "top_seconds": "56.0", "errors": "3"}
    history = History()
    hits, refused = 0, 0
    for at, rate in enumerate((8000, 8200, 8100, 8900, 11900, 14800, 15900, 16100, 15800, 16200)):
        hits += rate
        refused += max(rate - 8000, 0)
        stats |= {"uptime_in_seconds": f"{273_600 + at}", "round_trips_us": f"250={hits},500=0"}
        stats |= {"hits": f"{hits}", "admitted": f"{hits - refused}", "refused": "0"}
        stats |= {"refused_locally": f"{refused}", "commands": f"{at * 2210}"}
        stats |= {"bytes_in": f"{hits * 61}", "bytes_out": f"{hits * 29}"}
        busiest = [(b"login:203.0.113.7", 421_000, 0), (b"api:team-blue", 9800, 0)]
        busiest += [(b"api:team-red", 6100, 0), (b"export:42", 95, 12)]
        most = [(b"login:203.0.113.7", 420_400, 0), (b"export:42", 60, 4)]
        history.add(Sample(float(at), dict(stats), busiest, most))
    foot = "q quits   every 1 s   keys: of the last minute, ~ off by more than a tenth"
    made = lines(history, "127.0.0.1:6380", "", foot, Look(rows=18))
    page = (Path(__file__).resolve().parents[3] / "docs" / "hot-keys.md").read_text()
    assert f"```text\n{chr(10).join(made)}\n```\n" in page


def test_before_two_samples_nothing_is_known_of_rates() -> None:
    history = History()
    assert text(history, "gone") == ["rlproxy at here", "gone"]
    history.add(sample(100.0, 50))
    assert [line.split()[1] for line in text(history)[6:10]] == ["-"] * 4
    assert "half in" not in text(history)[1]


def test_trouble_is_told_and_what_was_known_stays() -> None:
    made = text(two(10), "here can't be reached")
    assert made[1] == "here can't be reached"
    assert made[2].startswith("Redis 10.0.0.1:6379")


def test_redis_that_does_not_answer() -> None:
    assert text(two(10, up=0))[1].endswith(r"does not answer: gone \x1b[2J")
    shown = lines(two(10, up=0, open=5), "here", "", "", Look(colours=True))
    assert "\x1b[31mdoes not answer" in shown[1]
    assert shown[9].startswith("\x1b[31mfailed")


def test_a_proxy_that_was_started_anew_begins_anew() -> None:
    history = two(2000)
    history.add(sample(104.0, 5, began=103))
    assert history.rate("hits") is None
    history.add(sample(105.0, 15, began=103))
    assert history.rate("hits") == 10
    assert list(history.bars) == [1000, 10]


def test_counts_that_may_be_wrong_are_marked() -> None:
    history = two(10)
    assert history.latest is not None
    rows = [(b"sure", 1000, 100), (b"unsure", 1000, 101), (b"", 25, 0)]
    history.add(replace(history.latest, at=104.0, busiest=rows, refused=rows[1:2]))
    made = text(history)
    assert made[12].split() == ["sure", "20", "unsure", "~20"]
    assert made[13].split() == ["unsure", "~20"]
    assert made[14].split() == ['""', "0.5"]


def test_bars_show_the_latest_that_have_room() -> None:
    history = History()
    hits = 0
    for at in range(200):
        hits += 10 * min(at, 100)
        history.add(sample(100.0 + at, hits))
    line = text(history)[6]
    assert line.startswith("hits/s         1,000  ██") and line.endswith("██  at most 1,000")
    assert 70 < len(line) <= 80
    wide = text(history, columns=260)[6]
    assert re.search("▁▁+▂▂+▃▃+▄▄+▅▅+▆▆+▇▇+███+", wide)
    ascii_only = lines(history, "here", "", "", Look(columns=220, unicode=False))[6]
    assert ascii_only.isascii() and "##  at most" in ascii_only


def test_the_ends_of_a_long_key_stay() -> None:
    history = two(10)
    assert history.latest is not None
    key = b"login:" + b"x" * 90 + b":203.0.113.7"
    history.add(replace(history.latest, at=104.0, busiest=[(key, 10, 0)]))
    assert re.match(r"login:x+\.\.x+:203\.0\.113\.7 0\.2  ", text(history)[12])
    assert key.decode() in text(history, columns=260)[12]


def test_in_a_narrow_terminal_one_table_stands_below_the_other() -> None:
    history = two(10)
    assert history.latest is not None
    rows = [(b"%d" % number, 50, 0) for number in range(20)]
    history.add(replace(history.latest, at=104.0, busiest=rows, refused=rows))
    narrow = [line.split() for line in text(history, columns=40)[11:]]
    assert [line[0] for line in narrow] == ["busiest", *"01234", "most", *"01234"]
    low = lines(history, "here", "", "", Look(40, 15))[11:]
    assert [line.split()[0] for line in low] == ["busiest", "0", "1", "2"]


@pytest.mark.parametrize(
    ("seconds", "told"), [(5, "5 s"), (65, "1 min 5 s"), (7260, "2 h 1 min"), (90_000, "1 d 1 h")]
)
def test_how_long_it_is_up(seconds: int, told: str) -> None:
    history = History()
    history.add(sample(float(seconds)))
    assert text(history)[0].endswith(f", up {told}")


def test_what_is_no_line_of_stats_is_left_out() -> None:
    assert parse(b"# A\r\na:1\r\n\r\nb\r\nc:x:y\r\n\xff\x1b:\x00\r\n") == {
        "a": "1",
        "c": "x:y",
        r"\xff\x1b": r"\x00",
    }
    assert Sample(0.0, {"a": "x"}).number("a") == Sample(0.0, {}).number("a") == 0


NUMBERS = st.integers(0, 10**12)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(st.binary(max_size=140), st.integers(0, 10**12), st.integers(0, 10**12)),
        max_size=12,
    ),
    st.integers(1, 200),
    st.integers(1, 60),
    st.text(max_size=100).map(lambda text: "".join(filter(str.isprintable, text))),
    st.booleans(),
)
def test_a_frame_fits(
    rows: list[tuple[bytes, int, int]], columns: int, height: int, trouble: str, unicode: bool
) -> None:
    history = two(12345)
    assert history.latest is not None
    history.add(replace(history.latest, at=104.0, busiest=rows, refused=rows[::2]))
    for foot in ("", "q quits"):
        look = Look(columns, height, False, unicode)
        made = lines(history, "here", trouble, foot, look)
        assert len(made) <= height
        assert all(width(line) <= columns for line in made), made
        assert all(line.isprintable() and (unicode or line.isascii()) for line in made)
        coloured = lines(history, "here", trouble, foot, replace(look, colours=True))
        bare = [re.sub("\x1b\\[[0-9]*m", "", line).rstrip(" ") for line in coloured]
        assert bare == made
