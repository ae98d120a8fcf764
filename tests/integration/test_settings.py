"""Settings of a running proxy: SIGHUP, --check-config, and permissions of unix sockets."""

from __future__ import annotations

import os
import re
import signal
import stat
from pathlib import Path

import pytest
from rlproxy.config.urls import Address
from rlproxy.net.listeners import Listeners

from tests.harness import RedisServer, command, is_error, wait_until
from tests.integration.started import Started, UnixRaw, by_lane, ended, started
from tests.processes import paused
from tests.tlsparts import Certificates

ANY_PORT = ("--listen", "127.0.0.1:0")


def signals(made: Started, name: str) -> int:
    """The set of signals that /proc/PID/status gives a name: SigBlk, SigCgt."""
    status = Path(f"/proc/{made.pid}/status").read_text()
    found = re.search(rf"^{name}:\s*(\w+)", status, re.MULTILINE)
    assert found is not None
    return int(found[1], 16)


TERMINATE = 1 << (signal.SIGTERM - 1)


def test_a_reload_during_the_start_applies_after_it(own_server: RedisServer) -> None:
    with started(*ANY_PORT, "--upstream", own_server.url, fresh=True) as made:
        with paused(own_server.pid):
            wait_until(lambda: bool(signals(made, "SigCgt") & TERMINATE), "it awaits Redis")
            made.signal(signal.SIGHUP)
        made.logged("listening on.*(\n.*)*SIGHUP: settings and certificates were read again")


def test_a_hit_timeout_applies_to_hits_sent_before_it(
    own_server: RedisServer, tmp_path: Path
) -> None:
    file = tmp_path / "rlproxy.toml"
    file.write_text("hit-timeout = 0\n")
    arguments = ("--upstream", own_server.url, "--config", str(file))
    with started(*ANY_PORT, *arguments) as made, made.raw() as lane, made.raw() as private:
        by_lane(own_server, lane)
        assert private.ask("PING") == "PONG"
        with paused(own_server.pid):
            for raw in (lane, private):
                raw.send(command("RL.HIT", "k", 5, 60))
            assert lane.quiet(0.2) == private.quiet(0.2) == b""
            file.write_text("hit-timeout = 100\n")
            made.signal(signal.SIGHUP)
            for raw in (lane, private):
                assert is_error(raw.reply(), "UPSTREAMDOWN no answer from Redis within 100 ms")


def test_sighup_reloads_the_file(own_server: RedisServer, tmp_path: Path) -> None:
    file = tmp_path / "rlproxy.toml"
    always = f'upstream = "redis://:secret@127.0.0.1:{own_server.port}"\nworkers = 2\n'
    file.write_text(always)
    with started(*ANY_PORT, "--config", str(file), "--write-timeout", "9") as made:
        with made.raw() as raw:
            assert raw.ask("PING") == "PONG"
            file.write_text(always + "hit-timeout = 500\nidle-timeout = 7\nwrite-timeout = 3\n")
            made.signal(signal.SIGHUP)
            again = "INFO SIGHUP: settings and certificates were read again; options changed: "
            made.logged(f"{again}--hit-timeout, --idle-timeout\n")
            file.write_text(always.replace("secret", "other") + "connect-timeout = 2\n")
            made.signal(signal.SIGHUP)
            made.logged(f"{again}--hit-timeout, --idle-timeout\n(.*\n)*.*{again}")
            made.logged("WARNING SIGHUP: --upstream has changed; that takes a restart\n")
            made.logged("WARNING SIGHUP: --connect-timeout has changed; that takes a restart\n")
            file.write_text('hit-timeout = "soon"\nnothing = 1\n')
            made.signal(signal.SIGHUP)
            made.logged("ERROR SIGHUP: .*there is no option nothing; all stays as it was\n")
            made.logged("ERROR SIGHUP: hit-timeout .*soon: expected .*; all stays as it was\n")
            file.unlink()
            made.signal(signal.SIGHUP)
            made.logged("ERROR SIGHUP: --config .*: No such file or directory; all stays")
            assert raw.ask("PING") == "PONG"
        with made.raw() as raw:
            assert raw.ask("PING") == "PONG"
        log = made.log()
        assert "secret" not in log
        assert "other" not in log
        made.signal(signal.SIGTERM)
        assert made.wait() == 0


def test_sighup_reads_no_pipe_again(own_server: RedisServer) -> None:
    read_end, write_end = os.pipe()
    os.write(write_end, b'deny-command = "FLUSHALL"\n[policies]\nlogin = "5 60"\n')
    os.close(write_end)
    words = (*ANY_PORT, "--upstream", own_server.url, "--config", "/dev/stdin")
    with started(*words, stdin=read_end) as made:
        os.close(read_end)
        made.logged("listening on")
        made.signal(signal.SIGHUP)
        why = "a pipe can be read at the start only: use a regular file; all stays as it was"
        made.logged(f"ERROR SIGHUP: --config /dev/stdin: {why}\n")
        with made.raw() as raw:
            assert "denied by rlproxy" in str(raw.ask("FLUSHALL"))
            assert raw.ask("RL.HIT", "k", "POLICY", "login") == [0, 5, 4, -1, 60]


def test_sighup_during_start_and_end_is_harmless(own_server: RedisServer) -> None:
    with (
        started(*ANY_PORT, "--upstream", own_server.url, "--workers", "2") as made,
        made.raw() as raw,
    ):
        assert raw.ask("PING") == "PONG"
        for _ in range(20):
            made.signal(signal.SIGHUP)
        raw.send(b"BLPOP nothing 0.3\r\n")
        made.signal(signal.SIGTERM)
        for _ in range(20):
            made.signal(signal.SIGHUP)
        assert raw.reply() is None
        assert raw.closes()
        assert made.wait() == 0
        assert "ERROR" not in made.log()


def test_output_in_an_encoding_that_lacks_characters() -> None:
    words = ("--check-config", "--listen", "unix:/tmp/\u00e9", "--upstream", "redis://h")
    with started(*words, env={"PYTHONIOENCODING": "ascii"}, fresh=True) as made:
        assert made.wait() == 0, made.log()
        assert made.output() == "rlproxy would listen on unix:/tmp/?, in front of h:6379\n"


def test_check_config_prints_settings_or_errors(tmp_path: Path) -> None:
    mine = Certificates(tmp_path)
    url = "redis://:secret@h:6379"
    words = ("--check-config", "--listen", "tls::6390", "--listen", ":6391", "--upstream", url)
    code, out, err = ended(*words, *mine.server_args())
    assert (code, err) == (0, "")
    assert out == "rlproxy would listen on tls:127.0.0.1:6390, 127.0.0.1:6391, in front of h:6379\n"
    file = tmp_path / "rlproxy.toml"
    file.write_text('[policies]\nlogin = "5 60"\nlarge = "5 60 COST 6"\n')
    code, out, err = ended("--check-config", "--config", str(file), "--upstream", url)
    assert code == 0
    assert out == "rlproxy would listen on 127.0.0.1:6380, in front of h:6379, with 2 policies\n"
    assert err.startswith("rlproxy: warning: policy 'large': COST 6 is above its limit 5: ")
    denied = ("keyz", "keys flushall", "config|set", "config|sett", "debug|sleep", "ft.search")
    code, _, err = ended(
        *words, *mine.server_args(), *(f"--deny-command={each}" for each in denied)
    )
    assert (code, err.splitlines()) == (
        0,
        [
            "rlproxy: warning: --deny-command keyz: rlproxy knows no command of this name",
            (
                "rlproxy: warning: --deny-command keys|flushall: KEYS has no subcommands; each "
                "command takes its own --deny-command"
            ),
            (
                "rlproxy: warning: --deny-command config|sett: rlproxy knows no subcommand of "
                "CONFIG with this name"
            ),
        ],
    )
    env = {"RLPROXY_UPSTREM": "redis://h", "RLPROXY_PORT": "tcp://10.0.0.1:6380"}
    with started("--check-config", "--upstream", url, env=env) as made:
        assert made.wait() == 2
        assert made.log() == (
            "rlproxy: RLPROXY_UPSTREM: no option has this environment variable; "
            "did you mean RLPROXY_UPSTREAM?\n"
        )
    file = tmp_path / "f.toml"
    file.write_text("hit-timout = 1\nworkers = 'none'\nlisten = '1'\n")
    code, out, err = ended("--check-config", "--config", str(file))
    assert (code, out) == (2, "")
    assert err.splitlines() == [
        f"rlproxy: --config {file}: there is no option hit-timout; did you mean hit-timeout?",
        (
            "rlproxy: listen (in the file) 1: expected HOST:PORT, such as :6380, tls:HOST:PORT or "
            "unix:PATH"
        ),
        "rlproxy: workers (in the file) none: expected a whole number from 1 to 256",
    ]


def test_permissions_of_a_unix_socket_are_set(own_server: RedisServer, tmp_path: Path) -> None:
    path = tmp_path / "rlproxy.sock"
    words = ("--listen", f"unix:{path}", "--upstream", own_server.url)
    with started(*words, "--unix-mode", "660") as made:
        made.logged("listening on")
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        raw = UnixRaw(path)
        assert raw.ask("PING") == "PONG"
        raw.close()


def test_unix_socket_never_has_wider_permissions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither while its permissions are being set nor before it listens."""
    path = tmp_path / "rlproxy.sock"
    seen: list[int] = []
    real = os.lstat

    def lstat(name: str) -> os.stat_result:
        found = real(name)
        seen.append(stat.S_IMODE(found.st_mode))
        return found

    monkeypatch.setattr("rlproxy.net.listeners.os.lstat", lstat)
    mask = os.umask(0)
    try:
        Listeners([Address(path=str(path))], unix_mode=0o640).close()
    finally:
        os.umask(mask)
    assert seen == [0o640]
