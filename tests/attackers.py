"""Hostile clients, and their cost for other clients: `python -m tests.attackers`.

Each attack runs in its own process against a proxy in front of a server with a password, while
well-behaved clients hit and GET/SET, one request at a time. Printed for each attack: the p99
latency of these clients as a ratio to the run without the attack (a median of pairs, one right
after the other); the same ratio for an attack on the server itself (direct); the CPU shares of
proxy, server and attacker; the proxy's peak memory above its base, in total and per connection of
the attack; the memory it kept; and the number of lines it logged.

    python -m tests.attackers [--rounds N] [--seconds S] [--only NAME] [--elsewhere | --apart]
                              [-- OPTIONS]

An attacker that keeps a CPU busy takes it from the other processes of the machine: then every
client's p99 grows, whatever serves it. With --elsewhere the attacker gets only CPU time that the
others leave, as if it ran on another machine. With --apart it has one CPU and the other processes
have the rest, with and without the attack. The first second of an attack is its worst: --seconds
1.2 measures that, 6 the steady state. OPTIONS are the proxy's.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import selectors
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rlproxy.ratelimit import scripts
from rlproxy.ratelimit.grammar import Grammar
from rlproxy.ratelimit.scripts import LOADED
from rlproxy.resp import encoding

from tests import harness
from tests.harness import ROOT, Proxy, RedisServer, command
from tests.processes import cpu_s, forget_peak, peak

KB: Final = 1 << 10
MB: Final = 1 << 20
PASSWORD: Final = "s3"
LOGIN: Final = command("AUTH", PASSWORD)
DESCRIPTORS: Final = 20_000


def hit(key: str, direct: bool) -> bytes:
    """A hit, as a client of the proxy or of the server writes it."""
    words = (b"1000000", b"3600", b"ALGO", b"FIXED")
    if not direct:
        return command("RL.HIT", key, *words)
    rule = Grammar(scripts.load()).rule(b"", b"RL.HIT", [key.encode(), *words])
    return rule.words(LOADED) + encoding.bulk(key.encode()) + rule.tail


class Attacker:
    """Sockets to the proxy (or the server: `direct`), and the state of an attack."""

    def __init__(self, port: int, scale: float, direct: bool) -> None:
        self.port = port
        self.hit = hit("attacked", direct)
        self.scale = scale
        self.socks: list[socket.socket] = []
        self.done = 0

    def many(self, number: int) -> int:
        """`number`, scaled down for a quick test."""
        return max(1, int(number * self.scale))

    def connect(self, greeting: bytes = b"") -> socket.socket:
        """Open a connection whose first command is answered."""
        sock = socket.create_connection(("127.0.0.1", self.port), 10)
        if greeting:
            sock.sendall(greeting)
            sock.recv(64)
        self.socks.append(sock)
        return sock

    def logged_in(self, count: int) -> list[socket.socket]:
        """Connections of authenticated clients."""
        return [self.connect(LOGIN) for _ in range(self.many(count))]


def push(sock: socket.socket, data: bytes, most: int, seconds: float) -> int:
    """Send `data` repeatedly within `seconds`, while the socket accepts it; return the number of
    bytes.
    """
    sock.settimeout(0.05)
    sent = 0
    end = time.monotonic() + seconds
    view = memoryview(data)
    at = 0
    while sent < most and time.monotonic() < end:
        try:
            count = sock.send(view[at:])
        except TimeoutError:
            break  # the peer reads no more
        except OSError:
            break  # closed
        sent += count
        at = (at + count) % len(data)
    return sent


Attack = Callable[[Attacker], Iterator[None]]
# An attack is a generator: the code before its first yield starts it, and each further step
# continues it until the generator is dropped.


def one_byte_a_second(all_: Attacker) -> Iterator[None]:
    """1,000 connections that send one byte a second each."""
    words = LOGIN + command("SET", "slow", "x" * 200) * 10
    socks = [all_.connect() for _ in range(all_.many(1000))]
    at = 0
    while True:
        began = time.monotonic()
        for number, sock in enumerate(socks):
            sock.send(words[at : at + 1])
            if number % 50 == 0:
                yield
        at = (at + 1) % len(words)
        while time.monotonic() < began + 1:
            time.sleep(0.01)
            yield


def never_reading(all_: Attacker) -> Iterator[None]:
    """100 connections that request 200 values of 1 MB each and read nothing."""
    first = all_.connect(LOGIN)
    first.sendall(command("SET", "mb", b"x" * MB))
    first.recv(64)
    for sock in all_.logged_in(100):
        push(sock, command("GET", "mb") * 20, 1000, 0.2)
    while True:
        yield
        time.sleep(0.01)


def never_reading_hits(all_: Attacker) -> Iterator[None]:
    """20 connections that send hits endlessly and read nothing."""
    socks = all_.logged_in(20)
    while True:
        for sock in socks:
            push(sock, all_.hit * 1000, 256 * KB, 0.05)
            yield


def stalled_subscribers(all_: Attacker) -> Iterator[None]:
    """100 subscribers that stall while a publisher continues."""
    for sock in all_.logged_in(100):
        sock.sendall(command("SUBSCRIBE", "news"))
    publisher = all_.connect(LOGIN)
    publisher.settimeout(10)
    while True:
        publisher.sendall(command("PUBLISH", "news", "x" * 16 * KB))
        publisher.recv(64)
        all_.done += 1
        yield
        time.sleep(0.002)


def large_messages(all_: Attacker) -> Iterator[None]:
    """100 subscribers that read ten messages of 256 KB a second."""
    readable = selectors.DefaultSelector()
    for sock in all_.logged_in(100):
        sock.sendall(command("SUBSCRIBE", "large"))
        readable.register(sock, selectors.EVENT_READ)
    publisher = all_.connect(LOGIN)
    message = command("PUBLISH", "large", "x" * 256 * KB)
    buffer = bytearray(256 * KB)
    while True:
        next_s = time.monotonic() + 0.1
        publisher.sendall(message)
        publisher.recv(64)
        all_.done += 1
        while (left_s := next_s - time.monotonic()) > 0:
            for key, _ in readable.select(left_s):
                os.readv(key.fd, [buffer])
            yield


def huge_headers(all_: Attacker) -> Iterator[None]:
    """1,000 connections with headers of gigabytes, or malformed ones."""
    headers = [
        b"*2147483647\r\n",
        b"*2147483647\r\n$3\r\nSET\r\n",
        b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$536870912\r\n",
        b"*3\r\n$6\r\nRL.HIT\r\n$536870912\r\n",
        b"*4\r\n$6\r\nRL.HIT\r\n$1\r\nk\r\n$65536\r\n",
        b"*1048576\r\n$4\r\nAUTH\r\n",
        b"*2\r\n$4\r\nAUTH\r\n$536870912\r\nx",
        b"*2\r\n*2\r\n*2\r\n",
        b"*-2147483648\r\n" * 50,
        b"*1\r\n$-1\r\n",
        b"$536870912\r\n",
        b"*0\r\n" * 1000,
    ]
    made = 0
    while True:
        for header in headers:
            if made < all_.many(1000):
                sock = all_.connect(LOGIN if made & 1 else b"")
                sock.sendall(header)
                made += 1
        yield
        if made >= all_.many(1000):
            time.sleep(0.01)


def endless_line(all_: Attacker) -> Iterator[None]:
    """A line of 1 GB, in pieces; sent again from its beginning when it is cut off."""
    piece = b"x" * 256 * KB
    while True:
        sock = all_.connect(LOGIN)
        while (sent := push(sock, piece, MB, 1)) == MB:
            all_.done += sent
            yield
        all_.done += sent
        sock.close()
        all_.socks.remove(sock)
        yield


def endless_value(all_: Attacker) -> Iterator[None]:
    """A value of 512 MB plus one byte, in pieces."""
    sock = all_.connect(LOGIN)
    while True:
        sock.settimeout(10)
        sock.sendall(b"*3\r\n$3\r\nSET\r\n$3\r\nbig\r\n$%d\r\n" % (512 * MB))
        left = 512 * MB
        while left:
            sent = push(sock, b"x" * 256 * KB, min(left, MB), 10)
            left -= sent
            all_.done += sent
            yield
        sock.sendall(b"\r\n")


def a_million_hits(all_: Attacker) -> Iterator[None]:
    """One client's pipeline of a million hits, with the replies read."""
    sock = all_.connect(LOGIN)
    sock.setblocking(False)
    data = all_.hit * 2000
    at = 0
    while True:
        with contextlib.suppress(BlockingIOError):
            at = (at + sock.send(memoryview(data)[at:])) % len(data)
        with contextlib.suppress(BlockingIOError):
            all_.done += len(sock.recv(MB)) // 40
        yield


def reconnecting(all_: Attacker) -> Iterator[None]:
    """Connections opened and dropped, alternating FIN and RST, within a request."""
    while True:
        said = [
            b"",
            LOGIN[:9],
            LOGIN,
            LOGIN + all_.hit * 20,
            LOGIN + command("BLPOP", "none", 0) + all_.hit,
        ]
        for number, words in enumerate(said):
            sock = socket.create_connection(("127.0.0.1", all_.port), 10)
            if words:
                sock.sendall(words)
            if number & 1:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
            all_.done += 1
        yield


def unauthenticated(all_: Attacker) -> Iterator[None]:
    """1,000 unauthenticated clients that send as much as is accepted."""
    fill = [
        b"x" * 65_000,  # an endless line
        b"*4\r\n$6\r\nRL.HIT\r\n$65000\r\n" + b"x" * 64_900,
        b"*2\r\n$4\r\nAUTH\r\n$16384\r\n" + b"x" * 16_000,
        command("RL.HIT", "x" * 60_000, 1, 1) * 8,
        command("RL.HIT", "wrong") * 20_000,
        command("AUTH", "x" * 500) * 1000,
        command("PING") * 20_000,
    ]
    made = 0
    while True:
        for data in fill:
            if made < all_.many(1000):
                push(all_.connect(), data, len(data), 0.1)
                made += 1
            yield
        if made >= all_.many(1000):
            time.sleep(0.01)


def wrong_passwords(all_: Attacker) -> Iterator[None]:
    """50 clients that try passwords without a pause."""
    socks = [all_.connect() for _ in range(all_.many(50))]
    while True:
        for number, sock in enumerate(socks):
            sock.sendall(command("AUTH", "default", f"guess {all_.done} {number}"))
        for sock in socks:
            sock.recv(256)
            all_.done += 1
        yield


def half_closed(all_: Attacker) -> Iterator[None]:
    """1,000 clients that block or subscribe, and close their sending side."""
    made = 0
    while True:
        if made < all_.many(1000):
            sock = all_.connect(LOGIN)
            words = (command("SUBSCRIBE", "x"), command("GET", "mb"), all_.hit * 50, all_.hit[:-4])[
                made % 4
            ]
            sock.sendall(words)
            sock.shutdown(socket.SHUT_WR)
            made += 1
            if made % 20 == 0:
                yield
        else:
            yield
            time.sleep(0.01)


def behind_a_block(all_: Attacker) -> Iterator[None]:
    """20 clients that block in Redis, followed by endless hits."""
    hits = (all_.hit + command("RL.HIT", "wrong")) * 500
    for sock in all_.logged_in(20):
        # It ends with an RST: an end of file would stay behind unread data.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.sendall(command("BLPOP", "none", 0))
        push(sock, hits, 16 * MB, 0.5)
        yield
    while True:
        yield
        time.sleep(0.01)


@dataclass(frozen=True)
class Row:
    """An attack, and the maximum memory that one of its connections may cost the proxy, in bytes.

    A connection's state alone takes 8 kB; see `bound`.
    """

    attack: Attack
    bound: int
    least: int = 8 * MB  # in total: temporary buffers and the allocator's reserve

    @property
    def name(self) -> str:
        return self.attack.__name__


STATE: Final = 16 * KB  # a session, its sockets, transports and the open command
READ: Final = 256 * KB  # one read of uvloop
HELD: Final = 256 * KB + READ  # session.MAX_UNREAD, and the read that passed it
WRITTEN: Final = 64 * KB + HELD + 256 * KB  # the high-water mark, the data in hand, MAX_EXPANDED
UNREAD: Final = 64 * KB + READ  # the high-water mark, and the read that passed it
SLOTS: Final = 65536 * 224  # reply_slots.MAX_SLOTS, each with its own reply
WHOLE: Final = STATE + HELD + WRITTEN + UNREAD

ROWS: Final = [
    Row(one_byte_a_second, STATE),
    Row(never_reading, STATE + UNREAD),
    Row(never_reading_hits, WHOLE + SLOTS),
    Row(stalled_subscribers, STATE + UNREAD),
    Row(large_messages, STATE + UNREAD),
    Row(huge_headers, STATE),
    Row(endless_line, WHOLE),
    Row(endless_value, WHOLE),
    Row(a_million_hits, WHOLE),
    Row(reconnecting, 0, 24 * MB),
    Row(unauthenticated, STATE + READ),  # they are rarely scheduled: the data waits
    Row(wrong_passwords, STATE),
    Row(half_closed, STATE),
    Row(behind_a_block, WHOLE + SLOTS),
]


# -- the attack itself ----------------------------------------------------------------------------


def attack(name: str, port: int, scale: float, direct: bool) -> None:
    """Run until stdin ends; print `ready` once the attack runs, and its result at the end."""
    limit_files()
    (row,) = (row for row in ROWS if row.name == name)
    all_ = Attacker(port, scale, direct)
    steps = row.attack(all_)
    watch = selectors.DefaultSelector()
    watch.register(sys.stdin, selectors.EVENT_READ)
    began = time.monotonic()
    announced = False
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        while not watch.select(0):
            next(steps)
            if not announced and time.monotonic() > began + 0.3:
                announced = True
                print("ready", len(all_.socks), flush=True)
    print("done", len(all_.socks), all_.done, flush=True)
    os._exit(0)  # closing a thousand sockets one by one takes the kernel long


def limit_files() -> None:
    """Raise the limit of open files to its maximum."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


THEIRS: Final[list[int]] = []  # the attackers' CPU, while it is reserved
# not empty: attackers get only CPU time that no other process needs
LEFT_OVER: Final[list[bool]] = []


def keep_apart() -> None:
    """Reserve one CPU for attackers; this process and its other children use the rest."""
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        raise SystemExit("--apart: there is only one CPU")
    os.sched_setaffinity(0, cpus[:-1])
    THEIRS.append(cpus[-1])


@contextlib.contextmanager
def attacking(
    name: str, port: int, scale: float, direct: bool, found: Found | None = None, *pids: int
) -> Iterator[list[str]]:
    """Run the attack for the block; its result is available afterwards. `found` receives the CPU
    shares of the processes `pids` and of the attacker.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.attackers", "--attack", name, str(port), str(scale)]
        + [str(int(direct))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    if THEIRS:
        os.sched_setaffinity(process.pid, THEIRS)
    if LEFT_OVER:
        os.sched_setscheduler(process.pid, os.SCHED_IDLE, os.sched_param(0))
    result: list[str] = []
    try:
        assert process.stdout.readline().startswith("ready"), name
        began = time.monotonic()
        before = [cpu_s(pid) for pid in (*pids, process.pid)]
        yield result
        if found is not None:
            took = time.monotonic() - began
            after = [cpu_s(pid) for pid in (*pids, process.pid)]
            found.cpu.append(tuple((b - a) / took for a, b in zip(before, after, strict=True)))
        assert process.poll() is None, f"{name} ended early"
        process.stdin.close()
        result += process.stdout.readline().split()
        process.wait(20)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


# -- other clients ---------------------------------------------------------------------------------


class OtherClients:
    """Well-behaved clients: each waits for its reply; all are authenticated."""

    def __init__(self, to: Proxy | RedisServer, count: int = 4) -> None:
        self.socks = []
        self._direct = isinstance(to, RedisServer)
        for number in range(count):
            raw = to.raw()
            assert raw.ask("AUTH", PASSWORD) == "OK"
            self.socks.append(raw)
            assert raw.ask("SET", f"own:{number}", "v") == "OK"
        self.served = 0

    def close(self) -> None:
        for raw in self.socks:
            raw.close()

    def serve(self, seconds: float) -> float:
        """Send requests for `seconds`; return their p99 in milliseconds. Fails if one gets no
        answer.
        """
        took = []
        rows = []
        for number, raw in enumerate(self.socks):
            rows.append((raw, hit(f"good:{number}", self._direct)))
            rows.append((raw, command("SET", f"own:{number}", "value")))
            rows.append((raw, command("GET", f"own:{number}")))
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for raw, words in rows:
                began = time.monotonic()
                raw.send(words)
                reply = raw.reply()
                took.append(time.monotonic() - began)
                assert not isinstance(reply, Exception), (words, reply)
            time.sleep(0.001)
        self.served += len(took)
        return 1000 * statistics.quantiles(took, n=100)[98]


@dataclass
class Found:
    """The cost of an attack."""

    name: str
    connections: int = 0
    ratios: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)
    alone_ms: list[float] = field(default_factory=list)
    direct: list[float] = field(default_factory=list)  # the ratios of the server alone
    served: int = 0
    most: int = 0  # bytes of memory above the proxy's base
    kept: int = 0  # the same after the attack
    cpu: list[tuple[float, ...]] = field(default_factory=list)  # of proxy, server, attacker: shares
    lines: list[str] = field(default_factory=list)


@contextlib.contextmanager
def parts(engine: str, *args: str) -> Iterator[tuple[RedisServer, Proxy]]:
    """A server with a password, and a proxy in front of it."""
    limit_files()
    options = ("--requirepass", PASSWORD, "--maxclients", "15000")
    with harness.server(engine, *options) as server:
        url = f"redis://:{PASSWORD}@127.0.0.1:{server.port}"
        with harness.proxy(url, *args) as proxy:
            yield server, proxy


def endure(
    proxy: Proxy,
    server: RedisServer,
    row: Row,
    rounds: int,
    seconds: float,
    scale: float,
    alone_s: float | None = None,
) -> Found:
    """Run the attack `rounds` times, each next to a run without it, equally long or `alone_s`."""
    alone_s = seconds if alone_s is None else alone_s
    found = Found(row.name)
    others = OtherClients(proxy)
    others.serve(min(alone_s, 0.3))
    before = proxy.memory()
    logged = len(proxy.read_log().splitlines())
    forget_peak(proxy.pid)
    for _ in range(rounds):
        alone = others.serve(alone_s)
        pids = (proxy.pid, server.pid)
        with attacking(row.name, proxy.port, scale, False, found, *pids) as result:
            beside = others.serve(seconds)
        found.connections = int(result[1])
        found.alone_ms.append(alone)
        found.p99_ms.append(beside)
        found.ratios.append(beside / alone)
    found.most = max(0, peak(proxy.pid) - before)
    harness.wait_until(lambda: clients_of(proxy) <= len(others.socks) + 4, "they are all gone", 120)
    others.serve(min(seconds, 0.3))
    found.kept = max(0, proxy.memory() - before)
    found.served = others.served
    found.lines = proxy.read_log().splitlines()[logged:]
    others.close()
    return found


def endure_directly(server: RedisServer, row: Row, rounds: int, seconds: float) -> list[float]:
    """Run the same attack on the server itself; return the ratios of its clients' p99."""
    others = OtherClients(server)
    ratios = []
    for _ in range(rounds):
        alone = others.serve(seconds)
        with attacking(row.name, server.port, 1.0, True):
            ratios.append(others.serve(seconds) / alone)
    others.close()
    return ratios


def clients_of(proxy: Proxy) -> int:
    """The number of TCP connections to the proxy's port whose sockets it still has."""
    port = f":{proxy.port:04X}"
    rows = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return sum(1 for row in rows if row.split()[1].endswith(port) and row.split()[3] == "01")


HEAD: Final = (
    f"{'attack':20} {'conns':>6} {'p99 alone':>10} {'beside':>8} {'ratio':>6} {'direct':>6} "
    f"{'CPU of proxy, server, attack':>28} "
    f"{'MB most':>8} {'kB each':>8} {'bound':>8} {'MB kept':>8} {'log':>4}"
)


def line(row: Row, found: Found) -> str:
    """A readable line with medians."""
    each = found.most / max(1, found.connections)
    shares = "  ".join(f"{statistics.median(share):4.0%}" for share in zip(*found.cpu, strict=True))
    return (
        f"{found.name:20} {found.connections:6} {statistics.median(found.alone_ms):8.2f}ms "
        f"{statistics.median(found.p99_ms):6.2f}ms {statistics.median(found.ratios):6.2f} "
        f"{statistics.median(found.direct or [0.0]):6.2f} {shares:>28} "
        f"{found.most / MB:8.1f} {each / KB:8.1f} {row.bound / KB:8.0f} {found.kept / MB:8.1f} "
        f"{len(found.lines):4}"
    )


def main() -> None:
    """See the module docstring."""
    parser = argparse.ArgumentParser(prog="python -m tests.attackers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each half of a round")
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of connections")
    parser.add_argument("--only", action="append", choices=[row.name for row in ROWS])
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--apart", action="store_true", help="the attacker has a separate CPU")
    where.add_argument(
        "--elsewhere", action="store_true", help="the attacker has only the time the others leave"
    )
    parser.add_argument("--engine", default=sorted(harness.engines())[-1])
    parser.add_argument(
        "--attack", nargs=4, metavar=("NAME", "PORT", "SCALE", "DIRECT"), help="(used internally)"
    )
    parser.add_argument("proxy", nargs="*", help="options of the proxy")
    args = parser.parse_args()
    if args.attack:
        name, port, scale, direct = args.attack
        attack(name, int(port), float(scale), direct == "1")
        return
    if args.apart:
        keep_apart()
    if args.elsewhere:
        LEFT_OVER.append(True)
    print(f"{args.engine}, {args.rounds} rounds of {args.seconds:g} s, {os.cpu_count()} CPUs")
    print(HEAD, flush=True)
    for row in ROWS:
        if not args.only or row.name in args.only:
            with parts(args.engine, *args.proxy) as (server, proxy):
                found = endure(proxy, server, row, args.rounds, args.seconds, args.scale)
            with parts(args.engine, *args.proxy) as (server, _):  # which has loaded the scripts
                found.direct = endure_directly(server, row, args.rounds, args.seconds)
            print(line(row, found), flush=True)
            for each in found.lines[:3]:
                print(f"    {each}")


if __name__ == "__main__":
    main()
