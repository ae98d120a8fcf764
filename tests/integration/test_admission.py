"""Admission: protected mode, commands for local clients, client limits, and timeouts of idle and
stuck clients.
"""

from __future__ import annotations

import contextlib
import re
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from rlproxy.net.file_limit import room
from rlproxy.process.wiring import NEARLY

from tests import harness
from tests.clusters import Cluster
from tests.harness import DEADLINE_S, Proxy, Raw, RedisServer, ReplyError, command, wait_until
from tests.integration.started import Started, private
from tests.processes import cpu_s

EVERYWHERE = ("--listen", "0.0.0.0:0")
FULL = ReplyError("ERR max number of clients reached")
ONLY_LOCAL = "rlproxy lets only local clients"


def remote_address() -> str:
    """An address of this machine that is not loopback; empty if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return ""
        found = str(sock.getsockname()[0])
    return "" if found.startswith("127.") else found


OWN = remote_address()
elsewhere = pytest.mark.skipif(not OWN, reason="this machine has only loopback addresses")


class Remote(Raw):
    """A client that connects from an address that is not loopback."""

    def __init__(self, proxy: Proxy) -> None:
        port = re.search(r"0\.0\.0\.0:(\d+)", proxy.read_log())
        assert port
        super().__init__(int(port[1]), OWN)


@contextlib.contextmanager
def guarded(server: RedisServer | str, *args: str) -> Iterator[Proxy]:
    """A proxy that clients of other machines can reach."""
    with harness.proxy(server, *EVERYWHERE, *args) as made:
        yield made


def reply_to_ping(proxy: Proxy) -> str:
    """The reply that a client of another machine gets to PING."""
    with Remote(proxy) as raw:
        return str(raw.ask("PING"))


# -- protected mode --------------------------------------------------------------------------------


@elsewhere
def test_protected_mode_follows_the_password(own_server: RedisServer) -> None:
    with guarded(own_server) as proxy, own_server.raw() as direct:
        assert "protected mode: Redis' default user needs no password" in proxy.read_log()
        for _ in range(20):
            with Remote(proxy) as raw:
                assert raw.line().startswith(b"-DENIED rlproxy is running in protected mode: ")
                assert raw.closes()
        with proxy.raw() as local:
            assert local.ask("RL.HIT", "k", 10, 60) == [0, 10, 9, -1, 60]
        direct.ask("CONFIG", "SET", "requirepass", "s3")
        wait_until(lambda: reply_to_ping(proxy).startswith("NOAUTH"), "clients are admitted", 6)
        with Remote(proxy) as raw:
            assert raw.ask("AUTH", "s3") == "OK"
            assert raw.ask("RL.HIT", "k", 10, 60) == [0, 10, 8, -1, 60]
            direct.ask("ACL", "SETUSER", "default", "nopass")
            wait_until(lambda: reply_to_ping(proxy).startswith("DENIED"), "clients are refused", 6)
            assert raw.ask("PING") == "PONG"  # a connected client stays connected
        log = proxy.read_log()
        assert log.count("clients turned away: 1; protected mode, and Redis' default user") == 1
        assert log.count("Set a password there, or --protected-mode no") == 2


@elsewhere
def test_password_in_the_url_does_not_end_protected_mode(own_server: RedisServer) -> None:
    """It is the proxy's own password: protected mode depends on whether clients need one."""
    with own_server.raw() as direct:
        direct.ask("ACL", "SETUSER", "proxy", "on", ">pw", "~*", "+@all")
        url = f"redis://proxy:pw@127.0.0.1:{own_server.port}"
        with guarded(url) as proxy:
            assert reply_to_ping(proxy).startswith("DENIED")
        direct.ask("ACL", "SETUSER", "default", "off")
        with guarded(url) as proxy:
            assert reply_to_ping(proxy).startswith("NOAUTH")


@elsewhere
def test_protected_mode_in_front_of_a_cluster(one_engine: str) -> None:
    with Cluster(one_engine, masters=1) as cluster, guarded(cluster.url) as proxy:
        assert reply_to_ping(proxy).startswith("DENIED")
        cluster.nodes[0].do("CONFIG", "SET", "requirepass", "s3")
        wait_until(lambda: reply_to_ping(proxy).startswith("NOAUTH"), "clients are admitted", 6)


@elsewhere
@pytest.mark.parametrize("workers", ["1", "2"])
def test_protected_mode_while_redis_is_unreachable(
    unstarted_server: RedisServer, workers: str
) -> None:
    with guarded(unstarted_server, "--workers", workers) as proxy:
        for _ in range(4):
            with Remote(proxy) as raw:
                assert raw.line().startswith(b"-UPSTREAMDOWN rlproxy has not reached Redis at ")
                assert raw.closes()
        unstarted_server.start()
        wait_until(lambda: reply_to_ping(proxy).startswith("DENIED"), "it is known", 6)
        with proxy.raw() as local:
            assert local.ask("PING") == "PONG"


@elsewhere
def test_protected_mode_off_admits_all_addresses(own_server: RedisServer) -> None:
    with guarded(own_server, "--protected-mode", "no") as proxy:
        assert reply_to_ping(proxy) == "PONG"
        assert "WARNING" not in proxy.read_log()


@elsewhere
def test_embedded_server_is_protected() -> None:
    with guarded("embedded:") as proxy:
        assert reply_to_ping(proxy).startswith("DENIED")
        with proxy.raw() as local:
            assert local.ask("PING") == "PONG"


def test_loopback_listener_has_no_protected_mode(own_server: RedisServer) -> None:
    with harness.proxy(own_server) as proxy, proxy.raw() as raw:
        assert raw.ask("PING") == "PONG"
        assert "protected mode" not in proxy.read_log()


# -- commands for local clients --------------------------------------------------------------------


@elsewhere
def test_protected_commands_require_a_local_client(engine: str) -> None:
    switches = ("debug-command", "module-command", "protected-configs")
    args = [word for name in switches for word in (f"--enable-{name}", "local")]
    with (
        harness.server(engine, *([] if engine == "redis-6.2" else args)) as server,
        guarded(server, "--protected-mode", "no") as proxy,
        Remote(proxy) as remote,
        proxy.raw() as local,
    ):
        for words in (
            ("DEBUG", "JMAP"),
            ("debug",),
            ("MODULE", "LOAD", "/nope.so"),
            ("CONFIG", "SET", "dir", "/"),
            ("CONFIG", "SET", "dbfilename", "x"),
        ):
            assert ONLY_LOCAL in str(remote.ask(*words)), words
            assert ONLY_LOCAL not in str(local.ask(*words)), words
        assert isinstance(remote.ask("MODULE", "LIST"), list)
        assert remote.ask("CONFIG", "SET", "maxmemory-samples", 5) == "OK"
        assert remote.ask("CONFIG", "GET", "dbfilename") == [b"dbfilename", b"x"]
        assert remote.ask("MULTI") == "OK"
        assert ONLY_LOCAL in str(remote.ask("DEBUG", "SLEEP", 0))
        assert str(remote.ask("EXEC")).startswith("EXECABORT")
        # Lua does not bypass this: scripts may not call these commands.
        for script in ("'DEBUG', 'JMAP'", "'CONFIG', 'SET', 'dir', '/'", "'MODULE', 'LOAD', '/x'"):
            found = remote.ask("EVAL", f"return redis.call({script})", 0)
            assert "not allowed from" in str(found).lower(), found


@elsewhere
def test_protected_commands_can_be_allowed_for_all(own_server: RedisServer) -> None:
    args = ("--protected-mode", "no", "--local-commands", "yes")
    with guarded(own_server, *args) as proxy, Remote(proxy) as raw:
        assert ONLY_LOCAL not in str(raw.ask("DEBUG", "SLEEP", 0))


# -- client limits ---------------------------------------------------------------------------------


def test_clients_above_the_limit_are_refused(own_server: RedisServer) -> None:
    with harness.proxy(own_server, "--max-clients", "3") as proxy, contextlib.ExitStack() as stack:
        raws = [stack.enter_context(proxy.raw()) for _ in range(3)]
        assert [raw.ask("PING") for raw in raws] == ["PONG"] * 3
        for _ in range(30):
            with proxy.raw() as late:
                assert late.reply() == FULL
                assert late.closes()
        assert [raw.ask("RL.HIT", "k", 10, 60) for raw in raws][2] == [0, 10, 7, -1, 60]
        raws[0].close()

        wait_until(lambda: answers(proxy.raw), "there is room again")
        assert proxy.read_log().count("turned away") == 1
        assert "clients turned away: 1; max number of clients reached" in proxy.read_log()


@elsewhere
def test_clients_of_one_address_above_the_limit_are_refused(own_server: RedisServer) -> None:
    args = ("--protected-mode", "no", "--max-clients-per-address", "2")
    with guarded(own_server, *args) as proxy, contextlib.ExitStack() as stack:
        for make in (proxy.raw, lambda: Remote(proxy)):
            raws = [stack.enter_context(make()) for _ in range(2)]
            assert [raw.ask("PING") for raw in raws] == ["PONG"] * 2
            with make() as late:
                assert late.reply() == FULL

            raws[0].close()
            wait_until(partial(answers, make), "there is room again")


def answers(make: Callable[[], Raw]) -> bool:
    """Whether a new client is served."""
    with make() as raw:
        return raw.ask("PING") == "PONG"


def test_client_limit_applies_per_worker(own_server: RedisServer) -> None:
    args = ("--workers", "2", "--max-clients", "2")
    with harness.proxy(own_server, *args) as proxy, contextlib.ExitStack() as stack:
        raws = [stack.enter_context(proxy.raw()) for _ in range(12)]
        said = [str(raw.ask("PING")) for raw in raws]
        assert said.count("PONG") == 4, said
        assert said.count(str(FULL)) == 8, said
        for raw in raws:
            raw.close()

        def room() -> bool:  # each worker must also count rejected clients correctly
            with contextlib.ExitStack() as four:
                some = [four.enter_context(proxy.raw()) for _ in range(4)]
                return [raw.ask("PING") for raw in some] == ["PONG"] * 4

        wait_until(room, "there is room for four again")


def test_without_descriptors_new_clients_wait(own_server: RedisServer) -> None:
    with harness.proxy(own_server) as proxy, contextlib.ExitStack() as stack:
        raw = stack.enter_context(proxy.raw())
        assert raw.ask("PING") == "PONG"
        limits = resource.prlimit(proxy.pid, resource.RLIMIT_NOFILE)
        most = max(int(entry.name) for entry in Path(f"/proc/{proxy.pid}/fd").iterdir()) + 3
        resource.prlimit(proxy.pid, resource.RLIMIT_NOFILE, (most, limits[1]))
        late = [stack.enter_context(proxy.raw()) for _ in range(20)]
        wait_until(
            lambda: "cannot accept: Too many open files" in proxy.read_log(), "the log reports it"
        )
        used = cpu_s(proxy.pid)
        assert raw.ask("PING") == "PONG"
        time.sleep(1.5)  # longer than between two checks
        assert cpu_s(proxy.pid) - used < 0.2
        assert proxy.read_log().count("cannot accept: Too many open files") == 1
        resource.prlimit(proxy.pid, resource.RLIMIT_NOFILE, limits)
        for each in late:  # clients that waited are served
            assert each.ask("PING") == "PONG"


def test_low_file_limit_is_logged_at_start(own_server: RedisServer) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    made = Started("--listen", "127.0.0.1:0", "--upstream", own_server.url)
    try:
        made.port()
        few = room(hard) < NEARLY * 10_000
        assert ("limit of open files" in made.whole_log()) == few
        assert resource.prlimit(made.pid, resource.RLIMIT_NOFILE)[0] == hard
    finally:
        made.close()


def test_too_few_open_files_are_a_start_error() -> None:
    words = [sys.executable, "-m", "rlproxy", "--upstream", "redis://h", "--log-format", "text"]
    done = subprocess.run(
        ["/bin/sh", "-c", 'ulimit -n 12; exec "$@"', "sh", *words],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    why = "the limit of open files is 12: raise it to 130 at least (ulimit -n)"
    assert (done.returncode, done.stderr) == (1, f"rlproxy: {why}\n")


# -- timeouts --------------------------------------------------------------------------------------

IDLE = ("--idle-timeout", "0.5")
HALF = b"*2\r\n$3\r\nGET\r\n$10\r\nab"  # Redis has received this part


def test_idle_client_is_closed(own_server: RedisServer) -> None:
    with harness.proxy(own_server, *IDLE) as proxy, contextlib.ExitStack() as stack:
        silent, spoke, half, behind, busy = (stack.enter_context(proxy.raw()) for _ in range(5))
        assert spoke.ask("PING") == "PONG"
        half.send(HALF)
        behind.send(command("BLPOP", "other", 0) + HALF)
        pairs = [(stack.enter_context(proxy.raw()), words) for words in (
            (b"SUBSCRIBE", b"a"), (b"MONITOR",), (b"BLPOP", b"nothing", b"0"),
        )]  # fmt: skip
        for raw, words in pairs:
            raw.send(command(*words))
        waits = stack.enter_context(proxy.raw())
        assert waits.ask("RL.HIT", "w", 1, 60) == [0, 1, 0, -1, 60]
        waits.send(command("RL.HIT", "w", 1, 60, "WAIT", 60))
        gone = [False] * 3
        end = time.monotonic() + harness.DEADLINE_S
        sent_at = time.monotonic()
        while not all(gone) and time.monotonic() < end:
            before, sent_at = sent_at, time.monotonic()
            try:
                assert busy.ask("PING") == "PONG"
            except AssertionError:  # only on a machine that stalled for that long
                assert time.monotonic() - before > 0.4, "it was closed though it was not idle"
                busy = stack.enter_context(proxy.raw())
            gone = [closed_by_peer(raw) for raw in (silent, spoke, half)]
            time.sleep(0.05)
        assert all(gone)
        time.sleep(1.6)  # longer than the timeout and a sweep
        for raw in (*(pair[0] for pair in pairs), waits, behind):
            assert not closed_by_peer(raw)
        with own_server.raw() as direct:
            direct.ask("RPUSH", "nothing", "x")
            assert pairs[2][0].reply() == [b"nothing", b"x"]
            direct.ask("PUBLISH", "a", "hello")
            assert pairs[0][0].reply() == [b"subscribe", b"a", 1]
            assert pairs[0][0].reply() == [b"message", b"a", b"hello"]
        assert "WARNING" not in proxy.read_log()


def closed_by_peer(raw: Raw) -> bool:
    """Whether the peer has closed the connection; received data stays unread."""
    raw.sock.setblocking(False)
    try:
        return raw.sock.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True
    finally:
        raw.sock.setblocking(True)


MB = 1 << 20


def unread(proxy: Proxy, size: int = 8) -> Raw:
    """A client with a small buffer that has requested `megabytes` MB and reads nothing."""
    raw = Raw.__new__(Raw)
    raw.sock = socket.socket()
    raw.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
    raw.sock.connect(("127.0.0.1", proxy.port))
    raw.sock.settimeout(harness.DEADLINE_S)
    raw.closed, raw._buffer = False, bytearray()
    raw.send(command("GET", "mb") * size)
    return raw


def test_stuck_reader_is_cut_and_slow_reader_is_not(own_server: RedisServer) -> None:
    with own_server.raw() as direct:
        direct.ask("SET", "mb", "x" * MB)
    with harness.proxy(own_server, "--write-timeout", "1.2") as proxy:
        stuck, slow = unread(proxy, 64), unread(proxy)  # more than any kernel holds
        with stuck, slow, proxy.raw() as other:
            began = time.monotonic()
            read = 0
            while len(private(own_server)) == 3 or time.monotonic() - began < 4:
                assert other.ask("PING") == "PONG"
                # In 4 s less than half of what the kernels of both sides hold.
                read += len(slow.sock.recv(20_000))
                time.sleep(0.1)
                assert time.monotonic() - began < 15
            assert len(private(own_server)) == 2
            text = "clients cut: 1; they read nothing for 1.2 s (the latest: 127.0.0.1:"
            assert text in proxy.read_log()
            left = 8 * (MB + len(f"${MB}\r\n\r\n")) - read
            while left:
                got = len(slow.sock.recv(min(left, MB)))
                assert got
                left -= got
            assert slow.ask("PING") == "PONG"


# -- memory ----------------------------------------------------------------------------------------


def test_clients_use_bounded_memory_during_an_outage(own_server: RedisServer) -> None:
    """Redis accepts no connection because its queue is full: the data that clients send has a
    bound.
    """
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        port = deaf.getsockname()[1]
        with contextlib.ExitStack() as stack:
            for _ in range(3):  # they fill the queue
                sock = stack.enter_context(socket.socket())
                sock.setblocking(False)
                sock.connect_ex(("127.0.0.1", port))
            args = ("--connect-timeout", "20", "--drain-timeout", "0.1")
            proxy = stack.enter_context(harness.proxy(f"redis://127.0.0.1:{port}", *args))
            before = proxy.memory()
            for _ in range(10):
                raw = stack.enter_context(proxy.raw())
                raw.sock.settimeout(0.1)
                with contextlib.suppress(OSError):
                    raw.sock.sendall(command("SET", "k", "x" * 1000) * 20_000)
            assert proxy.memory() - before < 10 * 2 * (262_144 + 262_144)


def test_max_unread_bounds_unread_replies(own_server: RedisServer) -> None:
    """--max-unread bounds the unread reply bytes that the proxy takes from Redis for a client."""
    with own_server.raw() as direct:
        direct.ask("SET", "mb", "x" * (16 * MB))
        held = {}
        for most in (65_536, 12 * MB):
            args = ("--max-unread", str(most))
            with harness.proxy(own_server, *args) as proxy, proxy.raw() as raw:
                raw.ask("PING")
                before = proxy.memory()
                with unread(proxy, 1):
                    wait_until(partial(idle, proxy), "it takes no more")
                    held[most] = proxy.memory() - before
        assert held[12 * MB] - held[65_536] > 4 * MB, held


def idle(proxy: Proxy) -> bool:
    """Whether the process uses no processor time for a moment."""
    before = cpu_s(proxy.pid)
    time.sleep(0.3)
    return cpu_s(proxy.pid) - before < 0.02
