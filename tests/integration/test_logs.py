"""Standard error of a process: JSON where that is no terminal, text where requested."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rlproxy.upstream.outage_log import MAX_LOGGED
from rlproxy.version import compiled

from tests.harness import DEADLINE_S, ROOT, Raw, RedisServer, free_port, wait_until
from tests.integration.started import Started, children, started

JSON = {"RLPROXY_LOG_FORMAT": "auto"}  # standard error is a file here


def objects(made: Started) -> list[dict[str, Any]]:
    """Every whole line so far. A line that is no object, or lacks a common field, fails."""
    found = []
    for line in made.log().split("\n")[:-1]:
        each = json.loads(line)
        assert {"timestamp", "level", "event", "message"} <= set(each), line
        assert each["event"] != "other", line
        found.append(each)
    return found


def wait_for_event(made: Started, **wanted: object) -> dict[str, Any]:
    """Wait for an event with these fields."""
    found: list[dict[str, Any]] = []

    def seen() -> bool:
        found[:] = [each for each in objects(made) if wanted.items() <= each.items()]
        return bool(found)

    wait_until(seen, f"{wanted} is logged")
    return found[0]


def words(server: RedisServer) -> tuple[str, ...]:
    url = f"redis://:s3cret@127.0.0.1:{server.port}"
    return ("--listen", "127.0.0.1:0", "--upstream", url)


def port(made: Started) -> int:
    return int(wait_for_event(made, event="started")["listen"][0].rpartition(":")[2])


def test_whole_life_is_logged_in_json(own_server: RedisServer, tmp_path: Path) -> None:
    """Start, rejected clients, Redis lost and back, settings read again, the end."""
    file = tmp_path / "rlproxy.toml"
    file.write_text("max-clients = 1\n")
    doubtful = ("--admin", "0.0.0.0:0")
    with started(*words(own_server), *doubtful, "--config", str(file), env=JSON) as made:
        at = port(made)
        begun = wait_for_event(made, event="started")
        assert (begun["workers"], begun["compiled"]) == (1, compiled())
        assert begun["message"].startswith("rlproxy 0.")
        assert wait_for_event(made, event="settings_doubtful")["reason"].startswith("--admin")
        with Raw(at) as raw:
            assert raw.ask("PING") == "PONG"
            for _ in range(5):  # the rest are counted and reported some seconds later
                with Raw(at) as other:
                    assert "max number of clients reached" in str(other.reply())
            own_server.stop()
            silent = wait_for_event(made, event="redis_silent", level="warning")
            assert silent["address"] == f"127.0.0.1:{own_server.port}"
            assert silent["reason"] == "connection refused"
            own_server.start()
            wait_for_event(made, event="redis_back")
        first = wait_for_event(made, event="clients_turned_away")
        assert first["count"] == 1
        assert first["reason"] == "max number of clients reached"
        assert first["client"].startswith("127.0.0.1:")
        file.write_text("max-clients = 2\nworkers = 3\n")
        made.signal(signal.SIGHUP)
        assert wait_for_event(made, event="settings_reloaded")["changed"] == "--max-clients"
        assert wait_for_event(made, event="restart_needed")["option"] == "--workers"
        file.write_text('max-clients = "\\u001b[2J\\n{}"\n')
        made.signal(signal.SIGHUP)
        assert "\n{}" in wait_for_event(made, event="settings_rejected", level="error")["reason"]
        assert "s3cret" not in made.log()
        made.signal(signal.SIGTERM)
        assert made.wait() == 0
        objects(made)


@pytest.mark.parametrize(("workers", "number"), [("1", signal.SIGINT), ("2", signal.SIGTERM)])
def test_last_line_reports_the_stop(own_server: RedisServer, workers: str, number: int) -> None:
    before = time.monotonic()
    with started(*words(own_server), "--workers", workers, env=JSON) as made:
        wait_for_event(made, event="started")
        begun = time.monotonic()
        wait_until(lambda: time.monotonic() - begun > 0.3, "it has served for a while")
        made.signal(number)
        assert made.wait() == 0
        ended = [each for each in objects(made) if each["event"] == "stopped"]
        assert ended == objects(made)[-1:]
        (last,) = ended
        assert (last["level"], "worker" in last) == ("info", False)
        assert 0.2 <= last["seconds"] <= time.monotonic() - before + 0.05  # rounded to 0.1
        assert last["message"] == f"stopped; it served for {last['seconds']:.1f} s"


def test_clients_that_kill_connections_cause_few_lines(own_server: RedisServer) -> None:
    lost = "the proxy's own connection was lost"
    with started(*words(own_server), env=JSON) as made, Raw(port(made)) as raw:
        killed: list[object] = []

        def kills_many() -> bool:
            """The only other connection is that of the proxy itself."""
            killed.append(raw.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"))
            return killed.count(1) > 6 * MAX_LOGGED

        wait_until(kills_many, "the proxy's own connection is killed again and again")
        logged = [each for each in objects(made) if each["event"].startswith("redis_")]
        assert 1 <= len([each for each in logged if lost in each["message"]]) <= MAX_LOGGED
        assert len(logged) <= 2 * MAX_LOGGED  # each line with its end


def test_sighup_changes_the_level_of_all_workers(own_server: RedisServer, tmp_path: Path) -> None:
    file = tmp_path / "rlproxy.toml"
    file.write_text('log-level = "error"\n')
    at = free_port()
    more = ("--listen", f"127.0.0.1:{at}", "--config", str(file), "--workers", "2")
    with started(*words(own_server), *more, env=JSON) as made:
        wait_until(lambda: answers(at), "it serves")
        own_server.stop()
        wait_until(lambda: not answers(at), "Redis is gone")
        assert made.log() == ""
        file.write_text('log-level = "info"\n')
        made.signal(signal.SIGHUP)
        wait_for_event(made, event="settings_reloaded", changed="--log-level")
        speaks: set[object] = set()

        def both_logged() -> bool:
            speaks.update(each.get("worker") for each in objects(made))
            return {1, 2} <= speaks

        def both_saw_redis() -> bool:
            own_server.start()
            with contextlib.suppress(AssertionError):  # a worker may have connected too late
                wait_until(both_logged, "both workers log that Redis is back", 2.0)
            own_server.stop()
            return both_logged()

        wait_until(both_saw_redis, "both workers have logged a line on Redis")
        # Back to errors: now the first process is silent too.
        file.write_text('log-level = "error"\n')
        made.signal(signal.SIGHUP)
        wait_until(lambda: made.log().count("settings_reloaded") == 2, "it was read again")
        # when this error is logged, all earlier changes are done
        file.write_text('log-level = "loud"\n')
        made.signal(signal.SIGHUP)
        wait_for_event(made, event="settings_rejected")
        before = children(made.pid)
        os.kill(before[0], signal.SIGKILL)
        wait_until(lambda: len({*children(made.pid)} - {*before}) == 1, "it is replaced")
        assert "worker_died" not in made.log()


def answers(at: int) -> bool:
    with contextlib.suppress(ConnectionRefusedError), Raw(at) as raw:
        return raw.ask("PING") == "PONG"
    return False


def test_failed_start_is_logged() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        with started("--listen", where, "--upstream", "redis://127.0.0.1:1", env=JSON) as made:
            assert made.wait() == 1
            (only,) = objects(made)
            assert (only["event"], only["level"]) == ("failed", "critical")
            why = f"cannot listen on {where}: Address already in use (see --listen)"
            assert only["reason"] == why


BROKEN = """
import sys
from rlproxy.upstream import control as upstream
from rlproxy.cli import main
def broken(self):
    raise RuntimeError("broken on purpose")
upstream.Control._watch = broken
sys.exit(main())
"""


def test_unhandled_exception_is_one_object(own_server: RedisServer) -> None:
    """A failed task without an awaiter, and asyncio's message about it."""
    process = subprocess.Popen(
        [sys.executable, "-c", BROKEN, *words(own_server), "--workers", "2"],
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "RLPROXY_INTERPRETED": "1"},
    )
    assert process.stderr is not None
    lines = []
    try:
        for line in process.stderr:
            lines.append(json.loads(line))
            if lines[-1]["event"] == "started":
                process.send_signal(signal.SIGTERM)
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
    said = [each for each in lines if each["event"] == "unexpected_error"]
    assert said, lines
    assert all("RuntimeError: broken on purpose" in each["exception"] for each in said)
    assert all(each["worker"] in (1, 2) for each in said)


def test_unread_log_blocks_no_client(own_server: RedisServer, tmp_path: Path) -> None:
    """Clients are still served, and lost lines are counted in the log."""
    file = tmp_path / "rlproxy.toml"
    file.write_text("")
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    at = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "rlproxy", "--listen", f"127.0.0.1:{at}", "--config", str(file)]
        + ["--upstream", own_server.url],
        stderr=writing,
        cwd=ROOT,
    )
    os.close(writing)
    with open(reading, "rb", buffering=0) as log:
        try:
            assert b"started" in log.read(4096)
            file.write_text("nothing = 1\n")
            with Raw(at) as raw:
                for _ in range(60):
                    process.send_signal(signal.SIGHUP)
                    assert raw.ask("PING") == "PONG"
                text = log.read(4096)
                assert b"settings_rejected" in text
                lines: list[dict[str, Any]] = []

                def lost() -> bool:
                    process.send_signal(signal.SIGHUP)
                    lines[:] = [json.loads(line) for line in log.read(4096).splitlines()]
                    return any(each["event"] == "log_lines_lost" for each in lines)

                wait_until(lost, "it reports lost lines")
            process.terminate()
            assert process.wait(DEADLINE_S) == 0
        finally:
            process.kill()
            process.wait()
