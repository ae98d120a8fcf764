"""The pages of --admin, requested without a socket, on shared memory written by the test."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from rlproxy.admin import app
from rlproxy.admin.app import PAGE, Guard, application
from rlproxy.admin.reader import Reader
from rlproxy.observability.log_throttle import LogThrottle
from rlproxy.observability.metrics import Samples
from rlproxy.observability.published import Published, UpstreamFacts
from rlproxy.observability.shared_memory import SharedMemory

from tests.unit.admin.test_page_data import FACTS

PATHS = ["/", "/live.json", "/metrics", "/healthz", "/readyz"]
AWAY = UpstreamFacts("redis:6379", up=False, since_s=3.0, why="connection refused")


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
        snapshot = Published(self.now, samples, facts=replace(FACTS, **facts))
        assert self.memory.publish(worker, snapshot)

    def application(self, local: bool = True) -> Guard:
        throttle = LogThrottle(lambda: self.now, self.say)
        return application(self.watch, local, throttle)

    def say(self, _: str, text: str, **fields: object) -> None:
        self.log.append(text.format(**fields))

    async def ask(
        self, path: str, method: str = "GET", local: bool = True, **headers: str
    ) -> httpx.Response:
        transport = httpx.ASGITransport(self.application(local))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, path, headers=headers)


@pytest.fixture
def proxy() -> Proxy:
    made = Proxy()
    made.publish()
    return made


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
    proxy.now += 3
    proxy.publish(1)
    found = await proxy.ask("/healthz")
    assert (found.status_code, found.text) == (503, "worker 1 last reported 3.0 s ago\n")


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


# -- the page --------------------------------------------------------------------------------------


def test_page_loads_nothing_from_other_hosts() -> None:
    text = PAGE.read_text()
    assert not re.search(r"(src|href)=\"(?!data:|metrics\"|healthz\"|readyz\")", text)
    assert set(re.findall(r"https?://[\w./]+", text)) == {"http://www.w3.org/2000/svg"}
    for dangerous in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert dangerous not in text
    assert not re.search(r"\son\w+=|style=\"", text.partition("<script>")[0])


async def test_content_security_policy_names_style_and_script(proxy: Proxy) -> None:
    policy = (await proxy.ask("/")).headers["content-security-policy"]
    assert len(re.findall(r"'sha256-[\w+/]{43}='", policy)) == 2
    assert "unsafe" not in policy


async def test_numbers_of_the_page(proxy: Proxy) -> None:
    proxy.watch.look()
    for hits in (10, 20):
        proxy.now += 1
        proxy.publish(hits=hits)
        proxy.watch.look()
    found = json.loads((await proxy.ask("/live.json")).text)
    assert found["hits"][0] == 20.0
    assert [row[1] for row in found["history"]] == [10.0, 10.0]
    assert found["rates"][0] == 10.0


# -- internal errors -------------------------------------------------------------------------------


async def test_internal_error_is_logged_once_and_hidden_from_clients(proxy: Proxy) -> None:
    broken = SimpleNamespace(view={"secret": object()})
    proxy.watch.reading = lambda: broken  # type: ignore[assignment, method-assign, return-value]
    guard = proxy.application()
    transport = httpx.ASGITransport(guard)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        for _ in range(5):
            found = await client.get("/live.json")
            assert (found.status_code, found.text) == (
                500,
                "This failed; see the proxy's log.\n",
            )
    (line,) = proxy.log
    assert re.fullmatch(
        r"requests to the admin address failed: 1; TypeError \(encoder\.py:\d+\)", line
    )
