"""The view of `rlproxy top`, drawn by rich: rates between two samples, a table of policies, and one
of keys.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import sys
import termios
import time
import tty
from collections import defaultdict, deque
from datetime import timedelta
from itertools import accumulate
from typing import Final

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.layout import Layout
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rlproxy.ratelimit.policies import SHADOW
from rlproxy.top.client import Client, Policies, Sample, TopError

KEYS: Final = 300  # keys requested of each kind; a filter searches these
POLICIES: Final = 8  # rows of policies
# Seconds between two requests for all policies, in proportion to their number.
POLICY_S: Final = 0.0005
RULE: Final = 24  # columns of what refused a key, at most
REDRAW_S: Final = 0.25
NARROW: Final = 60  # columns below which the table has only the rate that it is sorted by
SORTS: Final = {"h": "hits/s", "r": "refused/s", "k": "key of the last minute"}  # by key stroke
_COUNTS: Final = "clients private_connections lanes waiting denials timeouts errors"
_WIDE: Final = ("mode", "hits/s", "refused/s", "in shadow/s", "share")  # columns of policies
_SLIM: Final = ("hits/s", "share")  # the same below NARROW
_OUTCOMES: Final = (  # title, style, counters
    ("admitted", "", "admitted"),
    ("in shadow", "cyan", "shadow_refused"),
    ("refused", "yellow", "refused refused_locally"),
    ("locally", "dim", "refused_locally"),
    ("failed", "red", "failed failed_open failed_closed"),
)


class View:
    """What is shown: the last sample, rates since the one before, sort order and filter."""

    def __init__(self, where: str, sample: Sample) -> None:
        self.where = where
        self.sample = sample
        self.rates: defaultdict[str, float] = defaultdict(float)  # growth of numbers per second
        self.bars: deque[float] = deque(maxlen=500)  # hits per second
        self.policies: list[tuple[str, str, float, float]] = []  # name, mode, hits/s, refused/s
        self._latest: tuple[float, Policies] = (sample.at, sample.policies or {})
        self.took = self.trouble = ""  # how long calls on lanes took; the last error
        self.sort, self.filter, self.typing = "h", "", False

    def add(self, now: Sample) -> None:
        """Add a sample. Rates begin again if a counter has fallen: the proxy was restarted."""
        before, self.sample, self.trouble = self.sample, now, ""
        grown = {name: value - before.numbers[name] for name, value in now.numbers.items()}
        seconds = max(now.at - before.at, 1e-3)
        if min(grown[x] for x in ("uptime_in_seconds", "hits")) < 0:
            grown = {}
        self.rates = defaultdict(float, {name: max(x, 0) / seconds for name, x in grown.items()})
        if now.policies is not None:
            self._add_policies(now.at, now.policies)
        self.bars.append(self.rates["hits"])
        calls = {bound: count - before.calls.get(bound, 0) for bound, count in now.calls.items()}
        seen = dict(zip(calls, accumulate(calls.values()), strict=True))
        if grown and (total := max(seen.values(), default=0)) > 0:
            half, most = (min(x for x in seen if seen[x] >= part * total) for part in (0.5, 0.99))
            self.took = f": half in {half / 1000:g} ms, 99 % in {most / 1000:g} ms"

    def _add_policies(self, at: float, policies: Policies) -> None:
        (began, before), self._latest = self._latest, (at, policies)
        seconds = max(at - began, 1e-3)
        self.policies = [
            (name, mode, max(hits - old[1], 0) / seconds, max(refused - old[2], 0) / seconds)
            for name, (mode, hits, refused) in policies.items()
            if (old := before.get(name, ("", 0.0, 0.0))) and hits
        ]
        self.policies.sort(key=lambda row: (-row[2], -policies[row[0]][1], row[0]))

    def policies_due(self, at: float) -> bool:
        """Return whether a sample at the time `at`, in seconds, should have the policies."""
        last, policies = self._latest
        return at - last >= POLICY_S * len(policies)

    def press(self, keys: str) -> bool:
        """Apply key strokes. Returns whether to go on."""
        for key in re.sub(r"\x1b[\[O][\d;]*[\w~]", "", keys):  # without arrows and the like
            if key == "\x04" or (key in "qQ" and not self.typing):
                return False
            if key in "\r\n\x1b" or (key == "/" and not self.typing):
                self.typing = key == "/"
                self.filter = "" if key == "\x1b" else self.filter
            elif self.typing:
                self.filter = self.filter[:-1] if key in "\x7f\b" else self.filter + key
            else:
                self.sort = key if key in SORTS else self.sort
        return True

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the view, with a footer if it fills the screen."""
        width = options.max_width
        content = Group(self._head(width), *self._named(width), self._keys(width))
        foot = Text(f"q quit  h r k sort  / filter {self.filter}", "dim")
        layout = Layout()
        layout.split_column(Layout(content), Layout(foot.append("_" * self.typing), size=1))
        yield layout if console.is_alt_screen else content

    def _head(self, width: int) -> Text:
        stats, numbers, rates = self.sample.stats, self.sample.numbers, self.rates
        up = timedelta(seconds=int(min(numbers["uptime_in_seconds"], 1e9)))
        text = Text.assemble((f"rlproxy {stats.get('version')}", "bold"), f" at {self.where}")
        text.append(f", workers {numbers['workers']:g}, up {up}\n")
        if self.trouble:
            age_s = time.monotonic() - self.sample.at
            text.append(f"no news for {age_s:.0f} s: {self.trouble}\n", "red")
        text.append(f"Redis {stats.get('upstream')}, {stats.get('upstream_server')}: ")
        if numbers["upstream_up"]:
            text.append("answers", "green").append(self.took)
        else:
            text.append(f"does not answer: {stats.get('upstream_why')}", "red")
        if width >= NARROW:
            items = [f"{x} {numbers[x]:,.0f}" for x in _COUNTS.split()]
            items += [f"{x} {_short(rates[x])}/s" for x in ("commands", "bytes_in", "bytes_out")]
            lines = "\n" + "  ".join(items[:5]) + "\n" + "  ".join(items[5:])
            text.append(lines.replace("_", " "))
        text.append("\n\n")
        bars = list(self.bars)[-max(width - 43, 1) :]
        most = max(bars, default=0.0)
        drawn = "".join("▁▂▃▄▅▆▇█"[min(int(8 * bar / most), 7) if most else 0] for bar in bars)
        text.append(f"hits/s    {_short(rates['hits']):>10}  ", "bold").append(drawn, "green")
        text.append(f"  at most {_short(most)}\n", "dim")
        for title, style, names in _OUTCOMES:
            if title == "in shadow" and not numbers[names]:
                continue
            rate = sum(rates[name] for name in names.split())
            share = f"{rate / rates['hits']:10.1%}" if rates["hits"] else ""
            text.append(f"{title:10}{_short(rate):>10}{share}\n", style if rate else "")
        return text

    def _named(self, width: int) -> list[Table | Text]:
        """The policies with most hits, if any; refusals in shadow have a column of their own."""
        if not self.policies:
            return []
        wide = width >= NARROW
        table = _table("policy")
        for each in _WIDE if wide else _SLIM:
            table.add_column(each, justify="right", no_wrap=True)
        for name, mode, hits, refused in self.policies[:POLICIES]:
            share = f"{min(refused / hits, 1):.1%}" if hits else ""
            cells = ("", _short(refused)) if mode == SHADOW else (_short(refused), "")
            row = (mode, _short(hits), *cells, share) if wide else (_short(hits), share)
            table.add_row(Text(name), *row)
        return [table, Text()]

    def _keys(self, width: int) -> Table:
        columns = {"h": self.sample.hits, "r": self.sample.refused}
        if width < NARROW:
            columns = {each: columns[each] for each in columns if self.sort in (each, "k")}
        seconds = max(1.0, self.sample.numbers["top_seconds"])
        keys = {key for rows in columns.values() for key in rows if self.filter in key}
        counts = columns.get(self.sort, {})
        rules = self.sample.rules if width >= NARROW else {}
        table = _table(SORTS["k"])
        for each in columns:
            table.add_column(SORTS[each], justify="right", no_wrap=True)
        if rules:
            table.add_column("refused by", overflow="fold", max_width=RULE)
        for key in sorted(keys, key=lambda key: (-counts.get(key, (0, 0))[0], key)):
            found = (rows.get(key) for rows in columns.values())
            cells = ("" if row is None else _short(*(x / seconds for x in row)) for row in found)
            table.add_row(Text(key), *cells, *[Text(rules.get(key, ""))] * bool(rules))
        return table


def _table(title: str) -> Table:
    table = Table(box=None, expand=True, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(title, overflow="fold", ratio=1)
    return table


def _short(value: float, error: float = 0.0) -> str:
    about = "~" if 10 * error > value else ""
    return about + (f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.2g}")


def once(client: Client, interval_s: float) -> None:
    """Print the values of one interval. Raises TopError."""
    view = View(client.where, client.sample(1))
    time.sleep(interval_s)
    view.add(client.sample(KEYS))
    Console(highlight=False).print(view, soft_wrap=True)


def live(client: Client, interval_s: float) -> None:
    """Show the view until the user ends it. Raises TopError if there is no first sample."""
    view, keys = View(client.where, client.sample(KEYS)), sys.stdin.fileno()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    signal.signal(signal.SIGTSTP, signal.SIG_IGN)  # the shell would show the view's screen
    kept, due = termios.tcgetattr(keys), time.monotonic() + interval_s
    with contextlib.suppress(OSError, termios.error):  # the terminal may be closed
        try:
            tty.setcbreak(keys)
            with Live(view, screen=True, auto_refresh=False) as shown:
                while True:
                    shown.refresh()
                    left = max(0.0, due - time.monotonic())
                    if select.select([keys], [], [], min(left, REDRAW_S))[0]:
                        data = os.read(keys, 1024)
                        if not data or not view.press(data.decode(errors="ignore")):
                            break
                    elif left <= REDRAW_S:
                        try:
                            view.add(client.sample(KEYS, view.policies_due(time.monotonic())))
                        except TopError as error:
                            view.trouble = str(error)
                        due = time.monotonic() + interval_s
        finally:
            termios.tcsetattr(keys, termios.TCSADRAIN, kept)
