"""Redis, proxy and demo of deploy/docker-compose.yml, run without Docker from the file's
settings.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import harness
from tests.harness import Raw, ReplyError, is_error, wait_until
from tests.info import stats
from tests.integration.started import started
from tests.unit.test_deploy import HEALTH, PAGE, PASSWORD, compose


@harness.needs_redis_cli()
def test_services_of_the_compose_file_work_together(
    one_engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "redis-server").symlink_to(harness.engines()[one_engine])
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    services = compose()
    port = harness.free_port()
    *shell, script = services["redis"]["command"]
    script = script.replace("$$", "$").replace("redis-server ", f"redis-server --port {port} ")
    environment = {**os.environ, **services["redis"]["environment"]}
    server = subprocess.Popen(
        [*shell, script], cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: listens(port), "the server listens")
        assert PASSWORD.encode() not in Path(f"/proc/{server.pid}/cmdline").read_bytes()
        url = services["rlproxy"]["environment"]["RLPROXY_UPSTREAM"]
        variables = {
            "RLPROXY_UPSTREAM": url.replace("@redis:6379", f"@127.0.0.1:{port}"),
            "RLPROXY_LISTEN": "127.0.0.1:0",
        }
        with started(env=variables) as made, made.raw() as raw:
            stranger = raw.ask("RL.HIT", "user:42", 5, 60)
            assert is_error(stranger, "NOAUTH")
            assert raw.ask("AUTH", PASSWORD) == "OK"
            assert raw.ask("RL.HIT", "user:42", 5, 60) == [0, 5, 4, -1, 60]
            assert raw.ask("CONFIG", "GET", "save") == [b"save", b""]
            alive(made.port())
            assert hit_of_the_page(made.port()) == ["0", "5", "3", "-1", "60"]
            with traffic(services["traffic"], made.port()):
                wait_until(lambda: admitted_by("fixed", raw) > 5, "the demo makes traffic")
            assert admitted_by("log", raw) > 5
            assert stats(raw)["errors_syntax"] == "0"
            assert PASSWORD not in made.log()
    finally:
        server.terminate()
        server.wait(harness.DEADLINE_S)


def listens(port: int) -> bool:
    with contextlib.suppress(OSError), Raw(port) as raw:
        return isinstance(raw.ask("PING"), ReplyError)
    return False


@contextlib.contextmanager
def traffic(service: dict[str, Any], port: int) -> Iterator[None]:
    """The programs that `--profile demo` starts."""
    *shell, script = service["command"]
    assert "-h rlproxy -p 6380" in script
    script = script.replace("-h rlproxy -p 6380", f"-h 127.0.0.1 -p {port}").replace("$$", "$")
    demo = subprocess.Popen(
        [*shell, script], env={**os.environ, **service["environment"]}, start_new_session=True
    )
    try:
        yield
        assert demo.poll() is None
    finally:
        os.killpg(demo.pid, signal.SIGTERM)
        demo.wait(harness.DEADLINE_S)


def admitted_by(algorithm: str, raw: Raw) -> int:
    found = re.match(r"admitted=(\d+)", stats(raw)[f"hits_{algorithm}"])
    assert found is not None
    return int(found[1])


def hit_of_the_page(port: int) -> list[str]:
    """The reply to the page's redis-cli hit."""
    (line,) = re.findall(r"^redis-cli -u .* RL\.HIT .*$", PAGE, re.MULTILINE)
    done = subprocess.run(
        ["sh", "-c", line.replace("6380", str(port))],
        env={**os.environ, "REDIS_PASSWORD": PASSWORD},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        timeout=harness.DEADLINE_S,
    )
    return done.stdout.split()


def alive(port: int) -> None:
    """The health check of image and manifests."""
    done = subprocess.run(
        [sys.executable, "-m", *HEALTH, f"127.0.0.1:{port}"],
        cwd=harness.ROOT,
        capture_output=True,
        timeout=harness.DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
