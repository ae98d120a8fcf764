"""A real Prometheus scrapes a proxy under load: every panel of the dashboard has data, and every
alert can be evaluated.
"""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml

from tests import harness, monitoring
from tests.harness import DEADLINE_S, Raw, RedisServer, wait_until
from tests.integration.started import Started, started
from tests.monitoring import ALERTS, Expression

pytest.importorskip("rlproxy.admin.app")

SCRAPE_S = 1
LOADED_S = 6  # seconds of load behind every graph
LOOK_BACK = "4s"  # Grafana's: four scrapes

# Figures that are 0 while the system is healthy.
STILL = {
    "Not judged:A",
    "What goes wrong with Redis:A",
    "What goes wrong with Redis:B",
    "What goes wrong with Redis:C",
    "Calls answered NOSCRIPT and sent again:A",
    "Versions:A",
}
# Graphs that may be empty.
EMPTY = {
    "Redis answers, and has the scripts:C",  # of clusters
    "Starts",  # there is none under load
}


@contextlib.contextmanager
def load(port: int) -> Iterator[None]:
    """Clients that send some of every kind of command."""
    stop = threading.Event()
    failed: list[BaseException] = []

    def client(work: Callable[[Raw, int], None]) -> None:
        try:
            while not stop.is_set():
                with Raw(port) as raw:
                    for number in range(40):
                        if not stop.is_set():
                            work(raw, number)
        except AssertionError as error:  # a connection that the end of the test closes
            if not stop.is_set():
                failed.append(error)

    def mixed(raw: Raw, number: int) -> None:
        raw.ask("RL.HIT", f"user:{number % 7}", 3, 1)
        raw.ask("RL.HIT", "address:1", 1000, 1, "ALGO", "FIXED")
        raw.ask("RL.HIT", "refused:1", 1, 2)
        raw.ask("RL.HIT", "login:1", "POLICY", "login")
        raw.ask("RL.HIT", "trial:1", "POLICY", "trial")
        raw.ask("RL.PEEK", "user:1", 3, 1)
        raw.ask("SET", "key", "value")
        raw.ask("RL.HIT", "wrong")
        time.sleep(0.005)

    def waiting(raw: Raw, number: int) -> None:
        raw.ask("RL.HIT", "queue:1", 5, 1, "WAIT", 2)

    works = [mixed, mixed, waiting, waiting, waiting, waiting, waiting, waiting, waiting]
    threads = [threading.Thread(target=client, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(DEADLINE_S)
    assert failed == []


class Prometheus:
    """Prometheus with the project's configuration and rules, for a proxy's admin address."""

    def __init__(self, program: str, directory: Path, admin: str) -> None:
        text = (monitoring.DEPLOY / "prometheus" / "prometheus.yml").read_text()
        config = yaml.safe_load(text)
        config["global"] = {
            "scrape_interval": f"{SCRAPE_S}s",
            "scrape_timeout": f"{SCRAPE_S}s",
            "evaluation_interval": "1s",
        }
        config["rule_files"] = [str(monitoring.RULES)]
        config["scrape_configs"][0]["static_configs"] = [{"targets": [admin]}]
        (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
        self._port = harness.free_port()
        self._log = (directory / "log").open("w+")
        self._process = subprocess.Popen(
            [
                program,
                f"--config.file={directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address=127.0.0.1:{self._port}",
            ],
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def get(self, path: str, **query: str | float) -> Any:
        """A response of its API."""
        url = f"http://127.0.0.1:{self._port}/api/v1/{path}?{urlencode(query)}"
        with urlopen(url, timeout=DEADLINE_S) as answer:
            return json.load(answer)["data"]

    def up(self) -> bool:
        """Whether it has scraped the proxy."""
        with contextlib.suppress(URLError, ConnectionError):
            targets = self.get("targets")["activeTargets"]
            return [target["health"] for target in targets] == ["up"]
        return False

    def values(self, expr: str, seconds: int) -> list[float]:
        """The values of an expression in the last seconds, of all its series."""
        now = time.time()
        data = self.get("query_range", query=expr, start=now - seconds, end=now, step=1)
        return [float(value) for series in data["result"] for _, value in series["values"]]

    def states(self) -> dict[str, tuple[str, str]]:
        """For each alert: whether it could be evaluated, and its state."""
        groups = self.get("rules")["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        return {rule["name"]: (rule["health"], rule["state"]) for rule in rules}

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait(DEADLINE_S)
        self._log.close()


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """A server that reports how long scripts took, if one is installed."""
    engines = harness.engines()
    if not engines:
        pytest.skip("no Redis or Valkey server on this machine")
    best = [name for name in engines if not name.startswith("redis-6")] or list(engines)
    with harness.server(best[0]) as made:
        yield made


@dataclass
class Scraped:
    """A proxy and its admin address."""

    proxy: Started
    admin: str

    def alive(self) -> bool:
        """Whether the admin address reports it alive."""
        with (
            contextlib.suppress(URLError, ConnectionError),
            urlopen(f"http://{self.admin}/healthz", timeout=DEADLINE_S) as answer,
        ):
            return bool(answer.status == 200)
        return False


@pytest.fixture(scope="module")
def made(server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    """A proxy of two workers with metrics for Prometheus."""
    admin = f"127.0.0.1:{harness.free_port()}"
    words = ["--listen", "127.0.0.1:0", "--upstream", f"redis://127.0.0.1:{server.port}"]
    words += ["--workers", "2", "--admin", admin, "--metrics-prefixes", "3"]
    file = tmp_path_factory.mktemp("policies") / "rlproxy.toml"
    file.write_text('[policies]\nlogin = "3 1"\ntrial = {rule = "3 1", shadow = true}\n')
    words += ["--config", str(file)]
    with started(*words) as proxy:
        scraped = Scraped(proxy, admin)
        wait_until(scraped.alive, "the admin address answers")
        yield scraped


def test_every_panel_has_data_and_alerts_evaluate(
    server: RedisServer, made: Scraped, tmp_path: Path
) -> None:
    program = monitoring.program("prometheus")
    prometheus = Prometheus(program, tmp_path, made.admin)
    try:
        wait_until(prometheus.up, "Prometheus has scraped the proxy", 3 * DEADLINE_S)
        with load(made.proxy.port()):
            every = monitoring.expressions(LOOK_BACK)
            assert {one.where for one in every} >= STILL | EMPTY
            began = time.monotonic()

            def empty() -> list[str]:
                return [one.where for one in every if not shown(prometheus, one)]

            while time.monotonic() < began + LOADED_S or (
                empty() and time.monotonic() < began + 4 * LOADED_S
            ):
                time.sleep(0.5)
            assert empty() == []
            states = prometheus.states()
            assert set(states) == {rule["alert"] for rule in ALERTS}
            assert {health for health, _ in states.values()} == {"ok"}
            assert [name for name, (_, state) in states.items() if state == "firing"] == []
        server.stop()
        wait_until(
            lambda: prometheus.states()["RlproxyUpstreamDown"][1] != "inactive",
            "the alert of a Redis that is down",
        )
        server.start()
    finally:
        prometheus.close()


def shown(prometheus: Prometheus, one: Expression) -> bool:
    """Whether a graph has data."""
    values = prometheus.values(one.expr, LOADED_S)
    if one.where in EMPTY:
        return True
    assert not any(map(math.isinf, values)), one.where
    values = [value for value in values if not math.isnan(value)]
    return bool(values) and (one.where in STILL or max(values) > 0)
