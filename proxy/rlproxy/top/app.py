"""`rlproxy top`: a client that sends RL.STATS and RL.TOP and draws the replies on a terminal.

Poller, a thread: samples every interval ──queue, a byte into a pipe──> View: keys, signals, frames
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import queue
import re
import select
import shutil
import signal
import socket
import sys
import termios
import threading
import time
import tty
from collections.abc import Sequence
from dataclasses import replace
from types import FrameType
from typing import Any, Final, NoReturn
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    InvalidResponse,
    NoPermissionError,
    RedisError,
    ResponseError,
)
from redis.retry import Retry

from rlproxy.config.urls import DEFAULT_LISTEN, without_password
from rlproxy.resp.escape import shown
from rlproxy.top.screen import History, Look, Sample, lines, parse

TIMEOUT_S: Final = 3.0  # seconds for connecting, and for a reply
SOON_S: Final = 0.5  # seconds without a first reply after which a check for HTTP begins
KNOCK_S: Final = 1.0  # seconds that this check waits
KEYS: Final = 60  # keys requested per table; a terminal rarely has room for more
SHORTEST_S: Final = 0.1  # bounds of --interval, in seconds
LONGEST_S: Final = 3600.0
PASSWORD: Final = "REDISCLI_AUTH"  # environment variable that redis-cli reads, too

_EPILOG: Final = f"""\
It needs nothing but an address where clients connect, and a user who may send RL.HIT. A password
that the URL does not have is taken from {PASSWORD}.

  hits/s      of all workers together, since the frame before; their bars, the latest on the right
  admitted    and refused: what became of them; unasked are refusals that the proxy remembered
  failed      hits without an answer of Redis: an error, or what --on-upstream-failure says
  busiest     keys with most hits a second in the last minute, and those with most refusals;
              ~ where that may be wrong by more than a tenth

In the terminal q ends it. With --once it prints one frame, for scripts.

examples:
  rlproxy top
  rlproxy top --url redis://10.0.0.5:6380
  rlproxy top --url rediss://alice@proxy.example:6380?ssl_ca_certs=/etc/ssl/ca.pem
  rlproxy top --once
"""

_FOOT: Final = "q quits   every {} s   keys: of the last minute, ~ off by more than a tenth"


# For Redis this is a PING and two empty lines, for an HTTP server a complete request.
_KNOCK: Final = b"*1\r\n$4\r\nPING\r\n\r\n\r\n"
_HTTP: Final = (
    "is no Redis port: an HTTP server answers there. rlproxy top needs the address where clients "
    "connect (--listen), not the one of --admin"
)
_SILENT: Final = (
    f"accepts connections, but says nothing within {TIMEOUT_S:g} s: it is no Redis port, or its "
    "Redis hangs. rlproxy top needs the address where clients connect (--listen)"
)


class TopError(Exception):
    """No sample can be had; the message continues a sentence that begins with the address."""


def main(argv: Sequence[str]) -> int:
    """Run `rlproxy top` with the arguments `argv`.

    Returns the exit code: 0 ended by the user, 1 failed, 2 wrong usage.
    """
    args = _parser().parse_args(argv)
    try:
        client = Client(args.url, os.environ.get(PASSWORD, ""))
    except ValueError as wrong:
        print(f"rlproxy top: --url {without_password(args.url)}: {wrong}", file=sys.stderr)
        return 2
    if not args.once and not (sys.stdin.isatty() and sys.stdout.isatty() and _can_draw()):
        print("rlproxy top: this is no terminal; --once prints one frame", file=sys.stderr)
        return 2
    try:
        return _once(client, args.interval) if args.once else _live(client, args.interval)
    except TopError as error:
        print(f"rlproxy top: {client.where} {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0
    except BrokenPipeError:  # the reader of standard output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser() -> argparse.ArgumentParser:
    made = _Parser(
        prog="rlproxy top",
        description="Show what a running proxy does: hits, refusals, its Redis, the busiest keys.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument(
        "--url",
        default=f"redis://{DEFAULT_LISTEN}",
        help="where clients connect: redis://[[USER]:PASSWORD@]HOST:PORT, rediss://... or "
        "unix:///PATH (default %(default)s)",
    )
    made.add_argument(
        "--interval",
        metavar="SECONDS",
        type=_interval,
        default=1.0,
        help="between two frames (default 1)",
    )
    made.add_argument(
        "--once",
        action="store_true",
        help="print one frame, of the first interval, and exit",
    )
    return made


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        # The unknown words are not printed: they may be parts of a password that contains a blank.
        if message.startswith("unrecognized arguments"):
            message = "an argument too many; the proxy's address is given with --url URL"
        self.exit(2, f"rlproxy top: {message}\n")


def _interval(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not SHORTEST_S <= value <= LONGEST_S:
        raise argparse.ArgumentTypeError(f"expected seconds from {SHORTEST_S:g} to {LONGEST_S:g}")
    return value


def _can_draw() -> bool:
    return os.environ.get("TERM", "") not in ("", "dumb")


def _end(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


# -- the proxy -------------------------------------------------------------------------------------


class Client:
    """A connection to the proxy, opened with the first sample.

    url: redis://, rediss:// or unix://, with the parameters of redis-py.
    password: used if the URL has none.
    Raises ValueError for a wrong `url`.
    """

    def __init__(self, url: str, password: str = "") -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("redis", "rediss", "unix") or "://" not in url:
            raise ValueError("expected redis://HOST:PORT, rediss://HOST:PORT or unix:///PATH")
        self._place: str | tuple[str, int]  # the address, as sockets take it
        if parts.scheme == "unix":
            self.where = self._place = parts.path
        else:
            port = parts.port or int(DEFAULT_LISTEN.rpartition(":")[2])  # may raise ValueError
            host = parts.hostname or "127.0.0.1"
            self.where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            self._place = (host, port)
        options: dict[str, Any] = {
            "protocol": 2,
            "socket_timeout": TIMEOUT_S,
            "socket_connect_timeout": TIMEOUT_S,
            "retry": Retry(NoBackoff(), 0),
        }
        if parts.scheme != "unix":
            options |= {"host": parts.hostname or "127.0.0.1", "port": port}
        if password and parts.password is None:
            options["password"] = password
        try:
            self._redis = redis.Redis.from_url(url, **options)  # the URL overrides `options`
            self._redis.connection_pool.make_connection()
        except TypeError:
            raise ValueError("it has a parameter that is not known") from None

    def first(self) -> Sample:
        """Take the first sample. Raises TopError.

        If there is no reply within SOON_S, check whether it is an HTTP server.
        """
        found: queue.SimpleQueue[Sample | Exception] = queue.SimpleQueue()

        def ask() -> None:
            try:
                found.put(self.sample())
            except Exception as error:
                found.put(error)

        threading.Thread(target=ask, daemon=True).start()
        try:
            got = found.get(timeout=SOON_S)
        except queue.Empty:
            if self._speaks_http():
                raise TopError(_HTTP) from None
            got = found.get()
        if isinstance(got, Exception):
            raise got
        return got

    def _speaks_http(self) -> bool:
        try:
            with _connected(self._place) as sock:
                sock.sendall(_KNOCK)
                return sock.recv(5) == b"HTTP/"
        except OSError:
            return False

    def sample(self) -> Sample:
        """Take a sample of the proxy. Raises TopError."""
        try:
            asked: Any
            with self._redis.pipeline(transaction=False) as asked:
                asked.execute_command("RL.STATS")
                asked.execute_command("RL.TOP", KEYS)
                asked.execute_command("RL.TOP", KEYS, "REFUSED")
                stats, busiest, refused = asked.execute(raise_on_error=False)
        except AuthenticationError as error:
            raise TopError(f"wants another user or password: {_text(error)}") from None
        except InvalidResponse:
            http = self._speaks_http()
            raise TopError(_HTTP if http else "is no rlproxy: it does not speak RESP") from None
        except redis.TimeoutError as error:
            silent = "reading" in str(error)
            raise TopError(_SILENT if silent else f"can't be reached: {_text(error)}") from None
        except (RedisError, OSError) as error:
            raise TopError(f"can't be reached: {_text(error)}") from None
        for reply in (stats, busiest, refused):
            if isinstance(reply, Exception):
                raise TopError(self._refused(reply))
        if not (isinstance(stats, bytes) and stats.startswith(b"# ")):
            raise TopError("is no rlproxy: it does not answer RL.STATS as one does")
        return Sample(time.monotonic(), parse(stats), _rows(busiest), _rows(refused))

    def _refused(self, error: Exception) -> str:
        text = _text(error)
        if "unknown command" in text.lower():
            return "is a Redis, but no rlproxy: it does not know RL.STATS"
        if isinstance(error, AuthenticationError | AuthorizationError | NoPermissionError):
            return f"wants another user or password: {text}"
        if isinstance(error, ResponseError):
            return f"answers: {text}"
        return f"can't be reached: {text}"


def _connected(place: str | tuple[str, int]) -> socket.socket:
    if isinstance(place, tuple):
        return socket.create_connection(place, KNOCK_S)
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(KNOCK_S)
    try:
        sock.connect(place)
    except OSError:
        sock.close()
        raise
    return sock


def _rows(reply: Any) -> list[tuple[bytes, int, int]]:
    return [(bytes(key), int(count), int(error)) for key, count, error in reply]


def _text(error: BaseException) -> str:
    text = shown(str(error).strip().encode(errors="replace"))
    connecting = re.fullmatch(r"Error -?\d+ connecting to .*?\. (.+?)\.?", text)
    return (connecting[1] if connecting else text) or type(error).__name__


# -- one frame -------------------------------------------------------------------------------------


def _once(client: Client, interval_s: float) -> int:
    history = History()
    history.add(client.first())
    time.sleep(interval_s)
    history.add(client.sample())
    size = shutil.get_terminal_size()
    look = replace(_look(size.columns, size.lines), whole=True)
    text = "\n".join(lines(history, client.where, "", "", look))
    sys.stdout.write(f"{text.rstrip()}\n")
    sys.stdout.flush()
    return 0


def _look(columns: int, rows: int) -> Look:
    colours = sys.stdout.isatty() and _can_draw() and not os.environ.get("NO_COLOR")
    encoding = (getattr(sys.stdout, "encoding", "") or "").lower()
    return Look(max(columns, 1), max(rows, 1), colours, encoding.startswith("utf"))


# -- a live view -----------------------------------------------------------------------------------


def _live(client: Client, interval_s: float) -> int:
    first = client.first()  # before the screen is entered: an error here ends the program
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    os.set_blocking(reader, False)
    poller = Poller(client, interval_s, writer)
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGWINCH, lambda _number, _frame: None)  # the wakeup pipe reports it
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        with Screen() as screen:
            poller.start()
            View(client.where, first, interval_s, screen).run(reader, poller)
    finally:
        poller.stop()
        signal.set_wakeup_fd(-1)
    return 0


class Poller(threading.Thread):
    """A thread that samples the proxy every `interval_s` seconds.

    It puts each sample or error into `found`, then writes a byte to the descriptor `wake`.
    """

    def __init__(self, client: Client, interval_s: float, wake: int) -> None:
        super().__init__(daemon=True)
        self.found: queue.SimpleQueue[Sample | TopError] = queue.SimpleQueue()
        self._client = client
        self._interval_s = interval_s
        self._wake = wake
        self._stopped = threading.Event()

    def run(self) -> None:
        """Sample until stop() is called; see threading.Thread."""
        due = time.monotonic() + self._interval_s
        while not self._stopped.wait(max(0.0, due - time.monotonic())):
            try:
                self.found.put(self._client.sample())
            except TopError as error:
                self.found.put(error)
            with contextlib.suppress(BlockingIOError):
                os.write(self._wake, b"\0")
            due = max(due + self._interval_s, time.monotonic())

    def stop(self) -> None:
        """Take no more samples."""
        self._stopped.set()


class View:
    """The live view: samples to frames, until the user ends it."""

    def __init__(self, where: str, first: Sample, interval_s: float, screen: Screen) -> None:
        self._where = where
        self._history = History()
        self._history.add(first)
        self._trouble = ""
        self._foot = _FOOT.format(f"{interval_s:g}")
        self._screen = screen

    def run(self, woken: int, poller: Poller) -> None:
        """Draw after each sample and signal, until a key or a signal ends it.

        woken: the descriptor that becomes readable after each.
        """
        keys = sys.stdin.fileno()
        while True:
            columns, rows = os.get_terminal_size(sys.stdout.fileno())
            look = _look(columns, rows)
            self._screen.draw(lines(self._history, self._where, self._trouble, self._foot, look))
            ready, _, _ = select.select([keys, woken], [], [])
            if keys in ready and _ends(os.read(keys, 1024)):
                return
            if woken in ready:
                os.read(woken, 4096)
                self._take(poller)

    def _take(self, poller: Poller) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                found = poller.found.get_nowait()
                if isinstance(found, Sample):
                    self._trouble = ""
                    self._history.add(found)
                else:
                    assert self._history.latest is not None
                    age_s = time.monotonic() - self._history.latest.at
                    self._trouble = f"no news for {age_s:.0f} s: it {found}"


def _ends(keys: bytes) -> bool:
    """Whether the input ends the view: q, Ctrl-C, Ctrl-D, or no bytes from a closed terminal."""
    return not keys or any(key in keys for key in (b"q", b"Q", b"\x03", b"\x04"))


class Screen:
    """A context manager for the terminal's alternate screen; its end restores the terminal."""

    def __init__(self) -> None:
        self._keys = sys.stdin.fileno()
        self._kept: list[Any] = []

    def __enter__(self) -> Screen:
        self._enter()
        signal.signal(signal.SIGTSTP, self._suspend)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        self._leave()

    def draw(self, made: Sequence[str]) -> None:
        """Show the lines `made`, from the top of the screen."""
        _write("\x1b[H" + "\r\n".join(f"\x1b[K{line}" for line in made) + "\x1b[J")

    def _enter(self) -> None:
        self._kept = termios.tcgetattr(self._keys)
        tty.setcbreak(self._keys)
        _write("\x1b[?1049h\x1b[?25l")

    def _leave(self) -> None:
        with contextlib.suppress(OSError, termios.error):  # the terminal may be closed
            _write("\x1b[?25h\x1b[?1049l")
            termios.tcsetattr(self._keys, termios.TCSADRAIN, self._kept)

    def _suspend(self, _number: int, _frame: FrameType | None) -> None:
        """Restore the terminal and suspend the process on Ctrl-Z, until it is continued."""
        self._leave()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._suspend)
        self._enter()


def _write(text: str) -> None:
    data = text.encode(errors="replace")
    while data:
        data = data[os.write(sys.stdout.fileno(), data) :]
