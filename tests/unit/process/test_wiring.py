"""wiring: what its callbacks pass from one object of a worker to another."""

from __future__ import annotations

import asyncio
import time
from math import inf
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rlproxy.config.config import Config
from rlproxy.config.urls import Address, Upstream, parse_upstream
from rlproxy.net import file_limit, tls_contexts
from rlproxy.observability.shared_memory import SharedMemory
from rlproxy.process.intake import ClientCounts
from rlproxy.process.resources import Resources
from rlproxy.process.upstreams import OneServer
from rlproxy.process.wiring import SERVING_S, Wiring, _call_at
from rlproxy.ratelimit import scripts
from rlproxy.session.context import Identification

REDIS = Upstream(Address("h", 1))


def wired(worker: int = 0, listening: Address | None = None, **settings: Any) -> Wiring:
    """The wiring of a worker. `listening` is the address that it seems to listen at."""
    config = Config(**{"upstream": REDIS, **settings})
    listeners = SimpleNamespace(
        sockets=[], addresses=lambda: [listening or Address("127.0.0.1", 1)]
    )
    resources = SimpleNamespace(
        listeners=listeners,
        client_counts=ClientCounts(worker + 1),
        memory=SharedMemory(worker + 1),
        started=time.time(),
        upstream=config.upstream,
        scripts=scripts.load(),
    )
    return Wiring(config, worker, cast("Resources", resources))


def one_server(wiring: Wiring) -> OneServer:
    assert isinstance(wiring.upstream, OneServer)
    return wiring.upstream


class Client:
    def __init__(self) -> None:
        self.calls = 0

    def cut_upstream(self) -> None:
        self.calls += 1


async def test_the_facts_of_the_server_reach_the_sessions() -> None:
    wiring = wired(listening=Address("10.0.0.1", 1))
    server = one_server(wiring)
    server.control._facts.found = Identification("Valkey", "9.1")
    assert wiring.context.server is server.pool.context.server is server.control._facts
    assert wiring.telemetry.own().upstream.server == "Valkey 9.1"


@pytest.mark.parametrize(
    ("address", "header", "probes"),
    [
        (Address("127.0.0.1", 1), False, False),
        (Address("::1", 1), False, False),
        (Address(path="/s"), False, False),
        (Address("0.0.0.0", 1), False, True),
        (Address("10.0.0.1", 1), False, True),
        (Address("127.0.0.1", 1), True, True),  # the load balancer passes other machines on
    ],
)
async def test_a_password_is_checked_where_other_machines_may_connect(
    address: Address, header: bool, probes: bool
) -> None:
    assert (wired(listening=address, proxy_protocol=header).probe is not None) == probes


async def test_only_the_first_worker_logs_protected_mode(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    for worker, lines in ((0, 2), (1, 0)):
        caplog.clear()
        wiring = wired(worker)
        for needs_password in (True, True, False, False, True):
            wiring._judged(needs_password)
            assert wiring.admission.needs_password == needs_password
        assert len(caplog.messages) == lines


async def test_no_password_is_logged_at_once(caplog: pytest.LogCaptureFixture) -> None:
    wired()._judged(False)
    assert caplog.messages[0].startswith("protected mode: Redis' default user needs no password")


async def test_an_outage_is_logged_and_causes_a_ping(caplog: pytest.LogCaptureFixture) -> None:
    wiring = wired()
    circuit = wiring.context.circuit
    circuit.connect_failed(10.0, "refused")
    assert one_server(wiring).control._ping_now.is_set()
    circuit.replied(12.5)
    silent, back = caplog.messages
    why = "Redis at h:1 does not answer (refused)"
    assert silent == f"{why}; hits are answered by --on-upstream-failure"
    assert back == "Redis at h:1 is back after 2.5 s; hits answered without it: 0"


async def test_a_new_master_cuts_the_connections_to_the_former_one() -> None:
    wiring = wired(upstream=parse_upstream("redis+sentinel://s/m"))
    upstream = one_server(wiring)
    assert upstream.failover is not None
    client = Client()
    wiring.clients.clients[cast("Any", client)] = ""
    upstream.target.where = "new:1"
    upstream._moved()
    assert wiring.context.server.where == "new:1"
    assert client.calls == 1
    assert one_server(wiring).control._reconnects.is_set()
    assert wiring.context.server is one_server(wiring).pool.context.server
    assert wiring.context.server.on_read_only == upstream.failover.suspect


async def test_new_settings_apply(monkeypatch: pytest.MonkeyPatch) -> None:
    wiring = wired(on_upstream_failure="deny", hit_timeout_ms=30)
    assert wiring.context.failure.mode == "deny"
    assert wiring.context.timeouts.timeout_s == 0.03
    config = Config(max_clients=7, max_accept_rate=8, hit_timeout_ms=9)
    context: Any = object()
    monkeypatch.setattr(tls_contexts, "contexts", lambda _: (context, context))
    wiring.reconfigure(config)
    assert [wiring.handshakes.context, wiring.upstream.target.tls] == [context, context]
    assert wiring.admission.max_clients == 7
    assert wiring.intake.rate == 8
    assert wiring.context.failure.mode == "error"
    assert wiring.context.timeouts.timeout_s == 0.009
    wiring.reconfigure(Config(hit_timeout_ms=0))
    assert wiring.context.timeouts.timeout_s == inf


@pytest.mark.parametrize(("worker", "files", "warns"), [(0, 1, True), (1, 1, False), (0, 9, False)])
async def test_too_few_files(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    worker: int,
    files: int,
    warns: bool,
) -> None:
    monkeypatch.setattr(file_limit, "raise_limit", lambda: files)
    monkeypatch.setattr(file_limit, "room", lambda limit: limit)
    wiring = wired(worker, max_clients=10)
    assert wiring.admission.max_clients == files
    assert bool(caplog.messages) == warns
    assert wiring.handshakes.room() == 2 * files  # what clients leave
    wiring.clients.clients[cast("Any", object())] = ""
    assert wiring.handshakes.room() == 2 * files - 2


@pytest.mark.parametrize(("denial_cache", "share"), [(0, False), (5, True)])
async def test_parts_that_an_option_turns_off(denial_cache: int, share: bool) -> None:
    wiring = wired(denial_cache=denial_cache, share=share)
    cache = wiring.upstream.settings.denial_cache
    assert cache.most == denial_cache
    assert wiring.context.stats.harvest == cache.harvest
    assert wiring.context.shares == share


@pytest.mark.parametrize("prefixes", [0, 3])
async def test_keys_are_counted_by_prefix_too(prefixes: int) -> None:
    wiring = wired(metrics_prefixes=prefixes)
    count = wiring.context.stats.on_keys
    count({b"$5\r\nuser:1\r\n": 1}, {}, 1, {})
    wiring.telemetry.publish()
    telemetry = wiring.telemetry
    assert telemetry.own().top.hits.counts
    assert bool(telemetry._prefixes.samples) == bool(prefixes)


async def test_new_clients_are_paced_while_others_are_served() -> None:
    wiring, now = wired(), asyncio.get_running_loop().time()
    assert not wiring.intake._busy()
    wiring.context.circuit.replied(now - 2 * SERVING_S)
    assert not wiring.intake._busy()
    wiring.context.circuit.replied(now + 60)
    assert wiring.intake._busy()


async def test_a_timer_is_never_early() -> None:
    done = asyncio.Event()
    at = time.monotonic() + 0.01
    _call_at(at, done.set)
    async with asyncio.timeout(10):
        await done.wait()
    assert time.monotonic() >= at


async def test_samples_count_hits_of_policies_by_algorithm_only() -> None:
    rules = (("a", "5 60", False), ("b", "5 60 ALGO GCRA", True))
    wiring = wired(policies=rules)
    for policy in wiring.context.grammar.policies.values():
        wiring.context.stats.hits[policy.row] += 3
    samples = wiring.telemetry.own().samples
    assert "rlproxy_policy_hits_total" not in samples
    assert sum(samples["rlproxy_hits_total"].values()) == 6
