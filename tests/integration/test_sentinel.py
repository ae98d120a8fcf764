"""Failover by Sentinels: a real master, real replicas, real Sentinels, and a proxy that follows."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
import redis
import trustme
from redis.backoff import NoBackoff
from redis.retry import Retry
from rlproxy.config.urls import Address, parse_upstream
from rlproxy.net.tls_contexts import ClientSide
from rlproxy.ratelimit.algorithms import ALGORITHMS
from rlproxy.upstream.failover import LOOK_S, Failover
from rlproxy.upstream.master_target import MasterTarget

from tests import harness, info
from tests.harness import Raw, RedisServer, ReplyError, is_error, wait_until
from tests.integration.sentinels import ACTION_S, Group, Sentinel, Switch, group
from tests.integration.started import Started, client_list, started

LISTEN = ("--listen", "127.0.0.1:0", "--upstream")
BACK_S = 10.0  # generous: it takes milliseconds on an idle machine
# Commands that leave a client waiting on its private connection.
IDLE: Final = (("BLPOP", "nothing", 0), ("SUBSCRIBE", "c"), ("MONITOR",), ("MULTI",))
NEVER_SENT = "UPSTREAMDOWN cannot reach Redis at "
_texts = itertools.count()
Words = tuple[str | int, ...]


@pytest.fixture
def watched(one_engine: str) -> Iterator[Group]:
    """A master, two replicas, three Sentinels."""
    with group(one_engine) as made:
        yield made


def role_of(server: RedisServer) -> str:
    """The server's own role; of a replica also the state of its link."""
    # A Sentinel that makes it a replica closes all its connections.
    with contextlib.suppress(AssertionError), server.raw() as raw:
        found = raw.ask("ROLE")
        assert isinstance(found, list)
        name = bytes(found[0]).decode()
        return name if name == "master" else f"replica {bytes(found[3]).decode()}"
    return "untold"


def other_clients(server: RedisServer) -> list[dict[str, str]]:
    """The server's clients other than Sentinels, its replicas and its master."""
    return [
        row
        for row in client_list(server)
        if not row["name"].startswith("sentinel-") and not set(row["flags"]) & set("SM")
    ]


def port_behind(raw: Raw) -> int:
    """The port of the server behind the proxy's client."""
    found = raw.ask("CONFIG", "GET", "port")
    assert isinstance(found, list), found
    return int(found[1])


def serves(proxy: Started, port: int) -> bool:
    """Whether the server at `port` admits a new client's hit."""
    with contextlib.suppress(AssertionError), proxy.raw() as raw:
        if port_behind(raw) == port:
            return isinstance(raw.ask("RL.HIT", "serves", 1_000_000, 60), list)
    return False


# -- under load -----------------------------------------------------------------------------------


@dataclass
class Worker:
    """One client, which hits its own key and increments its own counter.

    `place` is the last place in the server's list that a reply reported; `open` counts the hits
    sent since with unknown outcome. On one connection places follow each other. On a new connection
    they may also begin at a lower place, since a failover loses writes that were not replicated.
    They never exceed the hits sent.
    """

    number: int
    place: int = 0
    open: int = 0
    counted: int = 0  # the same of the counter
    counting: int = 0
    admitted: int = 0
    durable: int = 0  # places that all replicas have confirmed
    same: bool = False  # the connection is the one that reported `place`
    refusals: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def key(self) -> str:
        return f"hits:{self.number}"

    @property
    def counter(self) -> str:
        return f"counter:{self.number}"

    def hits(self, count: int) -> list[Words]:
        """Hits with a distinct max each."""
        return [("RL.HIT", self.key, 100_000 + next(_texts) % 9973, 3600) for _ in range(count)]

    def ordinary(self) -> list[Words]:
        """Commands with known replies."""
        text = f"text-{next(_texts)}"
        own = f"own:{self.number}"
        return [("SET", own, text), ("ECHO", text), ("GET", own), ("INCR", self.counter)]

    def note(self, words: Words, reply: object, text: str) -> None:
        """Check the reply to `words`; `text` is the value GET would return."""
        if isinstance(reply, Exception):
            self.refusals.append(str(reply))
            if not str(reply).startswith(("UPSTREAMDOWN", "READONLY")):
                self.problems.append(f"{words} got {reply!r}")
            elif not str(reply).startswith((NEVER_SENT, "READONLY")):
                self.unknown(words)
            return
        if words[0] == "RL.HIT":
            if not isinstance(reply, list) or len(reply) != 5 or reply[:2] != [0, words[2]]:
                self.problems.append(f"{words} got {reply!r}")
                return
            place = int(words[2]) - reply[2]
            if place > self.place + 1 + self.open or (self.same and place <= self.place):
                self.problems.append(f"{self}: place {place}")
            self.place, self.open, self.same = place, 0, True
            self.admitted += 1
        elif words[0] == "INCR":
            assert isinstance(reply, int)
            if reply > self.counted + 1 + self.counting:
                self.problems.append(f"{self}: counted {reply}")
            self.counted, self.counting = reply, 0
        elif words[0] in ("ECHO", "GET") and reply != text.encode():
            self.problems.append(f"{words} got {reply!r} instead of {text}")
        elif words[0] == "SET" and reply not in ("OK", b"OK", True):
            self.problems.append(f"{words} got {reply!r}")

    def unknown(self, words: Words) -> None:
        """The outcome of `words` is unknown."""
        self.open += words[0] == "RL.HIT"
        self.counting += words[0] == "INCR"


def by_raw(worker: Worker, proxy: Started, stop: threading.Event) -> None:
    """Send pipelines of hits, of other commands, of both, and sometimes a WAIT for the replicas."""
    for turn in itertools.count():
        if stop.is_set():
            return
        worker.same = False
        with proxy.raw() as raw:
            while not raw.closed and not stop.is_set():
                ordinary = worker.ordinary()
                batch = [worker.hits(1), worker.hits(8), ordinary, [*worker.hits(2), *ordinary]][
                    next(_texts) % 4
                ]
                raw.send(b"".join(harness.command(*words) for words in batch))
                for at, words in enumerate(batch):
                    try:
                        reply = raw.reply()
                    except Exception as error:
                        for each in batch[at:]:
                            worker.unknown(each)
                        if not raw.closed:
                            worker.problems.append(f"{words}: {error!r}")
                            return
                        break
                    worker.note(words, reply, str(ordinary[0][2]))
                if not raw.closed and turn % 2 == 0 and next(_texts) % 8 == 0:
                    confirm(worker, raw)
                time.sleep(0.001)  # the Sentinels need the processor too


def confirm(worker: Worker, raw: Raw) -> None:
    try:
        found = raw.ask("WAIT", 2, 200)
    except Exception as error:
        if not raw.closed:
            worker.problems.append(f"WAIT: {error!r}")
        return
    if found == 2 and worker.same and not worker.open:
        worker.durable = max(worker.durable, worker.place)


def by_library(worker: Worker, proxy: Started, stop: threading.Event) -> None:
    """redis-py, which reconnects automatically."""
    client = redis.Redis(port=proxy.port(), retry=Retry(NoBackoff(), 0), socket_timeout=20)
    while not stop.is_set():
        words = worker.hits(1)[0]
        worker.same = False  # the time of a reconnection is unknown
        try:
            reply = client.execute_command(*words)  # type: ignore[no-untyped-call]
            worker.note(words, reply, "")
        except redis.ConnectionError:
            worker.unknown(words)
        except redis.ResponseError as error:
            worker.note(words, error, "")
    client.close()


@pytest.mark.parametrize(
    ("how", "args"),
    [("killed", ()), ("demoted", ("--share",))],
    ids=["killed", "demoted"],
)
def test_failover_under_load(watched: Group, how: str, args: tuple[str, ...]) -> None:
    old = watched.servers[0]
    workers = [Worker(number) for number in range(7)]
    stop = threading.Event()
    with started(*LISTEN, watched.url(), *args) as proxy:
        runs = [by_library, *(len(workers) - 1) * [by_raw]]
        threads = [
            threading.Thread(target=run, args=(worker, proxy, stop))
            for run, worker in zip(runs, workers, strict=True)
        ]
        idle = [proxy.raw() for _ in IDLE]
        switch = Switch(watched.sentinels)
        for thread in threads:
            thread.start()
        try:
            wait_until(lambda: all(w.durable >= 20 for w in workers[1:]), "hits are replicated")
            for raw, words in zip(idle, IDLE, strict=True):
                assert raw.ask("PING") == "PONG"  # on its private connection
                raw.send(harness.command(*words))
            if how == "killed":
                watched.kill(old)
            else:
                watched.leave_replicas_alone()
                watched.demote()
            port = switch.wait()
            wait_until(lambda: serves(proxy, port), "hits are admitted again")
            back_s = time.monotonic() - switch.at
            watched.keep()
            print(f"\n{how}: admitted {back_s * 1000:.0f} ms after +switch-master")
            if how == "demoted":  # at once: the Sentinels would close them much later
                wait_until(lambda: not other_clients(old), "all have left the old master")
                assert role_of(old) == "master"
                watched.leave_replicas_alone(False)
            assert all(raw.closes() for raw in idle)
            before = [worker.admitted for worker in workers]
            wait_until(
                lambda: all(w.admitted > b + 20 for w, b in zip(workers, before, strict=True)),
                "all go on",
            )
            if how == "killed":
                old.start()
            wait_until(
                lambda: role_of(old) == "replica connected", "the old master replicates", ACTION_S
            )
            assert other_clients(old) == []
        finally:
            stop.set()
            for thread in threads:
                thread.join(harness.DEADLINE_S)
            switch.close()
            for raw in idle:
                raw.close()
        assert [text for worker in workers for text in worker.problems] == []
        assert back_s < BACK_S
        new = watched.server(port)
        wait_until(
            lambda: not [r for r in other_clients(new) if "rlproxy" not in r["name"]], "quiet"
        )
        with new.raw() as raw:
            for worker in workers:
                held = raw.ask("LLEN", worker.key)
                assert isinstance(held, int)
                # The new master has every hit it reported, and no hit that all replicas confirmed
                # is lost.
                assert worker.place <= held <= worker.place + worker.open, worker
                assert held >= worker.durable, worker
                assert worker.counted <= int(raw.ask("GET", worker.counter) or 0)  # type: ignore[call-overload]
        was = f"master mymaster is now 127.0.0.1:{port} (was 127.0.0.1:{old.port})"
        assert proxy.log().count("is now") == 1 and was in proxy.log(), proxy.log()


def test_blocks_hold_after_a_failover(watched: Group) -> None:
    blocks = {name.decode(): ("ALGO", name) for name in ALGORITHMS}
    with started(*LISTEN, watched.url()) as proxy:
        with proxy.raw() as raw:
            for key, algo in blocks.items():
                assert limited(raw.ask("RL.HIT", key, 3, 60, *algo)) == 0
                assert raw.ask("RL.BLOCK", key, 3600, *algo) == [1, 0, 0, 3600, 3600]
            assert raw.ask("WAIT", 2, 20_000) == 2
        watched.demote()
        port = watched.sentinels[0].master()
        wait_until(lambda: serves(proxy, port), "hits are admitted again")
        with proxy.raw() as raw:
            for key, algo in blocks.items():
                found = raw.ask("RL.HIT", key, 3, 60, *algo)
                assert isinstance(found, list)
                assert found[:3] == [1, 3, 0]
                assert 3000 < found[3] <= 3600
                assert raw.ask("RL.BLOCK", key, 0, *algo) == [0, 0, 0, -1, 0]
                assert limited(raw.ask("RL.HIT", key, 3, 60, *algo)) == 0


def limited(reply: object) -> int:
    assert isinstance(reply, list), reply
    return int(reply[0])


# -- which Sentinel is queried ---------------------------------------------------------------------


def test_each_worker_follows_with_one_sentinel_down(watched: Group) -> None:
    with contextlib.ExitStack() as stack:
        proxy = stack.enter_context(started(*LISTEN, watched.url(), "--workers", "2"))
        proxy.port()
        watched.sentinels[2].stop()
        here = f"127.0.0.1:{watched.sentinels[2].port}"
        proxy.logged(rf"1 of 3 Sentinels of mymaster fail: {here} connection (refused|closed .*); ")
        switch = Switch(watched.sentinels[:2])
        watched.demote()
        port = switch.wait()
        switch.close()
        for worker in (1, 2):
            proxy.logged(f"worker {worker}: master mymaster is now 127.0.0.1:{port} ")
        raws = [stack.enter_context(proxy.raw()) for _ in range(4)]
        assert {port_behind(raw) for raw in raws} == {port}


def test_master_serves_with_all_sentinels_down(watched: Group) -> None:
    first = f"127.0.0.1:{watched.servers[0].port}"
    with started(*LISTEN, watched.url()) as proxy, proxy.raw() as raw:
        assert raw.ask("RL.HIT", "k", 10, 60) == [0, 10, 9, -1, 60]
        for sentinel in watched.sentinels:
            sentinel.stop()
        proxy.logged(rf"\d of 3 Sentinels of mymaster fail: .*; the master stays {first}\n")
        for left in range(8, 2, -1):
            reply = raw.ask("RL.HIT", "k", 10, 60)
            assert isinstance(reply, list) and reply[:3] == [0, 10, left]
            with proxy.raw() as other:
                assert other.ask("SET", "a", left) == "OK"
        assert proxy.log().count("Sentinels") == 1  # that line


def test_stale_sentinel_moves_no_connection(watched: Group) -> None:
    old = watched.servers[0]
    stale = watched.sentinels[2]
    with started(*LISTEN, watched.url()) as proxy:
        proxy.port()
        stale.stop()
        switch = Switch(watched.sentinels[:2])
        watched.demote()
        port = switch.wait()
        switch.close()
        wait_until(lambda: serves(proxy, port), "the proxy follows")
        assert old.ask("REPLICAOF", "127.0.0.1", port) == "OK"  # the Sentinels do so 3 s later
        for sentinel in watched.sentinels[:2]:
            sentinel.stop()
        stale.start()
        assert stale.master() == old.port
        wait_until(lambda: subscribed(stale), "the proxy listens to the stale one")
        end = time.monotonic() + LOOK_S + 0.5
        while time.monotonic() < end:
            assert serves(proxy, port)
        assert proxy.log().count("is now") == 1
        assert other_clients(old) == []


def test_sentinel_that_names_a_replica_is_not_followed(one_engine: str) -> None:
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(group(one_engine, replicas=1, sentinels=0))
        replica = made.servers[1]
        sentinel = Sentinel(replica.executable, replica.port, 2)
        stack.callback(sentinel.close)
        sentinel.start()
        url = made.url(sentinel)
        proxy = stack.enter_context(started(*LISTEN, url))
        raw = stack.enter_context(proxy.raw())
        why = f"127.0.0.1:{replica.port}, which the Sentinels name, is a replica"
        error = f"{NEVER_SENT}{watched_as(url)}: no master known as mymaster: {why}"
        assert raw.ask("RL.HIT", "k", 10, 60) == ReplyError(error)


def watched_as(url: str) -> str:
    """How errors and logs name the Sentinels of `url`."""
    return f"sentinel {url.removeprefix('redis+sentinel://')}"


def subscribed(sentinel: Sentinel) -> bool:
    """Whether a client other than a Sentinel is subscribed to it."""
    found = sentinel.ask("PUBSUB", "NUMSUB", "+switch-master")
    if isinstance(found, list):
        return int(found[1]) > 0
    return any(row["cmd"] == "subscribe" for row in info.clients(sentinel))


def test_master_that_an_operator_moves_is_followed(one_engine: str) -> None:
    """The Sentinels send no +switch-master, and name no newer epoch. The former master is well."""
    with group(one_engine, replicas=1, sentinels=1) as made:
        first, second = made.servers
        with started(*LISTEN, made.url()) as proxy, proxy.raw() as raw:
            assert raw.ask("RL.HIT", "k", 10, 60) == [0, 10, 9, -1, 60]
            with second.raw() as admin:
                assert admin.ask("REPLICAOF", "NO", "ONE") == "OK"
            with first.raw() as admin:
                assert admin.ask("REPLICAOF", "127.0.0.1", second.port) == "OK"
            sentinel = made.sentinels[0]
            assert sentinel.ask("SENTINEL", "REMOVE", "mymaster") == "OK"
            monitor = ("SENTINEL", "MONITOR", "mymaster", "127.0.0.1", second.port, 1)
            assert sentinel.ask(*monitor) == "OK"
            wait_until(lambda: serves(proxy, second.port), "the proxy follows")


# -- start-up -------------------------------------------------------------------------------------


def test_banner_and_passwords(one_engine: str) -> None:
    with group(one_engine, replicas=1, sentinels=2, password="s3cret") as made:
        hosts = ",".join(f"127.0.0.1:{each.port}" for each in made.sentinels)
        now = f"127.0.0.1:{made.servers[0].port}"
        url = f"redis+sentinel://:s3cret@{hosts}/mymaster?sentinel_password=s3cret"
        with started(*LISTEN, url) as proxy:
            where = f"sentinel {hosts}/mymaster (now {now})\n"
            proxy.logged(f"in front of .* at {re.escape(where)}")
            with proxy.raw() as raw:
                answer = raw.ask("RL.HIT", "k", 10, 60)
                assert is_error(answer, "NOAUTH"), answer
                assert raw.ask("AUTH", "s3cret") == "OK"
                assert raw.ask("RL.HIT", "k", 10, 60) == [0, 10, 9, -1, 60]
            with made.servers[0].raw() as raw:
                assert raw.ask("AUTH", "s3cret") == "OK"
                assert raw.ask("EXISTS", "k") == 1
            assert "s3cret" not in proxy.log()
        for password, why in (
            ("", "wants a password, and the URL has none \\(sentinel_password\\)"),
            ("?sentinel_password=wr0ng", "refuses the user or password of the URL"),
        ):
            with started(*LISTEN, f"redis+sentinel://{hosts}/mymaster{password}") as proxy:
                proxy.logged(f"no master known as mymaster: 127.0.0.1:\\d+ {why}")
                assert "wr0ng" not in proxy.log()


def test_server_password_may_be_missing_in_the_url(one_engine: str) -> None:
    """The proxy trusts the Sentinels: clients log in themselves."""
    with group(one_engine, replicas=1, sentinels=1, password="s3cret") as made:
        url = f"{made.url()}?sentinel_password=s3cret"
        with started(*LISTEN, url) as proxy, proxy.raw() as raw:
            assert raw.ask("AUTH", "s3cret") == "OK"
            assert raw.ask("RL.HIT", "k", 10, 60) == [0, 10, 9, -1, 60]


def test_unknown_master_name_is_an_error(one_engine: str) -> None:
    with group(one_engine, replicas=0, sentinels=1) as made:
        at = f"127.0.0.1:{made.sentinels[0].port}"
        why = f"no master known as nobody: {at} has no master named nobody"
        with started(*LISTEN, made.url(name="nobody")) as proxy, proxy.raw() as raw:
            proxy.logged(f"in front of +sentinel {at}/nobody: {why}; retrying")
            assert raw.ask("GET", "k") == ReplyError(f"{NEVER_SENT}sentinel {at}/nobody: {why}")


def test_redis_instead_of_a_sentinel_is_an_error(own_server: RedisServer) -> None:
    with started(*LISTEN, f"redis+sentinel://127.0.0.1:{own_server.port}/mymaster") as proxy:
        proxy.logged(r"127.0.0.1:\d+ is no Sentinel, or refuses the query: .*SENTINEL")


def test_sentinels_that_start_later_are_used(one_engine: str) -> None:
    made = Group(one_engine, replicas=0, sentinels=1)
    kept = socket.socket()  # reserves the port
    kept.bind(("127.0.0.1", made.sentinels[0].port))
    try:
        with started(*LISTEN, made.url()) as proxy, proxy.raw() as raw:
            why = rf"no master known as mymaster: 127.0.0.1:{made.sentinels[0].port} connection "
            proxy.logged(rf"WARNING Redis at sentinel \S+ does not answer \({why}refused\); hits")
            answer = raw.ask("RL.HIT", "k", 10, 60)
            assert isinstance(answer, ReplyError) and why + "refused" in str(answer)
            kept.close()
            made.start()
            wait_until(
                lambda: isinstance(raw.ask("RL.HIT", "k", 10, 60), list), "this client is served"
            )
            now = f"127.0.0.1:{made.servers[0].port}"
            proxy.logged(rf"INFO master mymaster is now {now} \(was not known\)\n")
            assert proxy.log().count("does not answer") == 1
    finally:
        kept.close()
        made.close()


async def test_failover_with_tls(tmp_path: Path) -> None:
    """Sentinel and server both use TLS, under a name that differs from their host's."""
    executable = harness.engines().get("redis-7.0")
    if executable is None:
        pytest.skip("no server with TLS on this machine")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca"))
    issued = authority.issue_cert("redis.example")
    issued.cert_chain_pems[0].write_to_path(str(tmp_path / "cert"))
    issued.private_key_pem.write_to_path(str(tmp_path / "key"))
    files = [(f"tls-{kind}-file", tmp_path / kind) for kind in ("cert", "key")]
    files += [("tls-ca-cert-file", tmp_path / "ca")]
    args = [word for option, path in files for word in (f"--{option}", str(path))]
    port, sentinel_port = harness.free_port(), harness.free_port()
    lines = [f"{option} {path}" for option, path in files]
    lines += [f"tls-port {sentinel_port}", "tls-replication yes", "tls-auth-clients no"]
    with contextlib.ExitStack() as stack:
        tls = ("--tls-port", str(port), "--tls-auth-clients", "no")
        stack.enter_context(harness.server("redis-7.0", *args, *tls))
        sentinel = Sentinel(executable, port, 1, more=tuple(lines))
        stack.callback(sentinel.close)
        sentinel.start()
        context = ssl.create_default_context()
        url = f"rediss+sentinel://127.0.0.1:{sentinel_port}/mymaster"
        for trusted, name in ((False, "redis.example"), (True, "other.example"), (True, "")):
            if trusted:
                authority.configure_trust(context)
            found = await first_look(url, ClientSide(context, name))
            assert found is None
        found = await first_look(url, ClientSide(context, "redis.example"))
        assert found == Address("127.0.0.1", port)
        ca = ("--upstream-tls-ca", str(tmp_path / "ca"))
        with started(*LISTEN, url, *ca, "--upstream-tls-name", "redis.example") as proxy:
            with proxy.raw() as raw:
                for remaining in (9, 8, 7):  # the first by its private connection, then by lane
                    answer = raw.ask("RL.HIT", "k", 10, 60)
                    assert answer == [0, 10, remaining, -1, 60]
                big = "x" * 500_000
                assert raw.ask("SET", "big", big) == "OK"
                assert raw.ask("GET", "big") == big.encode()
            assert f"(TLS) (now 127.0.0.1:{port})" in proxy.log()
        with started(*LISTEN, url, *ca) as proxy, proxy.raw() as raw:
            assert "certificate verify failed" in str(raw.ask("RL.HIT", "k", 10, 60))


async def first_look(url: str, tls: ClientSide) -> Address | None:
    """The master that a new Topology finds."""
    target = MasterTarget(url, 1.0)
    target.tls = tls
    topology = Failover(parse_upstream(url), target, lambda: None)
    topology.start()
    await asyncio.wait_for(topology.settled.wait(), harness.DEADLINE_S)
    await topology.stop()
    return topology.master.address if topology.master is not None else None


async def test_topology_stops_at_any_moment(one_engine: str) -> None:
    with group(one_engine, replicas=0, sentinels=1) as made:
        for turn in range(60):
            target = MasterTarget("sentinel", 1.0)
            topology = Failover(parse_upstream(made.url()), target, lambda: None)
            topology.start()
            await asyncio.sleep(turn * 0.0005)
            await asyncio.wait_for(topology.stop(), harness.DEADLINE_S)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        async with asyncio.timeout(harness.DEADLINE_S):
            while len(info.clients(made.sentinels[0])) > 1:
                await asyncio.sleep(0.01)


# -- connections opened during a failover ----------------------------------------------------------


class RecordingProtocol(asyncio.Protocol):
    """A protocol that records its events."""

    made = 0
    lost = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.made += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost += 1


async def test_connection_being_opened_follows_the_master(own_server: RedisServer) -> None:
    """A host whose queue of connections is full, so that it does not even refuse."""
    with socket.socket() as full, socket.socket() as one, socket.socket() as two:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for sock in (one, two):
            sock.setblocking(False)
            sock.connect_ex(full.getsockname())
        target = MasterTarget("sentinel", harness.DEADLINE_S)
        target.move(Address("127.0.0.1", full.getsockname()[1]))
        recorder = RecordingProtocol()
        opening = asyncio.ensure_future(target.connect(lambda: recorder))
        await asyncio.sleep(0.05)
        assert not opening.done()
        target.move(Address("127.0.0.1", own_server.port))
        transport = await asyncio.wait_for(opening, harness.DEADLINE_S)
        assert transport.get_extra_info("peername")[1] == own_server.port
        assert (recorder.made, recorder.lost) == (1, 0)
        transport.abort()


async def test_without_a_master_no_connection_is_opened() -> None:
    target = MasterTarget("sentinel", 1.0)
    target.unknown("no master known as mymaster: nobody answers")
    with pytest.raises(OSError, match="no master known as mymaster: nobody answers"):
        await target.connect(RecordingProtocol)


async def test_failed_connection_is_reported(own_server: RedisServer) -> None:
    target = MasterTarget("sentinel", 1.0)
    failures: list[int] = []
    target.on_failure = lambda: failures.append(1)
    target.move(Address("127.0.0.1", own_server.port))
    transport = await target.connect(RecordingProtocol)
    transport.abort()
    own_server.stop()
    with pytest.raises(OSError):
        await target.connect(RecordingProtocol)
    assert failures == [1]
