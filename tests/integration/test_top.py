"""RL.TOP of one process and of several; `rlproxy top` as one frame, in a terminal, and without a
proxy.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from unicodedata import east_asian_width

import pytest
from rlproxy.top.app import main

from tests import harness
from tests.harness import Proxy, Raw, RedisServer, command, wait_until
from tests.integration.started import answering, started

EVIL = b"\x1b[31mred\xff"


@pytest.fixture
def busy(one_server: RedisServer) -> Iterator[Proxy]:
    """A proxy with hits in the last minute, which RL.TOP reports."""
    with one_server.raw() as raw:
        raw.ask("FLUSHALL")
    with harness.proxy(one_server) as made:
        with made.raw() as raw:
            for key, hits in ((b"login:anna", 30), ("größe".encode(), 20), (EVIL, 10)):
                for _ in range(hits):
                    raw.ask("RL.HIT", key, 5, 600)
            last = [EVIL, 10, 0]
            wait_until(lambda: last in raw.ask("RL.TOP", 9), "they are reported")  # type: ignore[operator]
        yield made


# -- RL.TOP ----------------------------------------------------------------------------------------


def test_busiest_and_most_refused_keys_are_listed(busy: Proxy) -> None:
    with busy.raw() as raw:
        rows = [[b"login:anna", 30, 0], ["größe".encode(), 20, 0], [EVIL, 10, 0]]
        assert raw.ask("RL.TOP", 1000) == rows
        assert raw.ask("rl.top", 1) == rows[:1]
        refused = [[key, int(str(hits)) - 5, 0, b"5 600"] for key, hits, _ in rows]
        assert raw.ask("RL.TOP", 10, "REFUSED") == raw.ask("RL.TOP", 10, "refused") == refused


def test_refused_keys_come_with_their_policy_or_rule(
    one_server: RedisServer, tmp_path: Path
) -> None:
    """Whichever way a hit takes."""
    file = tmp_path / "rlproxy.toml"
    file.write_text('[policies]\nlogin = "2 600"\ntrial = {rule = "2 600", shadow = true}\n')
    with one_server.raw() as raw:
        raw.ask("FLUSHALL")
    settings = ("--config", str(file), "--workers", "2")
    with harness.proxy(one_server, *settings) as proxy, proxy.raw() as raw:
        for number in range(6):  # the first ones on the private connection, then by lane
            raw.ask("RL.HIT", "named", "POLICY", "login")
            raw.ask("RL.HIT", "shadow", "POLICY", "trial")
            raw.ask("RL.HIT", "written", 2, "600.50", "algo", "token")
            raw.ask("RL.HIT", "waits", 2, 60000, "WAIT", 1 + number, "MS")
            raw.send(command("GET", "x") + command("CL.THROTTLE", "cell", 1, 1, 600))
            assert [raw.reply(), raw.reply()][0] is None
        expected = [
            [b"named", b"login"],
            [b"shadow", b"trial"],
            [b"written", b"2 600.5 ALGO TOKEN"],
            [b"waits", b"2 60000 MS WAIT 6"],
            [b"cell", b"1 600 ALGO GCRA BURST 2"],
        ]

        def reported() -> list[list[bytes]]:
            rows = raw.ask("RL.TOP", 9, "REFUSED")
            assert isinstance(rows, list) and all(len(row) == 4 for row in rows)
            return [[row[0], row[3]] for row in rows]

        wait_until(lambda: sorted(reported()) == sorted(expected), "all are reported")


def test_each_worker_reports_all_workers(one_server: RedisServer) -> None:
    with harness.proxy(one_server, "--workers", "2") as proxy:
        clients = [proxy.raw() for _ in range(6)]
        for number, raw in enumerate(clients):
            for _ in range(10):
                raw.ask("RL.HIT", "of:all", 100, 600)
            raw.ask("RL.HIT", f"of:{number}", 1, 600)
        for raw in clients:
            wait_until(
                lambda raw=raw: raw.ask("RL.TOP", 1) == [[b"of:all", 60, 0]],  # type: ignore[misc]
                "every worker reports all",
            )
            raw.close()


# -- one frame -------------------------------------------------------------------------------------


def top(*args: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run `rlproxy top ARGS` without a terminal."""
    return subprocess.run(
        [sys.executable, "-m", "rlproxy", "top", *args],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=harness.START_S,
        env={**os.environ, "COLUMNS": "80", "LINES": "24", **(env or {})},
        cwd=harness.ROOT,
    )


def test_one_frame_is_printed(busy: Proxy) -> None:
    found = top("--url", f"redis://127.0.0.1:{busy.port}", "--once", "--interval", "0.2")
    assert (found.returncode, found.stderr) == (0, "")
    made = found.stdout.splitlines()
    assert re.match(rf"rlproxy \S+ at 127.0.0.1:{busy.port}, workers 1, up 0:00:\d\d$", made[0])
    assert re.match(r"Redis 127.0.0.1:\d+, \S+ \S+: answers", made[1])
    assert any(line.startswith("hits/s             0") for line in made)
    at = next(number for number, line in enumerate(made) if line.startswith("key of the last"))
    keys = [line.split()[0] for line in made[at + 1 :]]
    assert keys == ["login:anna", "größe", r"\x1b[31mred\xff"]
    assert all(line.isprintable() for line in made)


def fails(url: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Fail unless it ends with 1; return the line it prints before."""
    assert main(["--url", url, "--once", "--interval", "0.1"]) == 1
    out, line = capsys.readouterr()
    assert not out and line.count("\n") == 1
    assert line.startswith("rlproxy top: 127.0.0.1:")
    return line.rstrip("\n").partition(" 127.0.0.1:")[2].partition(": ")[2]


def test_missing_proxy_is_an_error(
    one_server: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    found = fails(one_server.url, capsys)
    assert found == "a Redis answers there, and no rlproxy: it does not know RL.STATS"
    found = fails(f"redis://:pass%20word@127.0.0.1:{harness.free_port()}", capsys)
    assert found.startswith("Error 111 connecting to 127.0.0.1:")
    assert found.endswith("Connection refused.")


NO_REPLY = " is this an address of --listen, not of --admin?"


def test_something_else_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlproxy.top.client.TIMEOUT_S", 0.2)
    with answering(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        wrong = "Protocol error, got .H. as reply type byte"
        assert re.match(wrong, fails(f"redis://127.0.0.1:{port}", capsys))


def test_the_admin_port(
    one_server: RedisServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It waits for the rest of the request; the error names the likely mistake."""
    monkeypatch.setattr("rlproxy.top.client.TIMEOUT_S", 0.2)
    port = harness.free_port()
    at = f"127.0.0.1:{port}"
    upstream = one_server.url
    with started("--listen", "127.0.0.1:0", "--upstream", upstream, "--admin", at) as made:
        made.port()

        def listens() -> bool:
            with Raw(port) as raw:
                raw.send(b"GET /healthz HTTP/1.0\r\n\r\n")
                return raw.exactly(5) == b"HTTP/"

        wait_until(listens, "the admin process serves")
        assert main(["--once", "--url", f"redis://{at}"]) == 1
        out, line = capsys.readouterr()
        assert not out
        assert line == f"rlproxy top: {at}: no reply within 0.2 s; does Redis answer?{NO_REPLY}\n"


def test_user_and_password_are_used(
    one_engine: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        harness.server(one_engine, "--requirepass", "right") as own,
        harness.proxy(f"redis://:right@127.0.0.1:{own.port}") as proxy,
        Raw(own.port) as admin,
    ):
        admin.ask("AUTH", "right")
        admin.ask("ACL", "SETUSER", "bob", "on", ">bobs", "+ping")
        at = f"127.0.0.1:{proxy.port}"
        once = ["--once", "--interval", "0.1"]
        assert main(["--url", f"redis://:right@{at}", *once]) == 0
        monkeypatch.setenv("REDISCLI_AUTH", "right")
        assert main(["--url", f"redis://{at}", *once]) == 0
        monkeypatch.setenv("REDISCLI_AUTH", "wrong")
        capsys.readouterr()
        for user in ("", ":wrong@", "bob:bobs@"):
            found = fails(f"redis://{user}{at}", capsys)
            assert re.search("invalid username-password|no permissions|NOPERM", found), found
            assert "wrong" not in found
        monkeypatch.delenv("REDISCLI_AUTH")
        found = fails(f"redis://{at}", capsys)
        assert "Authentication required. Use --url redis://USER:PASSWORD@" in found


# -- in a terminal ---------------------------------------------------------------------------------


class Terminal:
    """`rlproxy top` in a terminal of 80 by 24."""

    def __init__(self, *args: str, term: str = "xterm-256color") -> None:
        self.master, slave = pty.openpty()
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        self.output = b""
        self.resize(80, 24)
        # rich prefers the size in the environment, where pytest-xdist sets one.
        environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rlproxy", "top", "--interval", "0.1", *args],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env={**environment, "TERM": term, "PYTHONUTF8": "1"},
            cwd=harness.ROOT,
        )

    def resize(self, columns: int, rows: int) -> None:
        """Resize the terminal."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys: bytes) -> None:
        """Type the bytes."""
        os.write(self.master, keys)

    def read(self) -> str:
        """All output so far."""
        while select.select([self.master], [], [], 0)[0]:
            try:
                data = os.read(self.master, 65536)
            except OSError:
                break
            if not data:
                break
            self.output += data
        return self.output.decode(errors="replace")

    def frame(self) -> list[str]:
        """The lines of the last whole frame, without colours."""
        text = ("\x1b[H" + self.read()[-100_000:]).split("\x1b[H")[-2]
        return [re.sub(r"\x1b\[[0-9;]*m|\r", "", line) for line in text.split("\n")]

    def shows(self, pattern: str) -> None:
        """Wait for a frame that matches."""
        wait_until(
            lambda: re.search(pattern, "\n".join(self.frame()), re.MULTILINE),
            f"{pattern!r} in {self.read()[-3000:]!r}",
        )

    def ends(self) -> int:
        """The exit code; fails if the terminal is not as it was before."""

        def gone() -> bool:
            self.read()
            return self.process.poll() is not None

        wait_until(gone, "it ends")
        text = self.read()
        assert text.endswith("\x1b[?25h\x1b[?1049l") and text[-999:]
        assert text.count("\x1b[?1049h") == text.count("\x1b[?1049l") == 1
        assert "Traceback" not in text
        assert termios.tcgetattr(self.slave) == self.before
        return int(self.process.returncode)


@contextlib.contextmanager
def terminal(port: int, *args: str, term: str = "xterm-256color") -> Iterator[Terminal]:
    """`rlproxy top` in a terminal, in front of a proxy."""
    made = Terminal("--url", f"redis://127.0.0.1:{port}", *args, term=term)
    try:
        yield made
    finally:
        if made.process.poll() is None:
            made.process.kill()
            made.process.wait()
        os.close(made.master)
        os.close(made.slave)


def test_live_view_updates(busy: Proxy) -> None:
    with terminal(busy.port) as shown:
        shown.shows(r"^login:anna ")
        shown.shows(r"^hits/s +0  ▁▁▁")  # it continues
        made = shown.frame()
        assert len(made) == 24
        assert "q quit  h r k sort  / filter" in "\n".join(made)
        for columns, rows in ((40, 10), (200, 50), (1, 1), (80, 24)):
            shown.resize(columns, rows)
            wait_until(lambda rows=rows: len(shown.frame()) == rows, "the frame is drawn again")  # type: ignore[misc]
            cells = [sum(2 if east_asian_width(c) in "WF" else 1 for c in x) for x in shown.frame()]
            assert max(cells) <= columns
        shown.type(b"\x1b[A?x")  # (an arrow, and keys that mean nothing)
        shown.type(b"/login")
        wait_until(lambda: "größe" not in "\n".join(shown.frame()), "the filter applies")
        assert "login:anna" in "\n".join(shown.frame())
        shown.type(b"\x1b")
        shown.shows("^größe ")
        shown.type(b"q")
        assert shown.ends() == 0


def test_a_terminal_without_a_screen_gets_one_table(busy: Proxy) -> None:
    with terminal(busy.port, term="dumb") as shown:
        wait_until(lambda: shown.process.poll() is not None, "it ends")
        assert shown.process.returncode == 0
        assert re.search(r"^login:anna ", shown.read(), re.MULTILINE)
        assert "\x1b" not in shown.read()


@pytest.mark.parametrize("how", ["\x03", "SIGTERM"])
def test_terminal_is_restored_at_every_end(busy: Proxy, how: str) -> None:
    with terminal(busy.port) as shown:
        shown.shows(r"^login:anna ")
        if how.startswith("SIG"):
            shown.process.send_signal(signal.Signals[how])
        else:
            shown.type(how.encode())
        assert shown.ends() == 0


def test_view_reconnects_to_a_restarted_proxy(one_server: RedisServer) -> None:
    port = harness.free_port()
    args = ("--listen", f"127.0.0.1:{port}", "--upstream", one_server.url)
    with contextlib.ExitStack() as first:
        first.enter_context(started(*args)).port()
        with terminal(port) as shown:
            shown.shows(r"^key of the last minute")
            first.close()
            shown.shows(r"^no news for \d+ s: Error 111 connecting to .* Connection refused")
            assert "q quit" in "\n".join(shown.frame())
            with started(*args) as again:
                again.port()
                with again.raw() as raw:
                    raw.ask("RL.HIT", "back", 5, 60)
                shown.shows(r"^back ")
                assert "no news" not in "\n".join(shown.frame())
            shown.shows(r"^no news")
            shown.type(b"q")
            assert shown.ends() == 0
