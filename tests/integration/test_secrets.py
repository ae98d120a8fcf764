"""No password is printed in any failure, and none is kept after its client has left."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import harness
from tests.harness import ROOT, Raw, RedisServer, command, free_port, wait_until
from tests.integration.started import by_lane_of, ended, started

SECRET = "hunter2"  # part of every password here
MINE = f"{SECRET}-of-the-proxy"
THEIRS = f"{SECRET}-of-the-client"
DEBUG = {"PYTHONASYNCIODEBUG": "1", "PYTHONWARNINGS": "default", "PYTHONDEVMODE": "1"}
USER = ("ACL", "SETUSER", "bob", "on", f">{THEIRS}", "~*", "+@all")


def log_in(port: int) -> None:
    """Log in with every command that carries a password, right and wrong."""
    words: list[tuple[bytes | str | int, ...]] = []
    for password in (THEIRS, f"{THEIRS}-wrong"):
        words += [("AUTH", "bob", password), ("AUTH", password), ("RL.HIT", "k", 9, 60)]
        words += [("HELLO", 3, "AUTH", "bob", password), ("RL.HIT", "k", 9, 60)]
        words += [("HELLO", 3, "AUTH", "bob", password, "SETNAME", "a b"), ("RL.HIT", "k", 9, 60)]
        words += [("MULTI",), ("AUTH", "bob", password), ("EXEC",), ("RESET",)]
        words += [("RL.HIT", password, password), ("CONFIG", "SET", "no", password)]
    with contextlib.suppress(OSError), Raw(port) as raw:
        raw.sock.settimeout(1)
        for each in words:
            raw.send(command(*each))
        raw.send(f'auth bob "{THEIRS}\r\n'.encode())  # no line that Redis can parse
        raw.quiet(0.05, first_s=0.3)
    with contextlib.suppress(OSError), Raw(port) as raw:
        raw.send(b"*2\r\n$4\r\nAUTH\r\n$99\r\n" + THEIRS.encode())
        raw.finish()
        raw.quiet(0.05)


def output_of_run(url: str, said: str) -> str:
    """All output of a proxy in front of `url` while clients log in; it contains `said`."""
    with started("--listen", "127.0.0.1:0", "--upstream", url, env=DEBUG) as made:
        port = made.port()
        log_in(port)
        made.logged(said)
        made.signal(signal.SIGTERM)
        assert made.wait() == 0
        return made.output() + made.log()


@pytest.fixture
def server(own_server: RedisServer) -> RedisServer:
    with own_server.raw() as raw:
        assert raw.ask(*USER) == "OK"
        assert raw.ask("ACL", "SETUSER", "proxy", "on", f">{MINE}", "~*", "+@all") == "OK"
    return own_server


def test_working_proxy_prints_no_password(server: RedisServer) -> None:
    url = f"redis://proxy:{MINE}@127.0.0.1:{server.port}"
    assert SECRET not in output_of_run(url, "in front of .* at 127")


def test_wrong_login_prints_no_password(server: RedisServer) -> None:
    url = f"redis://nobody:{MINE}@127.0.0.1:{server.port}"
    assert SECRET not in output_of_run(url, "it refuses the user or password")


def test_unreachable_upstream_prints_no_password() -> None:
    printed = output_of_run(f"redis://proxy:{MINE}@127.0.0.1:{free_port()}", "connection refused")
    assert SECRET not in printed


def test_server_without_hello_prints_no_password(one_engine: str) -> None:
    """Its error for an unknown command quotes the arguments."""
    with harness.server(one_engine, "--rename-command", "HELLO", "OTHER") as server:
        printed = output_of_run(
            f"redis://proxy:{MINE}@127.0.0.1:{server.port}", "it does not know HELLO"
        )
    assert SECRET not in printed


@contextlib.contextmanager
def echo() -> Iterator[int]:
    """A port that echoes what it receives as an error."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            while data := client.recv(65536):
                client.sendall(b"-ERR you said " + data)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=serve, args=(client,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def test_upstream_that_is_not_redis_prints_no_password() -> None:
    with echo() as port:
        assert SECRET not in output_of_run(f"redis://proxy:{MINE}@127.0.0.1:{port}", "in front of")


def test_error_and_help_output_hide_passwords() -> None:
    code, output, log = ended("--upstream", f"redis://:{SECRET}")
    assert (code, output) == (2, "")
    assert log.startswith("rlproxy: --upstream redis://***")
    shown = subprocess.run(
        [sys.executable, "-m", "rlproxy", "--help"],
        env={**os.environ, "RLPROXY_UPSTREAM": f"redis://:{SECRET}@h"},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert shown.returncode == 0
    assert SECRET not in shown.stdout + shown.stderr


# Failures, each in its own process (with interpreted modules); each has a password in hand.
BREAKS = [
    "rlproxy.session.connection_state.ConnectionState.answered",
    "rlproxy.upstream.lane.ServerLane._accepts",
    "rlproxy.upstream.lane_pool.Pool.lane",
]
CRASH = """
import importlib, sys
module, _, rest = sys.argv.pop(1).rpartition(".")
module, _, kind = module.rpartition(".")
def broken(*args, **named):
    raise RuntimeError("broken on purpose")
setattr(getattr(importlib.import_module(module), kind), rest, broken)
from rlproxy.cli import main
sys.exit(main())
"""


@pytest.mark.parametrize("what", BREAKS)
def test_exceptions_print_no_password(server: RedisServer, what: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    port = free_port()
    url = f"redis://proxy:{MINE}@127.0.0.1:{server.port}"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-c", CRASH, what]
            + ["--listen", f"127.0.0.1:{port}", "--upstream", url, "--drain-timeout", "0.1"]
            + ["--log-format", "text"],
            env={**os.environ, **DEBUG, "RLPROXY_INTERPRETED": "1"},
            cwd=ROOT,
            stdout=file,
            stderr=file,
        )
    try:
        wait_until(lambda: "in front of" in log.read_text(), "it serves")
        for _ in range(3):
            with contextlib.suppress(OSError), Raw(port) as raw:
                raw.sock.settimeout(0.1)
                raw.send(command("AUTH", "bob", THEIRS))
                raw.quiet(0.1)
                for _ in range(3):
                    raw.send(command("RL.HIT", "k", 9, 60))
                    raw.quiet(0.02)
        process.send_signal(signal.SIGTERM)
        process.wait(15)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    printed = log.read_text()
    assert "broken on purpose" in printed
    assert SECRET not in printed


# -- memory ----------------------------------------------------------------------------------------

KEPT = """
import gc, signal, sys
def report(*_):
    names = ("Identity", "LaneKey", "Session")
    found = [each for each in gc.get_objects() if type(each).__name__ in names]
    held = sum(1 for each in found if getattr(each, "password", None))
    sessions = sum(1 for each in found if type(each).__name__ == "Session")
    print(f"{held} passwords, {sessions} sessions", file=sys.stderr, flush=True)
signal.signal(signal.SIGUSR2, report)
gc.set_threshold = lambda *_: gc.disable()  # reference counts have to do
from rlproxy.cli import main
sys.exit(main())
"""


def test_closed_clients_leave_no_objects(server: RedisServer, tmp_path: Path) -> None:
    """Neither their passwords (except the lane's, which it needs for its next connection) nor any
    other object that only a garbage collection would free.
    """
    log = tmp_path / "log"
    port = free_port()
    url = server.url
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", KEPT, "--listen", f"127.0.0.1:{port}", "--upstream", url]
            + ["--log-format", "text"],
            cwd=ROOT,
            stderr=file,
        )

    def kept() -> tuple[int, int]:
        before = log.read_text().count("passwords,")
        process.send_signal(signal.SIGUSR2)
        wait_until(lambda: log.read_text().count("passwords,") > before, "it reports", 5)
        found = re.findall(r"(\d+) passwords, (\d+) sessions", log.read_text())[-1]
        return int(found[0]), int(found[1])

    try:
        wait_until(lambda: "in front of" in log.read_text(), "it serves")
        with server.raw() as admin, contextlib.ExitStack() as stack:
            raws = [stack.enter_context(Raw(port)) for _ in range(8)]
            for raw in raws:
                assert raw.ask("AUTH", "bob", THEIRS) == "OK"
                by_lane_of(server, raw, "k", admin)
            raws[0].ask("AUTH", "bob", "wrong")
            assert kept() == (9, 8)  # theirs, and the lane's
            raws[0].ask("RESET")
            assert kept()[1] == 8
            raws[1].send(command("BLPOP", "none", 0) + command("RL.HIT", "k", 9, 60) * 5)
            raws[2].send(
                command("RL.HIT", "k", 1, 60) * 3 + command("RL.HIT", "k", 1, 60, "WAIT", 99)
            )
            raws[3].send(command("AUTH", "bob", "x")[:-3])
            raws[4].send(command("SUBSCRIBE", "a"))
            wait_until(lambda: "waiting:1" in str(raws[5].ask("RL.STATS")), "its hit is held")
        wait_until(lambda: kept() == (1, 0), "only the lane is left")
    finally:
        process.terminate()
        process.wait(20)
