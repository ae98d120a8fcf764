"""The pages of --admin, requested without a socket, on shared memory written by the test."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from rlproxy.admin import app
from rlproxy.admin.app import PAGE, AdminServer, Pages, application
from rlproxy.admin.reader import Reader
from rlproxy.config.config import Config
from rlproxy.config.urls import Address, Upstream
from rlproxy.observability.log_throttle import LogThrottle
from rlproxy.observability.metrics import Samples
from rlproxy.observability.shared_memory import SharedMemory
from rlproxy.observability.snapshots import UpstreamState
from rlproxy.process.admin_process import warnings
from starlette.types import ASGIApp

from tests.unit.admin.test_page_data import FACTS

PATHS = ["/", "/live.json", "/metrics", "/healthz", "/readyz"]
AWAY = UpstreamState("redis:6379", up=False, why="connection refused")


class Proxy:
    """The workers' snapshots in shared memory, a clock, and the log."""

    def __init__(self, workers: int = 1) -> None:
        self.now = 1_790_000_000.0
        self.memory = SharedMemory(workers)
        self.watch = Reader(self.memory, lambda: self.now)
        self.log: list[str] = []

    def publish(self, worker: int = 0, hits: float = 0, **facts: Any) -> None:
        samples: Samples = {
            "rlproxy_hits_total": {("gcra", "admitted"): hits},
            "rlproxy_clients": {(): 3.0},
            "rlproxy_workers": {(): 1.0},
        }
        snapshot = replace(FACTS, worker=worker, at=self.now, samples=samples, **facts)
        assert self.memory.publish(worker, snapshot)

    def application(self, local: bool = True) -> ASGIApp:
        throttle = LogThrottle(lambda: self.now, self.say)
        return application(Pages(self.watch), local, throttle)

    def say(self, _: str, text: str, **fields: object) -> None:
        self.log.append(text.format(**fields))

    async def ask(
        self, path: str, method: str = "GET", local: bool = True, **headers: str
    ) -> httpx.Response:
        transport = httpx.ASGITransport(self.application(local), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, path, headers=headers)


@pytest.fixture
def proxy() -> Proxy:
    made = Proxy()
    made.publish()
    return made


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_pages_exist(proxy: Proxy, path: str, method: str) -> None:
    found = await proxy.ask(path, method)
    assert found.status_code == 200


@pytest.mark.parametrize("path", ["/nothing", "/metrics/", "/../etc/passwd", "/live.json%00"])
async def test_other_paths_are_not_found(proxy: Proxy, path: str) -> None:
    found = await proxy.ask(path)
    why = f"There is no such page; there are {', '.join(PATHS)}\n"
    assert (found.status_code, found.text) == (404, why)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
async def test_methods_that_write_are_not_allowed(proxy: Proxy, path: str, method: str) -> None:
    found = await proxy.ask(path, method)
    assert found.status_code == 405
    assert set(found.headers["allow"].split(", ")) == {"GET", "HEAD"}


@pytest.mark.parametrize(
    ("host", "path", "status"),
    [
        *(("localhost", path, 200) for path in PATHS),
        ("localhost", "/nothing", 404),
        ("evil.example", "/", 421),
        ("localhost", "/live.json", 500),
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_every_response_has_the_security_headers(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, host: str, path: str, status: int, method: str
) -> None:
    proxy.now = time.time()
    proxy.publish()
    if status == 500:
        monkeypatch.setattr(Reader, "reading", lambda _reader: SimpleNamespace(workers=[]))
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setblocking(False)
    server = AdminServer(sock, proxy.memory, os.getppid(), Config())
    serving = asyncio.create_task(server.serve([sock]))
    try:
        url = f"http://127.0.0.1:{sock.getsockname()[1]}{path}"
        async with httpx.AsyncClient() as client:
            found = await client.request(method, url, headers={"host": host})
    finally:
        server.should_exit = True
        await serving
    assert found.status_code == status
    wanted = Pages(proxy.watch).headers()
    assert {name for name, _ in wanted} >= {"content-security-policy", "x-frame-options"}
    for name, value in wanted:
        assert found.headers.get_list(name) == [value]
    assert found.headers["cache-control"] == "no-store"
    assert found.headers["x-content-type-options"] == "nosniff"
    assert "frame-ancestors 'none'" in found.headers["content-security-policy"]


# -- access ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:9121", 200),
        ("LOCALHOST", 200),
        ("127.0.0.1:9121", 200),
        ("[::1]:9121", 200),
        ("evil.example", 421),
        ("localhost.evil.example:9121", 421),
        ("127.0.0.1.evil.example", 421),
        ("[::1", 421),
        ("localhost:9121:1", 421),
    ],
)
async def test_loopback_requests_require_a_known_host_name(
    proxy: Proxy, host: str, status: int
) -> None:
    for path in PATHS:
        assert (await proxy.ask(path, host=host)).status_code == status
        assert (await proxy.ask(path, local=False, host=host)).status_code == 200
    if status == 421:
        assert (await proxy.ask("/", host=host)).text == app.NOT_BY_THIS_NAME


# -- metrics ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("accept", ["*/*", "text/plain", "application/openmetrics-text", "x"])
async def test_metrics_are_prometheus_text_for_every_accept_header(
    proxy: Proxy, accept: str
) -> None:
    found = await proxy.ask("/metrics", accept=accept)
    assert found.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    families = {each.name: each for each in text_string_to_metric_families(found.text)}
    assert families["rlproxy_clients"].samples[0].value == 3.0


async def test_metrics_of_a_dead_worker() -> None:
    proxy = Proxy(2)
    proxy.publish(0, hits=5)
    proxy.now += 60
    proxy.publish(1, hits=7)
    text = (await proxy.ask("/metrics")).text
    assert 'rlproxy_hits_total{algorithm="gcra",outcome="admitted"} 12.0\n' in text
    assert "\nrlproxy_clients 3.0\n" in text
    assert "\nrlproxy_workers 1.0\n" in text


async def test_metrics_before_the_first_snapshot() -> None:
    found = await Proxy().ask("/metrics")
    assert found.status_code == 200
    assert "\nrlproxy_workers 0.0\n" in found.text


async def test_shared_memory_is_read_at_most_ten_times_a_second(proxy: Proxy) -> None:
    async def hits() -> str:
        return (await proxy.ask("/metrics")).text.partition('"admitted"} ')[2].split()[0]

    assert await hits() == "0.0"
    proxy.publish(hits=1)
    assert await hits() == "0.0"
    proxy.now += 0.11
    assert await hits() == "1.0"


# -- probes ----------------------------------------------------------------------------------------


async def test_alive_while_workers_report() -> None:
    proxy = Proxy(2)
    found = await proxy.ask("/healthz")
    assert (found.status_code, found.text) == (
        503,
        "worker 1 has not reported yet\nworker 2 has not reported yet\n",
    )
    proxy.now += 1
    proxy.publish(0)
    proxy.publish(1)
    assert (await proxy.ask("/healthz")).text == "ok\n"
    proxy.now += 4
    proxy.publish(1)
    found = await proxy.ask("/healthz")
    silent = "worker 1 (process 7) last reported 4.0 s ago\n"
    assert (found.status_code, found.text) == (503, silent)


async def test_readiness_follows_the_snapshots(proxy: Proxy) -> None:
    assert (await proxy.ask("/readyz")).text == "ok\n"
    proxy.now += 1
    proxy.publish(upstream=AWAY)
    found = await proxy.ask("/readyz")
    assert (found.status_code, found.text) == (
        200,
        "ok, but Redis does not answer: hits are admitted\n",
    )
    proxy.now += 1
    proxy.publish(upstream=AWAY, on_upstream_failure="error")
    found = await proxy.ask("/readyz")
    assert found.status_code == 503
    assert found.text == "Redis at redis:6379 does not answer (connection refused)\n"
    assert (await proxy.ask("/readyz?exclude=upstream")).status_code == 200


@pytest.mark.parametrize("query", ["exclude=", "exclude=draining", "verbose", "exclude=upstream&x"])
async def test_unknown_exclusions_of_readiness_are_errors(proxy: Proxy, query: str) -> None:
    found = await proxy.ask(f"/readyz?{query}")
    assert (found.status_code, found.text) == (400, "The parameters here are exclude=upstream.\n")


async def test_reason_stays_one_line(proxy: Proxy) -> None:
    proxy.now += 1
    proxy.publish(upstream=replace(AWAY, why="a\nok\n"), on_upstream_failure="error")
    assert (await proxy.ask("/readyz")).text.count("\n") == 1


# -- the page --------------------------------------------------------------------------------------


def test_page_loads_nothing_from_other_hosts() -> None:
    text = PAGE.read_text()
    assert not re.search(r"(src|href)=\"(?!data:|metrics\"|healthz\"|readyz\")", text)
    assert set(re.findall(r"https?://[\w./]+", text)) == {"http://www.w3.org/2000/svg"}
    for dangerous in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert dangerous not in text
    assert not re.search(r"\son\w+=|style=\"", text.partition("<script>")[0])


def test_content_security_policy_names_style_and_script(proxy: Proxy) -> None:
    policy = dict(Pages(proxy.watch).headers())["content-security-policy"]
    assert len(re.findall(r"'sha256-[\w+/]{43}='", policy)) == 2
    assert "unsafe" not in policy


async def test_numbers_of_the_page(proxy: Proxy) -> None:
    proxy.watch.record()
    for hits in (10, 20):
        proxy.now += 1
        proxy.publish(hits=hits)
        proxy.watch.record()
    found = json.loads((await proxy.ask("/live.json")).text)
    assert found["hits"][0] == 20.0
    assert [row[1] for row in found["history"]] == [10.0, 10.0]
    assert found["rates"][0] == 10.0


async def test_history_begins_with_the_first_snapshot_of_a_worker() -> None:
    """Counters of a restarted process have grown for days."""
    proxy = Proxy()
    proxy.watch.record()
    proxy.now += 1
    proxy.publish(hits=1_000_000)
    proxy.watch.record()
    proxy.now += 1
    proxy.publish(hits=1_000_001)
    proxy.watch.record()
    found = json.loads((await proxy.ask("/live.json")).text)
    assert [row[1] for row in found["history"]] == [1.0]


# -- internal errors -------------------------------------------------------------------------------


async def test_internal_error_is_logged_once_and_hidden_from_clients(proxy: Proxy) -> None:
    broken = SimpleNamespace(view={"secret": object()})
    proxy.watch.reading = lambda: broken  # type: ignore[assignment, method-assign, return-value]
    transport = httpx.ASGITransport(proxy.application(), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        for _ in range(5):
            found = await client.get("/live.json")
            assert (found.status_code, found.text) == (500, "This failed; see the proxy's log.\n")
    (line,) = proxy.log
    assert re.fullmatch(
        r"requests to the admin address failed: 1; TypeError \(encoder\.py:\d+\)", line
    )


# -- warnings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "warned"),
    [
        (None, False),
        (Address("127.0.0.1", 9121), False),
        (Address("localhost", 9121), False),
        (Address("::1", 9121), False),
        (Address(path="/run/admin.sock"), False),
        (Address("0.0.0.0", 9121), True),
        (Address("10.0.0.5", 9121), True),
        (Address("proxy.example", 9121), True),
    ],
)
def test_reachable_addresses_are_a_warning(address: Address | None, warned: bool) -> None:
    upstream = Upstream(Address("127.0.0.1", 6379))
    made = Config((Address("127.0.0.1", 6380),), upstream, admin=address)
    assert bool(warnings(made)) == warned


def test_rates_are_exact_whenever_the_counters_are_read(proxy: Proxy) -> None:
    for tenth in range(10, 200):
        proxy.now += 0.1
        if tenth % 10 == 0:
            proxy.publish(hits=float(tenth))
        if tenth % 7 == 0:
            proxy.watch.record()
    rates = [row[1] for row in proxy.watch.reading().view["history"]]
    assert len(rates) > 10
    assert set(rates) == {10.0}


def test_rate_without_a_worker_is_missing_and_not_zero(proxy: Proxy) -> None:
    """The workers are silent for 20 seconds."""
    for second in range(30):
        proxy.now += 1
        if not 5 <= second < 25:
            proxy.publish(hits=10.0 * second)
        proxy.watch.record()
    rows = proxy.watch.reading().view["history"]
    assert [len(row) for row in rows].count(1) == 1
    assert {row[1] for row in rows if len(row) > 1} <= {10.0, 0.0}
    assert sum(row[1] == 0.0 for row in rows if len(row) > 1) <= 2  # until they count as silent
