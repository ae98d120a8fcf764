"""The screen of `rlproxy top`: replies to RL.STATS and RL.TOP as lines of text that fit a
terminal. No I/O, no clock.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from unicodedata import category, combining, east_asian_width

from rlproxy.resp.escape import shown

MAX_BARS: Final = 500  # remembered rates of hits, one bar each
TWO_TABLES: Final = 60  # least number of columns for both tables side by side
FOR_TWO: Final = 6  # least number of lines for both tables one above the other
ADDRESSED: Final = 2  # first lines of a frame, which contain addresses
MINUTE_S: Final = 55.0  # seconds that the counts of keys cover, if RL.STATS does not report it

PLAIN: Final = ""
BOLD: Final = "1"
DIM: Final = "2"
RED: Final = "31"
GREEN: Final = "32"
YELLOW: Final = "33"

Spans = list[tuple[str, str]]  # style and text, from left to right
Rows = Sequence[tuple[bytes, int, int]]

_CONNECTIONS: Final = {
    "clients": "clients",
    "private_connections": "private connections",
    "lanes": "lanes",
    "waiting": "hits that wait",
}
_CALLS: Final = {"denials": "remembered refusals", "timeouts": "late calls", "errors": "errors"}
_BESIDE_BARS: Final = 41  # columns of the bars' line for the rate before and the maximum after

_BARS: Final = "▁▂▃▄▅▆▇█"
_ASCII_BARS: Final = "_.:-=+*#"


@dataclass(frozen=True)
class Sample:
    """The replies of a proxy at the time `at`, in seconds; `stats` are the lines of RL.STATS."""

    at: float
    stats: dict[str, str]
    busiest: Rows = ()
    refused: Rows = ()

    def number(self, name: str) -> float:
        """Return the number in the line `name`; 0 if there is none."""
        try:
            return float(self.stats.get(name, "0"))
        except ValueError:
            return 0.0


def parse(text: bytes) -> dict[str, str]:
    """Return the lines of RL.STATS by name, escaped for the terminal."""
    found = {}
    for line in text.split(b"\r\n"):
        name, colon, value = line.partition(b":")
        if colon:
            found[shown(name)] = shown(value)
    return found


@dataclass
class History:
    """The latest sample, the one before, and the rates of hits of up to MAX_BARS samples."""

    latest: Sample | None = None
    before: Sample | None = None
    bars: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_BARS))

    def add(self, sample: Sample) -> None:
        """Add a sample. Rates begin again if a counter has fallen: the proxy was restarted."""
        self.before, self.latest = self.latest, sample
        if self.before is not None and any(
            sample.number(name) < self.before.number(name)
            for name in ("uptime_in_seconds", "hits", "clients_accepted")
        ):
            self.before = None
        rate = self.rate("hits")
        if rate is not None:
            self.bars.append(rate)

    def rate(self, *names: str) -> float | None:
        """Return the growth per second of the sum of these counters; None if not known yet."""
        if self.latest is None or self.before is None:
            return None
        grown = sum(self.latest.number(name) - self.before.number(name) for name in names)
        return max(0.0, grown) / max(self.latest.at - self.before.at, 1e-3)

    def quantile(self, part: float) -> float | None:
        """Return the milliseconds that a share `part` of the lanes' calls took at most.

        Only calls between the last two samples count. Returns None if there were none.
        """
        if self.latest is None or self.before is None:
            return None
        now, then = _classes(self.latest), _classes(self.before)
        calls = {bound: count - then.get(bound, 0) for bound, count in now.items()}
        total = sum(calls.values())
        seen = 0
        for bound, count in calls.items():
            seen += count
            if total and seen >= part * total:
                return bound / 1000
        return None


def _classes(sample: Sample) -> dict[float, int]:
    found = {}
    for each in sample.stats.get("round_trips_us", "").split(","):
        bound, equals, count = each.partition("=")
        if equals and count.isdigit():
            found[float(bound)] = int(count)
    return found


@dataclass(frozen=True)
class Look:
    """The format of a frame: size of the terminal, colours, characters beyond ASCII.

    `whole`: lines with addresses are not cut, however wide they become.
    """

    columns: int = 80
    rows: int = 24
    colours: bool = False
    unicode: bool = True
    whole: bool = False


def lines(history: History, where: str, trouble: str, foot: str, look: Look) -> list[str]:
    """Return the lines of a frame: at most look.rows, each at most look.columns wide.

    where: the proxy's address.
    trouble: text about the present problem, or "".
    foot: the last line, or "".
    With look.whole, lines with addresses may be wider.
    """
    head = [_title(history.latest, where), *([[(RED, trouble)]] if trouble else [])]
    if history.latest is not None:
        head += [*_state(history, history.latest), [], *_hits(history, look), []]
    room = look.rows - len(head) - (1 if foot else 0)
    body = _keys(history.latest, room, look) if history.latest is not None else []
    made = [*head, *body[: max(room, 0)]]
    if foot:
        made = made[: look.rows - 1]
        made += [[]] * (look.rows - 1 - len(made)) + [[(DIM, foot)]]
    addressed = len(head) if history.latest is None else ADDRESSED + bool(trouble)
    return [
        _painted(spans, look, look.whole and number < addressed)
        for number, spans in enumerate(made[: look.rows])
    ]


def _title(sample: Sample | None, where: str) -> Spans:
    if sample is None:
        return [(BOLD, "rlproxy"), (PLAIN, f" at {where}")]
    workers = int(sample.number("workers"))
    told = f" at {where}, {workers} worker{'' if workers == 1 else 's'}"
    up = _duration(sample.number("uptime_in_seconds"))
    return [(BOLD, f"rlproxy {sample.stats.get('version', '')}"), (PLAIN, f"{told}, up {up}")]


def _state(history: History, sample: Sample) -> list[Spans]:
    stats = sample.stats
    server = ", ".join(filter(None, (stats.get("upstream", ""), stats.get("upstream_server", ""))))
    if sample.number("upstream_up"):
        answers = (GREEN, "answers")
    else:
        why = stats.get("upstream_why", "")
        answers = (RED, f"does not answer{': ' if why else ''}{why}")
    half, most = history.quantile(0.5), history.quantile(0.99)
    calls = ""
    if half is not None and most is not None:
        calls = f": half in {_ms(half)}, 99 % in {_ms(most)}"
    traffic = (
        f"other commands {_number(history.rate('commands'))}/s   "
        f"in {_bytes(history.rate('bytes_in'))}/s   out {_bytes(history.rate('bytes_out'))}/s"
    )
    return [
        [(PLAIN, f"Redis {server}: "), answers, (PLAIN, calls)],
        _counts(sample, _CONNECTIONS),
        _counts(sample, _CALLS),
        [(PLAIN, traffic)],
    ]


def _counts(sample: Sample, names: dict[str, str]) -> Spans:
    told = (f"{word} {sample.number(name):,.0f}" for name, word in names.items())
    return [(PLAIN, "   ".join(told))]


def _hits(history: History, look: Look) -> list[Spans]:
    hits = history.rate("hits")
    local = history.rate("refused_locally")
    failed = ("failed", "failed_open", "failed_closed")
    drawn = list(history.bars)[-max(look.columns - _BESIDE_BARS, 1) :]
    most = max(drawn, default=0.0)
    bars = "".join(_bar(value, most, look.unicode) for value in drawn)
    out: list[Spans] = [
        [(BOLD, f"{'hits/s':10}{_number(hits):>10}  "), (GREEN, bars), (DIM, f"  {_most(most)}")]
    ]
    unasked = f"{_number(local)} of them unasked" if local else ""
    rows = (
        ("admitted", PLAIN, ("admitted",), ""),
        ("refused", YELLOW, ("refused", "refused_locally"), unasked),
        ("failed", RED, failed, ""),
    )
    for title, style, names, more in rows:
        rate = history.rate(*names)
        share = f"{100 * rate / hits:.1f} %" if hits and rate is not None else ""
        named = style if rate else PLAIN
        out.append([(named, f"{title:10}{_number(rate):>10}{share:>10}"), (DIM, f"   {more}")])
    return out


def _keys(sample: Sample | None, room: int, look: Look) -> list[Spans]:
    """Return both tables of keys in at most `room` lines."""
    assert sample is not None
    back_s = max(1.0, sample.number("top_seconds") or MINUTE_S)
    busiest = _table("busiest keys", "hits/s", sample.busiest, back_s, look)
    refused = _table("most refused keys", "refused/s", sample.refused, back_s, look)
    if look.columns < TWO_TABLES:
        half = room // 2 if room >= FOR_TWO else room
        stacked = [*busiest[:half], *([("", "")] * (half - len(busiest[:half]))), *refused[:half]]
        titles = (0, half)
        return [_row(*row, look.columns, at in titles) for at, row in enumerate(stacked[:room])]
    left = (look.columns - 2) // 2
    right = look.columns - 2 - left
    height = min(room, max(len(busiest), len(refused)))
    out = []
    for number in range(height):
        one = busiest[number] if number < len(busiest) else ("", "")
        two = refused[number] if number < len(refused) else ("", "")
        spans = _row(*one, left, number == 0)
        out.append([*spans, (PLAIN, "  "), *_row(*two, right, number == 0)])
    return out


def _table(title: str, unit: str, rows: Rows, back_s: float, look: Look) -> list[tuple[str, str]]:
    out = [(title, unit)]
    for key, count, error in rows:
        about = "~" if 10 * error > count else ""
        out.append((_typed(shown(key), look) or '""', f"{about}{_number(count / back_s)}"))
    return out if rows else [*out, ("(none in the last minute)", "")]


def _row(name: str, value: str, columns: int, is_title: bool) -> Spans:
    text = _squeezed(name, max(columns - len(value) - 1, 1))
    gap = " " * max(columns - _width(text) - len(value), 0)
    return [(BOLD if is_title else PLAIN, f"{text}{gap}{value}")]


# -- formatted numbers -----------------------------------------------------------------------------


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    if value >= 1e7:
        return f"{value / 1e6:,.1f}M"
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.2g}"


def _most(value: float) -> str:
    return f"at most {_number(value)}"


def _bytes(value: float | None) -> str:
    if value is None:
        return "-"
    for unit in ("B", "KB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if value >= 10 or unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:,.1f} GB"


def _ms(value: float) -> str:
    return f"{value:g} ms" if value != math.inf else "more"


def _duration(seconds: float) -> str:
    left = int(seconds)
    for size, unit, below, part in ((86400, "d", 3600, "h"), (3600, "h", 60, "min")):
        if left >= size:
            return f"{left // size} {unit} {left % size // below} {part}"
    return f"{left // 60} min {left % 60} s" if left >= 60 else f"{left} s"


def _bar(value: float, most: float, unicode: bool) -> str:
    bars = _BARS if unicode else _ASCII_BARS
    return bars[min(int(value / most * len(bars)), len(bars) - 1)] if most else bars[0]


# -- width of text ---------------------------------------------------------------------------------


def _typed(text: str, look: Look) -> str:
    """Return `text` in characters that the terminal can show."""
    return text if look.unicode else text.encode("ascii", "backslashreplace").decode()


def _cells(char: str) -> int:
    if combining(char) or category(char) in ("Mn", "Me"):
        return 0
    return 2 if east_asian_width(char) in ("W", "F") else 1


def _width(text: str) -> int:
    return len(text) if text.isascii() else sum(map(_cells, text))


def _cut(text: str, cells: int) -> str:
    """Return the longest beginning of `text` that fits `cells` columns."""
    if _width(text) <= cells:
        return text
    for at, char in enumerate(text):
        cells -= _cells(char)
        if cells < 0:
            return text[:at]
    return text


def _squeezed(text: str, cells: int) -> str:
    """Shorten `text` to `cells` columns by its middle: both ends distinguish keys."""
    if _width(text) <= cells:
        return text
    if cells < 5:
        return _cut(text, cells)
    begin = _cut(text, (cells - 1) // 2)
    end = _cut(text[::-1], cells - 2 - _width(begin))[::-1]
    return f"{begin}..{end}"


def _painted(spans: Spans, look: Look, wide: bool) -> str:
    out = []
    room = sys.maxsize if wide else look.columns
    for style, whole in spans:
        text = _cut(_typed(whole, look), room)
        room -= _width(text)
        out.append(f"\x1b[{style}m{text}\x1b[0m" if style and look.colours and text else text)
        if room <= 0:
            break
    return "".join(out).rstrip(" ") if not look.colours else "".join(out)
