"""The view of `rlproxy top`, drawn by rich: rates, a table of policies, and one of keys."""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import termios
import tty
from collections import defaultdict, deque
from datetime import timedelta
from time import monotonic, sleep
from typing import Final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rlproxy.top.client import Client

POLICIES: Final = 8  # rows of policies
SMALL: Final = 20  # lines; a smaller screen has no counts and no outcomes, to have room for keys
_COUNTS: Final = "clients private_connections lanes waiting denials timeouts errors"
_RATES: Final = "commands bytes_in bytes_out"
_OUTCOMES: Final = (  # title, style, counters
    ("admitted", "", "admitted"),
    ("in shadow", "cyan", "shadow_refused"),
    ("refused", "yellow", "refused refused_locally"),
    ("locally", "dim", "refused_locally"),
    ("failed", "red", "failed failed_open failed_closed"),
)
_NONE: Final = (0.0, 0.0, "")  # of a key that is not listed


class View:
    """What is shown: the last sample, rates since the one before, sort order and filter."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.sample = client.sample()
        self.rates: defaultdict[str, float] = defaultdict(float)  # growth of numbers per second
        self.bars: deque[float] = deque(maxlen=500)  # hits per second
        self.trouble = ""  # the last error
        self.sort, self.filter, self.typing = "h", "", False

    def update(self) -> None:
        """Take a sample. The rate of a counter that has fallen is 0: the proxy was restarted."""
        before, now = self.sample, self.client.sample()
        self.sample, self.trouble, seconds = now, "", max(now.at - before.at, 1e-3)
        grown = {name: max(value - before.numbers[name], 0) for name, value in now.numbers.items()}
        self.rates = defaultdict(float, {name: x / seconds for name, x in grown.items()})
        self.bars.append(self.rates["hits"])

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
            elif key in "hrk":
                self.sort = key
        return True

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the view; what keys do is shown on a screen only."""
        yield self._head(options.max_width, console.is_alt_screen and options.max_height < SMALL)
        if self.sample.modes:
            yield self._policies()
        usage = f"q quit  h r k sort  / filter {self.filter}{'_' * self.typing}"
        yield Text(usage * console.is_alt_screen, "dim")
        yield self._keys()

    def _head(self, width: int, small: bool) -> Text:
        stats, numbers, rates = self.sample.stats, self.sample.numbers, self.rates
        up = timedelta(seconds=int(min(numbers["uptime_in_seconds"], 1e9)))
        text = Text().append(f"rlproxy {stats.get('version')}", "bold")
        text.append(f" at {self.client.where}, workers {numbers['workers']:g}, up {up}\n")
        if self.trouble:
            age_s = monotonic() - self.sample.at
            text.append(f"no news for {age_s:.0f} s: {self.trouble}\n", "red")
        text.append(f"Redis {stats.get('upstream')}, {stats.get('upstream_server')}: ")
        silent = f"does not answer: {stats.get('upstream_why')}", "red"
        text.append(*(("answers", "green") if numbers["upstream_up"] else silent))
        counts = [f"{name} {numbers[name]:,.0f}" for name in _COUNTS.split()]
        counts += [f"{name} {_short(rates[name])}/s" for name in _RATES.split()]
        text.append("\n" if small else f"\n{'  '.join(counts)}\n\n".replace("_", " "))
        bars = list(self.bars)[-max(width - 43, 1) :]
        most = max(bars, default=0.0)
        drawn = "".join("▁▂▃▄▅▆▇█"[min(int(8 * bar / most), 7) if most else 0] for bar in bars)
        text.append(f"hits/s    {_short(rates['hits']):>10}  ", "bold").append(drawn, "green")
        text.append(f"  at most {_short(most)}\n", "dim")
        for title, style, names in () if small else _OUTCOMES:
            rate = sum(rates[name] for name in names.split())
            share = f"{rate / rates['hits']:10.1%}" if rates["hits"] else ""
            text.append(f"{title:10}{_short(rate):>10}{share}\n", style if rate else "")
        return text

    def _policies(self) -> Table:
        numbers, rates, modes = self.sample.numbers, self.rates, self.sample.modes
        table = _table("policy", "mode")
        busy = sorted(modes, key=lambda n: (-rates[f"{n} hits"], -numbers[f"{n} hits"], n))
        for name in busy[:POLICIES]:
            cells = (_short(rates[f"{name} {count}"]) for count in ("hits", "refused"))
            table.add_row(Text(name), *cells, modes[name])
        return table

    def _keys(self) -> Table:
        hits, refused = self.sample.hits, self.sample.refused
        seconds = max(1.0, self.sample.numbers["top_seconds"])
        order = {"h": hits, "r": refused}.get(self.sort, {})
        table = _table("key of the last minute", "refused by")
        keys = [key for key in hits | refused if self.filter in key]
        for key in sorted(keys, key=lambda key: (-order.get(key, _NONE)[0], key)):
            found = (rows.get(key, _NONE) for rows in (hits, refused))
            cells = (_short(n / seconds, error / seconds) if n else "" for n, error, _ in found)
            table.add_row(Text(key), *cells, Text(refused.get(key, _NONE)[2]))
        return table


def _table(first: str, last: str) -> Table:
    table = Table(box=None, expand=True, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(first, overflow="fold", ratio=2)
    for each in ("hits/s", "refused/s"):
        table.add_column(each, justify="right", no_wrap=True)
    table.add_column(last, overflow="fold", ratio=1)
    return table


def _short(value: float, error: float = 0.0) -> str:
    about = "~" if 10 * error > value else ""
    return about + (f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.2g}")


def once(client: Client, interval_s: float) -> None:
    """Print the values of one interval. Raises ConnectionError."""
    view = View(client)
    sleep(interval_s)
    view.update()
    Console(highlight=False).print(view, soft_wrap=True)


def live(client: Client, interval_s: float) -> None:
    """Show the view until the user ends it. Raises ConnectionError if there is no first sample."""
    view, keys = View(client), sys.stdin.fileno()
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell may have SIGINT ignored
        signal.signal(number, signal.default_int_handler)
    signal.signal(signal.SIGTSTP, signal.SIG_IGN)  # the shell would show the view's screen
    kept, due = termios.tcgetattr(keys), monotonic() + interval_s
    try:
        tty.setcbreak(keys)
        with Live(view, screen=True) as screen:  # it draws four times a second
            while True:
                if select.select([keys], [], [], max(0.0, due - monotonic()))[0]:
                    if not view.press((os.read(keys, 1024) or b"\x04").decode(errors="ignore")):
                        break
                    screen.refresh()
                    continue
                try:
                    view.update()
                except ConnectionError as error:
                    view.trouble = str(error)
                due = monotonic() + interval_s
    finally:
        termios.tcsetattr(keys, termios.TCSADRAIN, kept)
