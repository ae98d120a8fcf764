"""--admin of real proxies: metrics, probes, the live page, and the life of its process."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from rlproxy.admin import app
from rlproxy.admin.app import AdminServer
from rlproxy.config.config import Config
from rlproxy.observability.metrics import TABLE
from rlproxy.observability.shared_memory import SharedMemory

from tests import harness
from tests.clusters import Cluster, Node
from tests.harness import DEADLINE_S, Raw, RedisServer, wait_until
from tests.integration.started import (
    Started,
    UnixRaw,
    alive,
    by_lane,
    children,
    ended,
    started,
    stopped_listening,
)
from tests.processes import sockets

if not Path("/proc/self/fd").exists():
    pytest.skip("processes are found in /proc", allow_module_level=True)

HERE = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
TWO = ("--workers", "2")


@dataclass
class Page:
    """An HTTP response."""

    status: int
    text: str
    headers: dict[str, str]


def wait_seldom(condition: Callable[[], object], what: str) -> None:
    """As wait_until(), for a condition that sends requests: each takes some ms of CPU time."""
    wait_until(condition, what, max_pause_s=0.1)


def port(made: Started) -> int:
    """The port of --admin, from the banner."""
    return int(made.logged(r"  admin +http://127\.0\.0\.1:(\d+)/\n")[1])


def get(made: Started, path: str, method: str = "GET") -> Page:
    """Return the response; raises OSError if there is none."""
    connection = http.client.HTTPConnection("127.0.0.1", port(made), timeout=DEADLINE_S)
    with contextlib.closing(connection):
        connection.request(method, path)
        found = connection.getresponse()
        headers = {name.lower(): value for name, value in found.getheaders()}
        return Page(found.status, found.read().decode(), headers)


def answers(made: Started, path: str, status: int, text: str = "") -> None:
    """Wait until the response is as expected."""
    seen: list[object] = []

    def does() -> bool:
        try:
            found = get(made, path)
        except (OSError, http.client.HTTPException) as error:
            seen.append(error)
            return False
        seen.append(found)
        return found.status == status and re.search(text, found.text) is not None

    try:
        wait_seldom(does, f"{path} answers {status} {text}")
    except AssertionError as error:
        raise AssertionError(f"{error}; the last was {seen[-1]}") from None


def samples(made: Started) -> dict[str, float]:
    """Every sample of /metrics, by name and labels as they are written."""
    found = {}
    for family in text_string_to_metric_families(get(made, "/metrics").text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


def admin_pid(made: Started) -> int:
    """The id of the process that answers, once there is one."""
    found: list[int] = []

    def is_there() -> bool:
        found[:] = [
            pid
            for pid in children(made.pid)
            if alive(pid) and b"rlproxy.admin.app" in _command_line(pid)
        ]
        return bool(found)

    wait_until(is_there, "the admin process is there")
    return found[0]


def workers(made: Started) -> list[int]:
    app = admin_pid(made)
    return sorted(pid for pid in children(made.pid) if pid != app and alive(pid))


def listening(pid: int, port: int) -> set[str]:
    """The inodes among them that listen on the admin port."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    there = {row[9] for row in rows if row[3] == "0A" and row[1].endswith(f":{port:04X}")}
    return there & sockets(pid)


def _command_line(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


@pytest.fixture(scope="module")
def front(one_server: RedisServer) -> Iterator[Started]:
    """The proxy of tests that leave it and its server as they were."""
    with started(*HERE, "--upstream", one_server.url) as made:
        yield made


# -- metrics ---------------------------------------------------------------------------------------


def test_metrics_equal_the_counters(own_server: RedisServer) -> None:
    with started(*HERE, "--upstream", own_server.url, *TWO) as made:
        for _ in range(3):
            with made.raw() as raw:
                for _ in range(7):
                    assert isinstance(raw.ask("RL.HIT", "user:42", 5, 60), list)
                assert raw.ask("GET", "nothing") is None

        def counted() -> bool:
            found = samples(made)
            hits = {
                outcome: found.get(f"rlproxy_hits_total{{algorithm=log,outcome={outcome}}}", 0)
                for outcome in ("admitted", "refused", "refused_locally")
            }
            return (
                hits["admitted"] == 5
                and hits["refused"] + hits["refused_locally"] == 16
                and found.get("rlproxy_clients_accepted_total{}") == 3
                and found["rlproxy_clients{}"] == 0
                and found["rlproxy_workers{}"] == 2
            )

        wait_seldom(counted, "the metrics are what was counted")
        text = get(made, "/metrics").text
        exposed = set(re.findall(r"^# HELP (\w+) ", text, re.MULTILINE))
        sometimes = {
            "rlproxy_prefix_hits_total",
            "rlproxy_upstream_node_up",  # of a cluster
        }
        assert {row.name for row in TABLE} - sometimes <= exposed
        for row in TABLE:
            if row.name in exposed:
                assert f"# TYPE {row.name} {row.kind}\n" in text


def test_page_shows_the_counted_numbers(own_server: RedisServer) -> None:
    with started(*HERE, "--upstream", own_server.url) as made, made.raw() as raw:
        by_lane(own_server, raw)
        assert raw.ask("RL.HIT", "user:42", 5, 60) == [0, 5, 4, -1, 60]

        def shown() -> bool:
            found: dict[str, Any] = json.loads(get(made, "/live.json").text)
            return bool(
                found["hits"][0] > 1
                and found["clients"] == 1
                and found["lanes"] == [["default", 0, "hits", 1, 1, 0]]
                and found["upstream"]["where"] == f"127.0.0.1:{own_server.port}"
                and found["listen"] == [f"127.0.0.1:{made.port()}"]
            )

        wait_seldom(shown, "the page has the numbers")
        page = get(made, "/")
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        head = get(made, "/", "HEAD")
        assert (head.text, head.headers["content-length"]) == ("", page.headers["content-length"])
        assert get(made, "/actions", "POST").status == 404
        assert "<form" not in page.text


# -- probes ----------------------------------------------------------------------------------------


def problem(made: Started, kind: str) -> bool:
    """Whether the metric reports this problem and no other."""
    text = get(made, "/metrics").text
    found = re.findall(r'^rlproxy_upstream_problem\{kind="(\w+)"\} 1\.0$', text, re.MULTILINE)
    return found == ([kind] if kind else [])


def test_a_wrong_password_is_degraded_until_redis_accepts_it(one_engine: str) -> None:
    with harness.server(one_engine, "--requirepass", "old") as guarded:
        wrong = f"redis://:new@127.0.0.1:{guarded.port}"
        with started(*HERE, "--upstream", wrong, *TWO) as made, made.raw() as raw:
            where = f"degraded: Redis at 127.0.0.1:{guarded.port}: "
            answers(made, "/readyz", 200, f"{where}it refuses the user or password of the URL; ")
            assert problem(made, "login")
            assert raw.ask("AUTH", "old") == "OK"
            assert raw.ask("RL.HIT", "user:42", 5, 60) == [0, 5, 4, -1, 60]
            assert raw.ask("CONFIG", "SET", "requirepass", "new") == "OK"
            answers(made, "/readyz", 200, r"ok\n")
            assert problem(made, "")
            assert made.log().count("the problem is over") == 2
            assert made.log().count("WARNING") == 4


def test_readyz_reports_a_server_at_its_client_limit(
    front: Started, one_server: RedisServer
) -> None:
    with one_server.raw() as app:
        answers(front, "/readyz", 200, r"ok\n")
        assert app.ask("CONFIG", "SET", "maxclients", 1) == "OK"
        app.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        reason = rf"Redis at 127\.0\.0\.1:{one_server.port}: max number of clients reached\n"
        for _ in range(2):
            wait_seldom(lambda: problem(front, "full"), "the metric names the kind")
            answers(front, "/readyz", 503, reason)
        assert app.ask("CONFIG", "SET", "maxclients", 100) == "OK"
        answers(front, "/readyz", 200, r"ok\n")
        assert problem(front, "")


def fill(*servers: RedisServer) -> None:
    """Let the servers have no room for one more client."""
    for server in servers:
        with server.raw() as app:
            clients = str(app.ask("CLIENT", "LIST")).count("id=")
            assert app.ask("CONFIG", "SET", "maxclients", clients - 1) == "OK"


def test_readyz_reports_that_redis_or_a_node_refuses_a_new_client(
    front: Started, one_server: RedisServer, one_cluster: Cluster
) -> None:
    """The proxy's own connections have room. The cluster's client has one to its home, and none to
    the nodes of the other keys. A proxy looks 5 s later again: both at the same time.
    """
    refused, full = "max number of clients", "max number of clients reached"
    args = (*HERE, "--share", "no")  # no lane is refused as well
    with contextlib.ExitStack() as stack:
        servers = (one_server, *one_cluster.nodes)
        apps = [stack.enter_context(server.raw()) for server in servers]
        nodes = stack.enter_context(started(*args, "--upstream", one_cluster.url))
        for proxy in (front, nodes):
            answers(proxy, "/readyz", 200, r"ok\n")
        failed, logged = connects_failed(front), front.log().count(full)
        of_nodes = stack.enter_context(nodes.raw())
        assert of_nodes.ask("CLIENT", "SETNAME", "private") == "OK"
        keys = one_cluster.keys_of_all()
        fill(*servers)
        with front.raw() as client:
            assert refused in str(client.ask("PING"))
        assert sum(refused in str(of_nodes.ask("GET", key)) for key in keys) == 2
        wait_seldom(lambda: problem(front, "full"), "the metric names the kind")
        wait_seldom(lambda: problem(nodes, "node"), "the metric names the kind")
        answers(front, "/readyz", 503, full)
        answers(nodes, "/readyz", 200, f"degraded: .*: {full}")
        assert connects_failed(front) == failed + 1
        assert connects_failed(nodes) == 2
        for app in apps:
            assert app.ask("CONFIG", "SET", "maxclients", 100) == "OK"
        for proxy in (front, nodes):
            answers(proxy, "/readyz", 200, r"ok\n")
        assert front.log().count(full) == logged + 1


def test_a_replica_is_a_problem_until_it_is_a_master(
    front: Started, one_server: RedisServer
) -> None:
    with one_server.raw() as server, front.raw() as client:
        answers(front, "/readyz", 200, r"ok\n")
        assert server.ask("REPLICAOF", "127.0.0.1", 1) == "OK"
        client.ask("RL.HIT", "k", 5, 60)
        answers(front, "/readyz", 503, "it is a replica, which refuses hits")
        assert problem(front, "replica")
        assert server.ask("REPLICAOF", "NO", "ONE") == "OK"
        answers(front, "/readyz", 200, r"ok\n")


def test_server_that_loads_its_data_is_not_ready(own_server: RedisServer) -> None:
    fill = "for n = 1, 5000 do redis.call('SET', n, ('x'):rep(1100)) end"
    assert own_server.ask("EVAL", fill, 0) is None
    assert own_server.ask("SAVE") == "OK"
    slow = ("--rdbcompression", "no", "--loading-process-events-interval-bytes", "1024")
    own_server.args = (*slow, "--key-load-delay", "4000")  # 20 s, until the delay ends
    reason = rf"Redis at 127\.0\.0\.1:{own_server.port}: LOADING "
    allow = ("--on-upstream-failure", "allow")
    with (
        started(*HERE, "--upstream", own_server.url) as made,
        started(*HERE, "--upstream", own_server.url, *allow) as open_one,
    ):
        for proxy in (made, open_one):
            answers(proxy, "/readyz", 200, r"^ok\n")
        own_server.stop()
        own_server.start()
        answers(made, "/readyz", 503, f"^{reason}")
        answers(open_one, "/readyz", 200, f"^degraded: {reason}")
        for proxy in (made, open_one):
            assert problem(proxy, "unable")
        assert own_server.ask("CONFIG", "SET", "key-load-delay", 0) == "OK"
        for proxy in (made, open_one):
            proxy.logged(f"WARNING {reason}")
            answers(proxy, "/readyz", 200, r"^ok\n")
            assert problem(proxy, "")
            assert proxy.log().endswith("the problem is over\n")


def test_server_that_becomes_a_cluster_node_is_not_ready(
    front: Started, one_server: RedisServer
) -> None:
    where = rf"127\.0\.0\.1:{one_server.port}"
    node = rf"Redis at {where}: it is a node of a Redis Cluster\. "
    node += rf"For the whole cluster write --upstream redis\+cluster://{where};"
    answers(front, "/readyz", 200, r"ok\n")
    restart(one_server, "--cluster-enabled", "yes")
    answers(front, "/readyz", 503, node)
    assert get(front, "/readyz?exclude=upstream").status == 200
    assert problem(front, "cluster")
    front.logged(f"WARNING {node}")
    restart(one_server)
    answers(front, "/readyz", 200, r"ok\n")
    assert problem(front, "")


def restart(server: RedisServer, *args: str) -> None:
    """Restart the server with these arguments."""
    server.stop()
    server.args = args
    server.start()


def test_a_cluster_that_refuses_the_password_is_not_ready(one_cluster: Cluster) -> None:
    """Without its slots no client can be served, not even one with another user."""
    for node in one_cluster.nodes:
        assert node.ask("CONFIG", "SET", "requirepass", "new") == "OK"
    wrong = one_cluster.url.replace("://", "://:old@")
    with started(*HERE, "--upstream", wrong) as proxy, proxy.raw() as raw:
        answers(proxy, "/readyz", 503, "Redis at cluster .* refuses the user or password")
        assert problem(proxy, "login")
        assert samples(proxy)["rlproxy_upstream_up{}"] == 0
        for node in one_cluster.nodes:
            with node.raw() as admin:
                assert admin.ask("AUTH", "new") == "OK"
                assert admin.ask("CONFIG", "SET", "requirepass", "") == "OK"
        answers(proxy, "/readyz", 200, r"ok\n")
        assert samples(proxy)["rlproxy_upstream_up{}"] == 1
        assert raw.ask("RL.HIT", "user:42", 5, 60) == [0, 5, 4, -1, 60]


def test_a_cluster_is_ready_while_a_master_answers_and_it_does_not_count_itself_as_down(
    one_engine: str,
) -> None:
    down = "the nodes count the cluster as down (cluster_state:fail)"
    never_ms = 60_000
    with (
        Cluster(one_engine, node_timeout_ms=never_ms) as cluster,
        started(*HERE, "--upstream", cluster.url) as proxy,
    ):
        answers(proxy, "/readyz", 200, r"^ok\n")

        def kill(node: Node) -> None:
            cluster.kill(node)
            answers(proxy, "/readyz", 200, r"degraded: Redis at cluster .*: connection refused")
            assert problem(proxy, "node")

        first, *others = cluster.nodes
        kill(first)
        for node in others:
            node.do("CONFIG", "SET", "cluster-node-timeout", 500)
        refused = rf"Redis at cluster .*: {re.escape(down)}; {first.address}: connection refused"
        answers(proxy, "/readyz", 503, f"^{refused}")
        assert problem(proxy, "unable")
        proxy.logged(f"WARNING {re.escape(down)}\n")
        first.start()
        answers(proxy, "/readyz", 200, r"^ok\n")
        proxy.logged("the nodes of the cluster count it as available again\n")
        for node in others:
            node.do("CONFIG", "SET", "cluster-node-timeout", never_ms)
        for node in others:
            kill(node)
        cluster.kill(first)
        answers(proxy, "/readyz", 503, r"Redis at cluster .* does not answer \(")


def test_readiness_follows_redis_and_an_outage_is_one_warning_per_worker(
    own_server: RedisServer,
) -> None:
    workers = 2
    away = f"Redis at 127.0.0.1:{own_server.port} does not answer (connection refused)"
    with started(*HERE, "--upstream", own_server.url, *TWO) as made:
        answers(made, "/readyz", 200, r"ok\n")
        own_server.stop()
        answers(made, "/readyz", 503, re.escape(f"{away}\n"))
        assert get(made, "/readyz?exclude=upstream").status == 200
        assert get(made, "/healthz").status == 200
        wait_seldom(
            lambda: connects_failed(made) >= 4 * workers, "it has tried to connect again and again"
        )
        own_server.start()
        wait_until(lambda: made.log().count(" is back after ") == workers, "each worker is back")
        answers(made, "/readyz", 200, r"ok\n")
        assert made.log().count(f"{away}; ") == workers
        assert made.log().count("WARNING") == 2 * workers, made.log()


def connects_failed(made: Started) -> int:
    text = get(made, "/metrics").text
    found = re.search(r"^rlproxy_upstream_connects_failed_total (\d+)", text, re.MULTILINE)
    assert found is not None
    return int(found[1])


def test_draining_proxy_is_alive_and_not_ready(own_server: RedisServer) -> None:
    with started(*HERE, "--upstream", own_server.url) as made, made.raw() as raw:
        answers(made, "/readyz", 200)
        assert raw.ask("PING") == "PONG"
        raw.send(harness.command("BLPOP", "nothing", 0))
        wait_until(lambda: _blocked(own_server), "it blocks")
        pid = admin_pid(made)
        made.signal(signal.SIGTERM)
        answers(made, "/readyz", 503, "the proxy is ending: it takes no new clients\n")
        stopped_listening(made)
        assert get(made, "/healthz").status == 200
        with own_server.raw() as other:
            other.ask("RPUSH", "nothing", "x")
        assert raw.reply() == [b"nothing", b"x"]
        assert raw.closes()
        assert made.wait() == 0
        assert not alive(pid)
        with pytest.raises(ConnectionRefusedError):
            get(made, "/healthz")


def _blocked(server: RedisServer) -> bool:
    with server.raw() as raw:
        text = raw.ask("INFO", "clients")
    return isinstance(text, bytes) and b"blocked_clients:1\r\n" in text


def test_stalled_or_dead_worker_is_reported(own_server: RedisServer) -> None:
    with started(*HERE, "--upstream", own_server.url, *TWO) as made:
        answers(made, "/healthz", 200)
        with made.raw() as raw:
            raw.ask("RL.HIT", "user:42", 5, 60)
        admitted = "rlproxy_hits_total{algorithm=log,outcome=admitted}"
        wait_seldom(lambda: samples(made)[admitted] == 1, "the hit was counted")
        first, second = workers(made)
        page = listening(admin_pid(made), port(made))
        assert len(page) == 1
        assert not page & (sockets(first) | sockets(second))
        os.kill(second, signal.SIGSTOP)
        silent = rf"^worker \d \(process {second}\) last reported [\d.]+ s ago\n$"
        answers(made, "/healthz", 503, silent)
        assert get(made, "/readyz").status == 200
        wait_seldom(lambda: samples(made)["rlproxy_workers{}"] == 1, "the metric follows")
        os.kill(second, signal.SIGCONT)
        answers(made, "/healthz", 200)
        for pid in (first, second):
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not {first, second} & set(workers(made)), "they are replaced")
        answers(made, "/healthz", 200)
        wait_seldom(lambda: samples(made)[admitted] == 1, "the count goes on")


# -- the admin process -----------------------------------------------------------------------------


def test_killed_admin_process_is_restarted_each_time_and_ends_with_the_proxy(
    own_server: RedisServer,
) -> None:
    with started(*HERE, "--upstream", own_server.url, *TWO) as made, made.raw() as raw:
        for _ in range(2):
            pid = admin_pid(made)
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda pid=pid: not alive(pid), "it has ended")  # type: ignore[misc]
        answers(made, "/healthz", 200)
        killed = "WARNING the admin process was killed by SIGKILL; it is started again\n"
        assert made.log().count(killed) == 2
        assert raw.ask("RL.HIT", "user:42", 5, 60) == [0, 5, 4, -1, 60]
        left = [admin_pid(made), *workers(made)]
        made.signal(signal.SIGKILL)
        made.wait()
        wait_until(lambda: not any(map(alive, left)), "nothing is left of it")


def test_admin_address_in_use_is_reported_at_start(own_server: RedisServer) -> None:
    where = f"127.0.0.1:{own_server.port}"
    listen = ("--listen", "127.0.0.1:0", "--upstream", "redis://127.0.0.1:1")
    code, _, log = ended(*listen, "--admin", where, *TWO)
    assert code == 1
    why = "Address already in use"
    assert log.endswith(f"rlproxy: cannot listen on {where}: {why} (see --admin)\n")


def test_admin_on_a_unix_socket(own_server: RedisServer, tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    listen = ("--listen", "127.0.0.1:0", "--upstream", own_server.url)
    with started(*listen, "--admin", f"unix:{path}") as made:
        made.logged(rf"  admin +unix:{path}\n")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with UnixRaw(path) as raw:
            raw.send(b"GET /healthz HTTP/1.1\r\nHost: anything\r\nConnection: close\r\n\r\n")
            raw.closes()
        pid = admin_pid(made)
        made.signal(signal.SIGINT)  # as Ctrl-C
        assert made.wait() == 0
        assert not alive(pid)
    assert not path.exists()


# -- connections that are slow, many or malformed --------------------------------------------------


def test_hundreds_of_partial_requests_block_no_other_client(own_server: RedisServer) -> None:
    with started(*HERE, "--upstream", own_server.url) as made, contextlib.ExitStack() as stack:
        answers(made, "/healthz", 200)
        place = port(made)
        for number in range(3 * app.MAX_CONNECTIONS):
            raw = stack.enter_context(Raw(place))
            raw.send(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * (number % 2))
            if number % 50 == 0:
                assert get(made, "/healthz").status == 200
        files = Path(f"/proc/{admin_pid(made)}/fd")
        bounds = range(app.MAX_CONNECTIONS, app.MAX_CONNECTIONS + 33)
        wait_until(lambda: len(list(files.iterdir())) in bounds, "the oldest are closed")
        for junk in (
            b"\x16\x03\x01" * 100 + b"\r\n\r\n",
            b"*1\r\n$4\r\nPING\r\n\r\n",
            b"GET / HTTP/9\r\n\r\n",
            b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nno size\r\n",
        ):
            with Raw(place) as raw:
                raw.send(junk)
                assert raw.line().startswith(b"HTTP/1.1 400 ")
        with Raw(place) as raw:
            raw.send(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 100_000)
            assert raw.closes()
        with Raw(place) as raw:  # the server does not wait for a body
            raw.send(b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\n\r\n")
            assert raw.line() == b"HTTP/1.1 200 OK\r\n"
        assert get(made, "/healthz").status == 200
        assert made.log().count("\n") == 5  # the banner


@contextlib.asynccontextmanager
async def served(monkeypatch: pytest.MonkeyPatch, request_s: float) -> AsyncIterator[int]:
    """The port of an admin server within this process."""
    monkeypatch.setattr(app, "REQUEST_S", request_s)
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setblocking(False)
    made = AdminServer(sock, SharedMemory(1), os.getppid(), Config())
    task = asyncio.create_task(made.serve([sock]))
    try:
        yield sock.getsockname()[1]
    finally:
        made.should_exit = True
        await task


async def test_slow_request_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with served(monkeypatch, 0.2) as place:
        for sent in (b"", whole[:20], whole + whole[:20]):
            reader, writer = await asyncio.open_connection("127.0.0.1", place)
            writer.write(sent)
            async with asyncio.timeout(DEADLINE_S):
                with contextlib.suppress(ConnectionResetError):
                    await reader.read()
            writer.close()


async def test_client_that_does_not_read_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(monkeypatch, 0.3) as place:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        with sock:
            await loop.sock_connect(sock, ("127.0.0.1", place))
            requests = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000
            await loop.sock_sendall(sock, requests[: 1 << 15])
            wanted = 1000 * app.PAGE.stat().st_size
            found = 0
            await asyncio.sleep(1)  # the check is that the load does not last
            async with asyncio.timeout(DEADLINE_S):
                with contextlib.suppress(ConnectionResetError):
                    while data := await loop.sock_recv(sock, 1 << 20):
                        found += len(data)
            assert found < wanted / 2


def test_modules_in_the_working_directory_are_not_imported(
    own_server: RedisServer, tmp_path: Path
) -> None:
    for name in ("uvicorn", "starlette", "prometheus_client", "json"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not this one')\n")
    code = (
        f"import sys; sys.path.insert(0, {str(harness.ROOT)!r})\n"
        "from rlproxy.process.admin_process import AdminProcess\n"
        "from rlproxy.observability.shared_memory import SharedMemory\n"
        "from rlproxy.config.config import Config\n"
        "from rlproxy.config.urls import Address\n"
        "made = AdminProcess(Config(admin=Address('127.0.0.1', 0)), SharedMemory(1), ())\n"
        "made.start()\n"
        "import http.client\n"
        "page = http.client.HTTPConnection(made.url.split('/')[2], timeout=20)\n"
        "page.request('GET', '/healthz')\n"
        "print(page.getresponse().read().decode(), end='')\n"
        "made.stop()\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert (done.stdout, done.stderr) == ("worker 1 has not reported yet\n", "")
