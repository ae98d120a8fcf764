"""A few seconds of chaos and of soak, and the relay that injects the faults."""

from __future__ import annotations

import asyncio
import itertools
import random
import time

import pytest

from tests import chaos, cluster_chaos, harness, soak
from tests.harness import ON_ONE_ENGINE
from tests.stress.cluster_faults import Suffering
from tests.stress.relay import Relay

SLOW_MACHINE_S = 10.0  # the test requires that service returns; the command requires it within 1 s


@ON_ONE_ENGINE
async def test_proxy_survives_seconds_of_chaos(
    engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = await chaos.run(2, 7, engine, [], clients=3, back_s=SLOW_MACHINE_S)
    assert code == 0, capsys.readouterr().out


@ON_ONE_ENGINE
async def test_proxy_survives_seconds_of_soak(
    engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = await soak.run(1, 7, engine, ["--share"], clients=2)
    assert code == 0, capsys.readouterr().out


@ON_ONE_ENGINE
async def test_proxy_survives_seconds_of_cluster_chaos(
    engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = await cluster_chaos.run(2, 7, engine, [], clients=3, back_s=SLOW_MACHINE_S, exact_s=1)
    assert code == 0, capsys.readouterr().out


@pytest.mark.parametrize("nodes_fail", [True, False])
async def test_a_change_of_the_cluster_that_fails(
    nodes_fail: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is undone where nodes have failed, and ends the run where they have not."""
    failures = itertools.count() if nodes_fail else itertools.repeat(0)
    monkeypatch.setattr(cluster_chaos, "_failures", lambda _cluster: next(failures))
    monkeypatch.setattr(cluster_chaos, "CHANGES", (_half_a_change,))
    engine = harness.one_engine() or ""
    code = await cluster_chaos.run(1, 7, engine, [], clients=1, only="exact", exact_s=1)
    out = capsys.readouterr().out
    assert code == (0 if nodes_fail else 1), out
    assert ("not exact, as the cluster failed" in out) == nodes_fail
    assert ("VIOLATION the harness: AssertionError: half a change" in out) != nodes_fail


def _half_a_change(all_: Suffering) -> None:
    cluster = all_.cluster
    added = cluster.add_node()
    cluster.move_slot(0, added)
    cluster.begin_move(1, added)
    raise AssertionError("half a change")


async def test_violation_sets_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(chaos, "FAULTS", (_nothing,))
    code = await chaos.run(1, 7, sorted(harness.engines())[-1], [], clients=1, back_s=-1.0)
    assert code == 1
    out = capsys.readouterr().out
    assert "VIOLATION late" in out
    assert "--seed 7" in out


async def _nothing(_: chaos.Chaos) -> None:
    """No fault."""


# -- the relay -------------------------------------------------------------------------------------

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class RelayedEcho:
    """A server that echoes, with a relay in front of it."""

    def __init__(self) -> None:
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Relay:
        self._server = await asyncio.start_server(self._echo, "127.0.0.1", 0)
        self._relay = Relay(self._server.sockets[0].getsockname()[1], random.Random(1))
        await self._relay.start()
        return self._relay

    async def __aexit__(self, *_: object) -> None:
        await self._relay.close()
        assert self._server is not None
        self._server.close()

    async def _echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()


async def _client(relay: Relay) -> Stream:
    return await asyncio.wait_for(asyncio.open_connection("127.0.0.1", relay.port), 10)


async def _ask(stream: Stream, data: bytes) -> bytes:
    stream[1].write(data)
    return await asyncio.wait_for(stream[0].readexactly(len(data)), 10)


async def test_relay_forwards_and_delays() -> None:
    async with RelayedEcho() as relay:
        stream = await _client(relay)
        assert await _ask(stream, b"x" * 300_000) == b"x" * 300_000
        relay.delay_s = 0.1
        started = time.monotonic()
        assert await _ask(stream, b"y") == b"y"
        assert time.monotonic() - started >= 0.2
        stream[1].close()


async def test_relay_cuts_within_a_frame() -> None:
    async with RelayedEcho() as relay:
        stream = await _client(relay)
        await _ask(stream, b"x")
        assert relay.cut_in_frame(1.0, 50) == 1
        stream[1].write(b"z" * 100)
        got = await asyncio.wait_for(stream[0].read(), 10)
        assert 1 <= len(got) < 50
        stream[1].close()


async def test_relay_stalls_and_heals() -> None:
    async with RelayedEcho() as relay:
        stream = await _client(relay)
        relay.stalled = True
        stream[1].write(b"late")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stream[0].readexactly(4), 0.1)
        relay.heal()
        assert await asyncio.wait_for(stream[0].readexactly(4), 10) == b"late"
        stream[1].close()


async def test_relay_throttles_until_it_heals() -> None:
    async with RelayedEcho() as relay:
        stream = await _client(relay)
        relay.bytes_per_s = 500
        stream[1].write(b"s" * 200)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stream[0].readexactly(200), 0.2)
        relay.heal()
        stream[1].write(b"t")
        stream[1].close()


async def test_relay_refuses_connections() -> None:
    async with RelayedEcho() as relay:
        relay.refuses = True
        reader, writer = await _client(relay)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readexactly(1), 10)
        writer.close()
