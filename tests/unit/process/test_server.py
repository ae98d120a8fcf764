"""server: the order of start-up, main loop and shutdown. The wiring is a record of calls."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rlproxy.config.config import Config
from rlproxy.observability.metrics import CLUSTER
from rlproxy.process import server as module
from rlproxy.process.channel import Channel
from rlproxy.process.resources import Resources, StartError
from rlproxy.process.server import CUT, Server

DEADLINE_S = 10.0


class Client:
    """A client that is owed a reply until it is answered or cut."""

    def __init__(self, clients: set[Client], owed: bool = True) -> None:
        self._clients = clients
        self._owed = owed
        self.was_cut = False

    def owed(self) -> bool:
        return self._owed

    def flush(self) -> None:
        if not self._owed:
            self._clients.discard(self)

    def notice_hangup(self) -> None:
        return

    def cut(self) -> None:
        self.was_cut = True
        self._clients.discard(self)


class Connection:
    """A control connection or probe that settles at once, and runs until it is cancelled."""

    kind = problem = ""
    reached = True

    def __init__(self) -> None:
        self.settled = asyncio.Event()

    async def run(self) -> None:
        self.settled.set()
        await asyncio.Event().wait()


class FakeUpstream:
    """An upstream with one control connection."""

    target = SimpleNamespace(where="h:1")

    def __init__(self, control: Connection, calls: list[str]) -> None:
        self._control = control
        self._calls = calls
        self._task: asyncio.Task[None] | None = None

    async def start(self, _: float) -> list[asyncio.Event]:
        self._task = asyncio.create_task(self._control.run())
        return [self._control.settled]

    def state(self) -> SimpleNamespace:
        control = self._control
        settled = control.settled.is_set()
        return SimpleNamespace(
            kind=control.kind, problem=control.problem, reached=True, settled=settled, now=""
        )

    def close_idle(self) -> None:
        pass

    async def stop(self) -> None:
        assert self._task is not None
        self._task.cancel()
        self._calls.append("close lanes")


class Worker:
    """A server, its channel and its wiring, whose calls are recorded in `calls`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, config: Config | None = None) -> None:
        self.calls: list[str] = []
        self.reason = ""  # the channel's reason to end
        self.reports: list[str] = []
        self.reloads: list[Config] = []
        self.config = config or Config()
        self.clients: set[Client] = set()
        self.control = Connection()
        self.wiring = SimpleNamespace(
            server="Redis 7",
            upstream=FakeUpstream(self.control, self.calls),
            probe=Connection(),
            intake=SimpleNamespace(open=self._call("open"), close=self._call("close intake")),
            handshakes=SimpleNamespace(close=self._call("close handshakes")),
            clients=SimpleNamespace(
                clients=self.clients,
                draining=False,
                context=SimpleNamespace(waiting=SimpleNamespace(drain=self._call("drain"))),
                sweep=self._call("sweep"),
                fan_out=SimpleNamespace(close=self._call("close fan-out")),
            ),
            telemetry=SimpleNamespace(publish=lambda _: None, publish_last=lambda: None),
            context=None,
            reconfigure=None,
        )
        monkeypatch.setattr(module, "Wiring", lambda *_: self.wiring)
        monkeypatch.setattr(module, "SWEEP_S", 0.001)

    def _call(self, name: str) -> Callable[[], None]:
        return lambda: self.calls.append(name)

    def _reload(self, config: Config, _: object) -> Config:
        self.calls.append("reload")
        self.reloads.append(config)
        return Config(max_clients=7)

    async def run(self) -> None:
        resources = SimpleNamespace(listeners=SimpleNamespace(close=self._call("close listeners")))
        channel = SimpleNamespace(
            first=True,
            ready=lambda text, advice: self.calls.append(f"ready: {text}{advice}"),
            leaving=self._call("leaving"),
            check=lambda: self.reason,
            reload=self._reload,
        )
        server = Server(self.config, supervised=True)
        await server.run(0, cast("Resources", resources), cast("Channel", channel))

    async def until(self, call: str, times: int = 1) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while self.calls.count(call) < times:
                await asyncio.sleep(0.001)


@contextlib.asynccontextmanager
async def serving(worker: Worker) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(worker.run())
    try:
        await worker.until(READY)
        yield task
        async with asyncio.timeout(DEADLINE_S):
            await task
    finally:
        task.cancel()


READY = "ready: Redis 7, embedded (its data ends with this process)"
LEAVING = "leaving"
SHUTDOWN = [LEAVING, "close listeners", "close handshakes", "drain", "close fan-out", "close lanes"]


async def test_from_start_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(monkeypatch)
    async with serving(worker):
        await worker.until("sweep")
        os.kill(os.getpid(), signal.SIGTERM)
    steps = [call for call in worker.calls if call != "sweep"]
    assert steps == ["open", READY, "close intake", *SHUTDOWN]


async def test_a_cluster_node_is_an_error_at_the_first_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker = Worker(monkeypatch)
    worker.control.kind, worker.control.problem = CLUSTER, "it is a node"
    with pytest.raises(StartError, match=r"^Redis at h:1: it is a node$"):
        await worker.run()
    assert worker.calls == ["close intake", *SHUTDOWN]


async def test_a_reason_of_the_channel_ends_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(monkeypatch)
    with pytest.raises(StartError, match=r"^the server has ended$"):
        async with serving(worker):
            worker.reason = "the server has ended"
    assert worker.calls[-1] == "close lanes"


async def test_a_stop_waits_for_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(monkeypatch, Config(drain_timeout_s=DEADLINE_S))
    owed, idle = Client(worker.clients), Client(worker.clients, owed=False)
    worker.clients.update((owed, idle))
    async with serving(worker) as task:
        os.kill(os.getpid(), signal.SIGTERM)
        await worker.until("drain")
        assert worker.wiring.clients.draining
        assert worker.clients == {owed}
        os.kill(os.getpid(), signal.SIGTERM)  # of a supervised worker, a second one cuts nothing
        await asyncio.sleep(0)
        assert not task.done()
        worker.clients.clear()
    assert not owed.was_cut


@pytest.mark.parametrize("by", ["timeout", "signal"])
async def test_a_stop_cuts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, by: str
) -> None:
    timeout_s = 0.02 if by == "timeout" else DEADLINE_S
    worker = Worker(monkeypatch, Config(drain_timeout_s=timeout_s))
    client = Client(worker.clients)
    worker.clients.add(client)
    async with serving(worker):
        os.kill(os.getpid(), signal.SIGTERM)
        await worker.until("drain")
        if by == "signal":
            os.kill(os.getpid(), CUT)
    assert client.was_cut
    assert "1 client(s) were cut: they were still owed replies" in caplog.messages


async def test_a_stop_logs_what_it_waits_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(module, "NOTICE_S", 0.01)
    worker = Worker(monkeypatch, Config(drain_timeout_s=0.1))
    worker.clients.add(Client(worker.clients))
    async with serving(worker):
        os.kill(os.getpid(), signal.SIGTERM)
    assert any("replies are owed to 1 client(s), waiting up to 0.1 s" in m for m in caplog.messages)


async def test_sighup_applies_new_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(monkeypatch)
    worker.clients.add(Client(worker.clients))
    async with serving(worker):
        for times in (1, 2):
            os.kill(os.getpid(), signal.SIGHUP)
            await worker.until("reload", times)
        os.kill(os.getpid(), signal.SIGTERM)
        await worker.until("drain")
        os.kill(os.getpid(), signal.SIGHUP)  # while it drains: without effect
        os.kill(os.getpid(), CUT)
    assert [config.max_clients for config in worker.reloads] == [10000, 7]


async def test_sighup_during_start_up_applies_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(monkeypatch)

    async def slow() -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0.01)
        assert not worker.reloads
        worker.control.settled.set()

    monkeypatch.setattr(worker.control, "run", slow)
    async with serving(worker):
        await worker.until("reload")
        os.kill(os.getpid(), signal.SIGTERM)
    assert worker.calls.index("reload") == worker.calls.index(READY) + 1


async def test_a_worker_serves_while_redis_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(monkeypatch)
    monkeypatch.setattr(module, "FIRST_CONTACT_S", 0.01)

    async def silent() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(worker.control, "run", silent)
    async with serving(worker):
        os.kill(os.getpid(), signal.SIGTERM)


async def test_a_failed_publication_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker(monkeypatch)
    monkeypatch.setattr(module, "EVERY_S", 0.001)

    def fails(_: float) -> Any:
        worker.calls.append("published")
        raise ZeroDivisionError

    worker.wiring.telemetry.publish = fails
    async with serving(worker):
        await worker.until("published")
        await worker.until("sweep", worker.calls.count("sweep") + 10)  # as long as a publication
        os.kill(os.getpid(), signal.SIGTERM)
    assert caplog.messages == ["unexpected error"]
    assert worker.calls.count("published") == 1
