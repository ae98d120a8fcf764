"""--workers: several processes at the same addresses, each of which may die."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from rlproxy.process.restart_policy import MAX_FAILURES

from tests.harness import DEADLINE_S, Raw, RedisServer, command, wait_until
from tests.info import blocked_clients
from tests.integration.started import (
    Started,
    UnixRaw,
    alive,
    ask_once,
    children,
    ended,
    started,
    stopped_listening,
)
from tests.processes import cpu_s, sockets

if not Path("/proc/self/fd").exists():
    pytest.skip("the clients of each worker are read from /proc", allow_module_level=True)

DESCRIPTORS = resource.getrlimit(resource.RLIMIT_NOFILE)
ANY_PORT = ("--listen", "127.0.0.1:0")
EMBEDDED = ("--upstream", "embedded:")
TWO = ("--workers", "2")
REPLACED = re.compile(r"WARNING (worker \d) \(process (\d+)\) (.*?); it is started again (.*)\n")


@pytest.fixture
def upstream(one_server: RedisServer) -> str:
    """The URL of a server, empty."""
    ask_once(one_server.port, "FLUSHALL")
    return one_server.url


# -- helpers ---------------------------------------------------------------------------------------


def workers(made: Started) -> list[int]:
    """The pids of the workers."""
    found = []
    for pid in children(made.pid):
        with contextlib.suppress(OSError):
            if b"valkey" not in Path(f"/proc/{pid}/cmdline").read_bytes() and alive(pid):
                found.append(pid)
    return sorted(found)


def embedded_pid(made: Started) -> int:
    (pid,) = set(children(made.pid)) - set(workers(made))
    return pid


def served(pid: int, port: int) -> set[int]:
    """The ports of the clients that the process serves at `port`."""
    mine = sockets(pid)
    found = set()
    table = Path("/proc/net/tcp")
    # Read twice: connections opened or closed during a read make it miss a line now and then.
    for line in (table.read_text() + table.read_text()).splitlines():
        row = line.split()
        if row[0] == "sl":
            continue
        if int(row[1].partition(":")[2], 16) == port and row[3] == "01" and row[9] in mine:
            found.add(int(row[2].partition(":")[2], 16))
    return found


def loads(made: Started, pids: list[int] | None = None) -> list[int]:
    """The number of clients each worker serves."""
    return [len(served(pid, made.port())) for pid in pids or workers(made)]


def peer(raw: Raw) -> int:
    return int(raw.sock.getsockname()[1])


def opened(port: int, count: int) -> list[Raw]:
    """Connections that have had a reply."""
    made = [Raw(port) for _ in range(count)]
    for raw in made:
        assert raw.ask("PING") == "PONG"
    return made


@contextlib.contextmanager
def closing(raws: list[Raw]) -> Iterator[list[Raw]]:
    try:
        yield raws
    finally:
        for raw in raws:
            raw.close()


# -- load ------------------------------------------------------------------------------------------


LOST = (OSError, AssertionError, ValueError)  # ValueError: a partial reply


@dataclass
class Hammer:
    """A client that hits its own key until its connection ends or it is stopped."""

    port: int
    number: int
    admitted: int = 0
    peer: int = 0
    error: str = ""
    wrong: list[object] = field(default_factory=list)

    def run(self, stop: threading.Event) -> None:
        try:
            with Raw(self.port) as raw:
                self.peer = peer(raw)
                while not stop.is_set():
                    reply = raw.ask("RL.HIT", f"k{self.number}", 1_000_000, 3600)
                    if not isinstance(reply, list) or reply[:2] != [0, 1_000_000]:
                        self.wrong.append(reply)
                    self.admitted += 1
        except LOST as error:
            self.error = repr(error)


@dataclass
class Opener:
    """Opens connection after connection, one hit on each; records each start time and the
    failures.
    """

    port: int
    begun: list[float] = field(default_factory=list)
    failed: list[tuple[float, str]] = field(default_factory=list)

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            begin = time.monotonic()
            try:
                with Raw(self.port) as raw:
                    reply = raw.ask("RL.HIT", "opened", 1_000_000, 3600)
                if not isinstance(reply, list):
                    self.failed.append((begin, repr(reply)))
            except LOST as error:
                self.failed.append((begin, repr(error)))
            self.begun.append(begin)


@contextlib.contextmanager
def running(*loaders: Hammer | Opener) -> Iterator[None]:
    """Threads that end with the block, or after the deadline."""
    stop = threading.Event()
    limit = threading.Timer(2 * DEADLINE_S, stop.set)
    limit.start()
    threads = [threading.Thread(target=loader.run, args=(stop,)) for loader in loaders]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        limit.cancel()


# -- the addresses ---------------------------------------------------------------------------------


def test_all_workers_serve_every_address(upstream: str, tmp_path: Path) -> None:
    path = tmp_path / "proxy.sock"
    args = (*ANY_PORT, "--listen", f"unix:{path}", *ANY_PORT, "--upstream", upstream)
    with started(*args, "--workers", "3") as made:
        first = made.port()
        lines = made.log().splitlines()
        assert [line.split()[0] for line in lines] == [
            "rlproxy",
            "listening",
            "in",
            "served",
            "try",
        ]
        assert lines[3] == "  served by     3 workers"
        found = re.search(r"127\.0\.0\.1:(\d+), unix:.*, 127\.0\.0\.1:(\d+)$", lines[1])
        assert found is not None
        assert int(found[1]) == first
        pids = workers(made)
        assert len(pids) == 3
        with closing([]) as raws:
            for _ in range(4):
                raws += [Raw(first), UnixRaw(path), Raw(int(found[2]))]
            left = [raw.ask("RL.HIT", "k", 99, 60) for raw in raws]
            assert left == [[0, 99, 98 - number, -1, 60] for number in range(12)]
            # Without listening sockets and lanes, each worker has a third of the clients.
            tcp = [len(served(pid, first) | served(pid, int(found[2]))) for pid in pids]
            assert sum(tcp) == 8
            assert max(tcp) <= 5  # with unix clients, 4 in all, or one more
        made.signal(signal.SIGTERM)
        assert made.wait() == 0
        assert not path.exists()


def test_address_in_use_is_an_error(upstream: str) -> None:
    with started(*ANY_PORT, "--upstream", upstream, *TWO) as made:
        where = f"127.0.0.1:{made.port()}"
        code, _, log = ended("--listen", where, "--upstream", upstream, *TWO)
        assert code == 1
        assert log == f"rlproxy: cannot listen on {where}: Address already in use (see --listen)\n"
        assert ask_once(made.port(), "PING") == "PONG"


# -- distribution of clients -----------------------------------------------------------------------


def test_clients_are_spread_evenly_and_limits_are_exact(upstream: str) -> None:
    with started(*ANY_PORT, "--upstream", upstream, *TWO) as made, closing([]) as raws:
        port = made.port()
        pids = workers(made)
        raws += opened(port, 40)
        wait_until(lambda: sum(loads(made, pids)) == 40, "no client of the start is left")
        assert sorted(loads(made, pids)) in ([19, 21], [20, 20])

        # All clients of one worker but one close: new clients go there.
        mine = served(pids[0], port)
        gone = [raw for raw in raws if peer(raw) in mine][1:]
        for raw in gone:
            raw.close()
        raws[:] = [raw for raw in raws if raw not in gone]
        wait_until(lambda: loads(made, pids)[0] == 1, "the worker has noticed")
        raws += opened(port, 20)
        both = loads(made, pids)
        assert abs(both[0] - both[1]) <= 2, both

        # All at once.
        burst = [socket.socket() for _ in range(40)]
        for sock in burst:
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", port))
        before = sum(both)
        wait_until(lambda: sum(loads(made, pids)) == before + 40, "all are accepted")
        both = loads(made, pids)
        assert abs(both[0] - both[1]) <= 2, both
        for sock in burst:
            sock.close()

        # Many hits through both, first on the private connections and then by lane.
        for raw in raws:
            raw.send(command("RL.HIT", "k", 500, 3600) * 10)
        first = [raw.reply() for raw in raws for _ in range(10)]
        for raw in raws:
            raw.send(command("RL.HIT", "k", 500, 3600) * 10)
        replies = first + [raw.reply() for raw in raws for _ in range(10)]
        assert all(isinstance(reply, list) for reply in replies)
        remaining = [reply[2] for reply in replies if isinstance(reply, list) and not reply[0]]
        assert sorted(remaining) == list(range(500))


def test_worker_without_descriptors_logs_once_and_loses_no_client(upstream: str) -> None:
    with started(*ANY_PORT, "--upstream", upstream, *TWO) as made, closing([]) as raws:
        port = made.port()
        full, _ = workers(made)
        raws += opened(port, 2)
        most = max(int(entry.name) for entry in Path(f"/proc/{full}/fd").iterdir()) + 1
        resource.prlimit(full, resource.RLIMIT_NOFILE, (most, DESCRIPTORS[1]))
        late = [Raw(port) for _ in range(20)]  # it accepts some
        raws += late
        made.logged(r"worker \d: cannot accept: Too many open files; new clients wait")
        wait_until(lambda: sum(loads(made)) == 22, "the other one serves the rest")
        used_s = cpu_s(full)
        time.sleep(1.2)  # longer than the interval of its checks
        assert cpu_s(full) - used_s < 0.1
        assert made.log().count("cannot accept") == 1
        resource.prlimit(full, resource.RLIMIT_NOFILE, DESCRIPTORS)
        assert [raw.ask("PING") for raw in late] == ["PONG"] * 20
        few = len(served(full, port))

        def accepts() -> bool:
            raws.extend(opened(port, 1))
            return len(served(full, port)) > few

        wait_until(accepts, "it accepts clients again")
        raws += opened(port, len(raws))
        both = loads(made)
        assert abs(both[0] - both[1]) <= 2, both


# -- a worker ends ---------------------------------------------------------------------------------


def test_killed_worker_closes_only_its_own_clients(one_server: RedisServer, upstream: str) -> None:
    with started(*ANY_PORT, "--upstream", upstream, *TWO) as made:
        port = made.port()
        before = workers(made)
        victim, other = before
        hammers = [Hammer(port, number) for number in range(6)]
        opener = Opener(port)
        with running(*hammers, opener):
            wait_until(lambda: min(hammer.admitted for hammer in hammers) > 20, "all are at work")
            lost = served(victim, port)
            os.kill(victim, signal.SIGKILL)
            killed_at = time.monotonic()
            wait_until(lambda: len(set(workers(made)) - {victim}) == 2, "it is replaced")
            (new,) = set(workers(made)) - set(before)
            with closing(opened(port, 3)):
                assert served(new, port)
            # Earlier clients of the other workers continue.
            done = [hammer.admitted for hammer in hammers]
            wait_until(
                lambda: all(
                    hammer.error or hammer.admitted > admitted + 20
                    for hammer, admitted in zip(hammers, done, strict=True)
                ),
                "the others are at work",
            )
            count = len(opener.begun)
            wait_until(lambda: len(opener.begun) > count + 20, "connections are opened")
        mine = [hammer for hammer in hammers if hammer.peer in lost]
        assert 2 <= len(mine) <= 4
        assert all(hammer.error for hammer in mine)
        assert [hammer.error for hammer in hammers if hammer not in mine] == [""] * (6 - len(mine))
        assert [wrong for hammer in hammers for wrong in hammer.wrong] == []
        for hammer in hammers:
            assert ask_once(one_server.port, "LLEN", f"k{hammer.number}") in (
                hammer.admitted,
                hammer.admitted + 1,  # its reply was lost with the worker
            )
        assert [failed for failed in opener.failed if failed[0] > killed_at] == []
        assert len(opener.failed) <= 1
        found = REPLACED.findall(made.log())
        assert [row[1:] for row in found] == [(str(victim), "was killed by SIGKILL", "at once")]
        made.logged(rf"INFO {found[0][0]} \(process {new}\) serves\n")
        assert other in workers(made)


def test_terminated_worker_drains_and_delays_no_client(
    one_server: RedisServer, upstream: str, tmp_path: Path
) -> None:
    path = tmp_path / "proxy.sock"
    args = (*ANY_PORT, "--listen", f"unix:{path}", "--upstream", upstream, *TWO)
    with started(*args, "--drain-timeout", "60") as made, closing([]) as raws:
        port = made.port()
        old, other = workers(made)
        raws += opened(port, 6)
        mine = served(old, port)
        others = len(served(other, port))
        first, *rest = [raw for raw in raws if peer(raw) in mine]
        first.send(command("BLPOP", "list", 0))
        wait_until(lambda: blocked_clients(one_server) == 1, "BLPOP waits")
        os.kill(old, signal.SIGTERM)
        assert all(raw.closes() for raw in rest)
        made.logged(r"worker \d: stopping: clients owed replies: 1; ")
        # It runs and accepts no client: the other one serves new clients, at whichever address.
        with closing(opened(port, 30)):
            assert alive(old)
            assert len(served(other, port)) == others + 30
            assert served(old, port) == {peer(first)}
            os.kill(old, signal.SIGTERM)  # again: as if the whole process group were signalled
        assert ask_once(one_server.port, "RPUSH", "list", "late") == 1
        assert first.reply() == [b"list", b"late"]
        assert first.closes()
        wait_until(lambda: len(set(workers(made)) - {old}) == 2, "it is replaced")
        (new,) = set(workers(made)) - {old, other}
        made.logged(rf"worker \d \(process {new}\) serves\n")
        found = REPLACED.findall(made.log())
        assert [row[1:] for row in found] == [(str(old), "ended with exit code 0", "at once")]
        raws += opened(port, 3)
        assert len(served(new, port)) >= 2
        with UnixRaw(path) as raw:
            assert raw.ask("PING") == "PONG"


def test_proxy_exits_when_no_worker_survives(upstream: str) -> None:
    with started(*ANY_PORT, "--upstream", upstream, *TWO) as made:
        made.port()
        end = time.monotonic() + DEADLINE_S
        while made.running() and time.monotonic() < end:
            for pid in workers(made):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)
        assert made.wait() == 1
        lines = made.log().splitlines()
        assert re.fullmatch(
            r"rlproxy: no worker lasts: worker \d was killed by SIGKILL, "
            rf"as all did {MAX_FAILURES} times",
            lines[-1],
        )
        assert len(REPLACED.findall(made.log())) == 2 * MAX_FAILURES - 1
        assert workers(made) == []


def test_worker_that_cannot_start_is_logged_and_ends_the_proxy() -> None:
    with socket.socket() as silent:  # a silent server: the first contact takes a while
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}"
        with started(*ANY_PORT, "--upstream", url, *TWO) as made:
            wait_until(lambda: len(workers(made)) == 2, "the workers are there")
            os.kill(workers(made)[1], signal.SIGKILL)
            assert made.wait() == 1
            assert re.fullmatch(
                r"rlproxy: worker \d was killed by SIGKILL before the proxy was ready\n", made.log()
            )


def test_workers_are_replaced_where_the_parent_ignores_the_end_of_children(upstream: str) -> None:
    ignored = signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # which programs inherit
    try:
        made = Started(*ANY_PORT, "--upstream", upstream, *TWO, fresh=True)
    finally:
        signal.signal(signal.SIGCHLD, ignored)
    try:
        made.port()
        os.kill(workers(made)[0], signal.SIGKILL)
        assert made.logged(REPLACED.pattern)[3] == "was killed by SIGKILL"
    finally:
        made.close()


# -- the end ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", ["1", "2"])
def test_no_reply_is_lost_when_all_processes_are_signalled(
    one_server: RedisServer, upstream: str, count: str
) -> None:
    args = (*ANY_PORT, "--upstream", upstream, "--workers", count)
    with started(*args) as made, made.raw() as waiting:
        port = made.port()
        pids = workers(made)  # none, if there is one process
        waiting.send(command("BLPOP", "list", 0))
        wait_until(lambda: blocked_clients(one_server) == 1, "BLPOP waits")
        hammers = [Hammer(port, number) for number in range(6)]
        with running(*hammers):
            wait_until(lambda: min(hammer.admitted for hammer in hammers) > 50, "all are at work")
            # As a service manager or a terminal does: every process gets the signal.
            for pid in (made.pid, *pids):
                os.kill(pid, signal.SIGTERM)
            stopped_listening(made)
            for pid in pids:  # repeated signals do not cut a worker's clients
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
            wait_until(lambda: all(hammer.error for hammer in hammers), "all are closed")
        assert made.running()
        assert ask_once(one_server.port, "RPUSH", "list", "late") == 1
        assert waiting.reply() == [b"list", b"late"]
        assert waiting.closes()
        assert made.wait() == 0
        assert not any(alive(pid) for pid in pids)
        assert [wrong for hammer in hammers for wrong in hammer.wrong] == []
        for hammer in hammers:  # every counted hit was answered
            assert ask_once(one_server.port, "LLEN", f"k{hammer.number}") == hammer.admitted
        assert "WARNING" not in made.log()


@pytest.mark.parametrize("count", [1, 2])
def test_second_signal_cuts_at_once(one_server: RedisServer, upstream: str, count: int) -> None:
    args = (*ANY_PORT, "--upstream", upstream, "--workers", str(count), "--drain-timeout", "60")
    each = 2 // count  # clients of each process
    with started(*args) as made, made.raw() as one, made.raw() as two:
        pids = workers(made)
        one.send(command("BLPOP", "list", 0))
        two.send(command("BLPOP", "list", 0))
        wait_until(lambda: blocked_clients(one_server) == 2, "both wait")
        for pid in (made.pid, *pids):
            os.kill(pid, signal.SIGINT)
        stopped_listening(made)
        made.logged(rf"clients owed replies: {each}; waiting up to 60 s; a second signal cuts")
        assert made.running()
        assert all(alive(pid) for pid in pids)
        made.signal(signal.SIGINT)
        assert made.wait() == 0
        assert one.closes()
        assert two.closes()
        assert made.log().count(f"clients cut: {each}; they were") == count


def test_stuck_worker_is_killed_and_logged(upstream: str) -> None:
    args = (*ANY_PORT, "--upstream", upstream, *TWO, "--drain-timeout", "0.1")
    with started(*args) as made:
        made.port()
        stuck = workers(made)[0]
        os.kill(stuck, signal.SIGSTOP)
        made.signal(signal.SIGTERM)
        assert made.wait() == 1
        assert not alive(stuck)
        killed = "was killed: it had not ended 3.1 s after the signal to stop"
        made.logged(rf"rlproxy: worker \d {killed}\n")


def test_workers_do_not_outlive_their_supervisor(tmp_path: Path) -> None:
    path = tmp_path / "proxy.sock"
    with started(*ANY_PORT, "--listen", f"unix:{path}", *EMBEDDED, *TWO) as made:
        port = made.port()
        pids = [*workers(made), embedded_pid(made)]
        assert len(pids) == 3
        found = ask_once(port, "CONFIG", "GET", "dir")
        assert isinstance(found, list)
        made.signal(signal.SIGKILL)
        made.wait()
        try:
            wait_until(lambda: not any(alive(pid) for pid in pids), "all have ended")
        finally:
            for pid in pids:
                if alive(pid):
                    os.kill(pid, signal.SIGKILL)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 1)
    for entry in Path(found[1].decode()).iterdir():
        entry.unlink()
    Path(found[1].decode()).rmdir()


def test_workers_share_one_embedded_server_and_end_with_it() -> None:
    with started(*ANY_PORT, *EMBEDDED, *TWO) as made:
        port = made.port()
        pids = workers(made)
        assert "embedded (its data ends with this process)" in made.log()
        with closing(opened(port, 4)) as raws:
            left = [raw.ask("RL.HIT", "k", 9, 60) for raw in raws]
            assert left == [[0, 9, 8 - number, -1, 60] for number in range(4)]
            os.kill(embedded_pid(made), signal.SIGKILL)
            assert made.wait() == 1
        assert made.log().endswith("rlproxy: the embedded server has ended, and its data with it\n")
        assert not any(alive(pid) for pid in pids)
