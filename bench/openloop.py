"""The open-loop generator: requests leave when they are due, whether replies have come or not.

Latency counts from the time a request was due, not from when it could be written. So the wait that
a stall causes for later requests is counted (no coordinated omission). It is one thread with one
selector. It also measures how late requests left, and its share of a core.
"""

from __future__ import annotations

import gc
import math
import random
import select
import selectors
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .client import Client
from .errors import BenchError

READ_BYTES: Final = 1 << 16
SENT_AT_ONCE: Final = 8  # requests sent before replies are read again
LEAD_NS: Final = 20_000_000  # nanoseconds from the last preparation to the schedule's beginning
NS: Final = 1_000_000_000
# Nanoseconds by which Linux may delay the end of a wait, else 50,000.
SLACK: Final = Path("/proc/self/timerslack_ns")


@dataclass(frozen=True)
class Timing:
    """The timing of one run: nanoseconds of each request that counts, in order of the schedule."""

    latency_ns: Sequence[int]  # from due to answered
    lag_ns: Sequence[int]  # from due to written
    elapsed_s: float  # from the due time of the first that counts to the last reply
    cpu_s: float  # CPU time of the generator in the whole run
    whole_s: float  # length of the whole run, warm-up included

    def rate(self) -> float:
        """Return replies per second."""
        return len(self.latency_ns) / self.elapsed_s

    def cpu_share(self) -> float:
        """Return the share of a core, 0 to 1, that the generator used."""
        return self.cpu_s / self.whole_s


def schedule(rate: float, seconds: float, seed: int = 1) -> list[int]:
    """Return the times at which requests are due, in nanoseconds from the beginning.

    They are a Poisson process of `rate` per second, like the requests of many independent clients.
    The same seed gives the same times.
    """
    dice = random.Random(seed)
    end = seconds * NS
    found: list[int] = []
    at = 0.0
    while (at := at + dice.expovariate(rate) * NS) < end:
        found.append(int(at))
    return found


def percentile(ordered: Sequence[int], share: float) -> int:
    """Return the least of the ascending values that a share (0 to 1) of them does not exceed.

    Raises BenchError if there is none.
    """
    if not ordered:
        raise BenchError("no request was counted: the run was too short")
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def run(
    port: int,
    prepared: Sequence[bytes],
    due_ns: Sequence[int],
    clients: int,
    warm_up_s: float,
    limit_s: float,
) -> Timing:
    """Send one of `prepared` at each of `due_ns`, over `clients` connections in turn.

    Requests due in the first `warm_up_s` seconds don't count.
    Raises BenchError on an error reply, a closed connection or after `limit_s` seconds.
    """
    with ExitStack() as stack:
        _set_slack("1")
        stack.callback(_set_slack, "0")  # the default
        made = [stack.enter_context(Client(port)) for _ in range(clients)]
        selector = stack.enter_context(selectors.DefaultSelector())
        for number, client in enumerate(made):
            selector.register(client, selectors.EVENT_READ, number)
        stack.callback(gc.enable)
        gc.collect()
        gc.disable()  # a collection would delay all requests
        run = _Run(made, prepared, due_ns, selector)
        try:
            run.drive(limit_s)
        except OSError as error:
            raise BenchError(f"a connection was lost: {error}") from None
    first = next((at for at, due in enumerate(due_ns) if due >= warm_up_s * NS), len(due_ns))
    begin_ns = due_ns[first] if first < len(due_ns) else 0
    return Timing(
        run.latency_ns[first:],
        run.lag_ns[first:],
        max(1, run.end_ns - begin_ns) / NS,
        run.cpu_s,
        run.end_ns / NS,
    )


def _set_slack(ns: str) -> None:
    with suppress(OSError):  # not on other systems
        SLACK.write_text(ns)


class _Run:
    """One run. Request number n goes to connection n % clients, so a reply's number is known."""

    def __init__(
        self,
        clients: Sequence[Client],
        prepared: Sequence[bytes],
        due_ns: Sequence[int],
        selector: selectors.DefaultSelector,
    ) -> None:
        self.latency_ns = [0] * len(due_ns)
        self.lag_ns = [0] * len(due_ns)
        self.end_ns = 0
        self.cpu_s = 0.0
        self._clients = clients
        self._prepared = prepared
        self._due_ns = due_ns
        self._selector = selector
        self._numbers = list(range(len(clients)))  # number of each connection's next reply
        self._held: dict[int, bytes] = {}  # bytes that the kernel did not accept, by connection
        self._sent = 0
        self._answered = 0
        self._begin_ns = 0

    def drive(self, limit_s: float) -> None:
        """Send all requests and wait for all replies."""
        due_ns, total = self._due_ns, len(self._due_ns)
        self._begin_ns = time.monotonic_ns() + LEAD_NS
        end_ns = int(limit_s * NS)
        cpu_s = time.process_time()
        selectors = [self._selector]  # one itself rounds its timeout up to a millisecond
        while self._answered < total:
            self._send()
            now_ns = time.monotonic_ns() - self._begin_ns
            next_ns = due_ns[self._sent] if self._sent < total else now_ns + NS
            wait_s = 0 if self._held else max(0, next_ns - now_ns) / NS
            if select.select(selectors, [], [], wait_s)[0]:
                for key, _ in self._selector.select(0):
                    self._read(key.data)
            if now_ns > end_ns:
                raise BenchError(f"a run took more than {limit_s:g} s")
        self.cpu_s = time.process_time() - cpu_s
        self.end_ns = time.monotonic_ns() - self._begin_ns

    def _send(self) -> None:
        """Send the requests that are due, at most SENT_AT_ONCE."""
        for number in list(self._held):
            self._write(number, b"")
        sent, due_ns = self._sent, self._due_ns
        for number in range(sent, min(sent + SENT_AT_ONCE, len(due_ns))):
            late_ns = time.monotonic_ns() - self._begin_ns - due_ns[number]
            if late_ns < 0:
                break
            self.lag_ns[number] = late_ns
            self._write(number % len(self._clients), self._prepared[number % len(self._prepared)])
            self._sent += 1

    def _write(self, number: int, request: bytes) -> None:
        data = self._held.pop(number, b"") + request
        try:
            taken = self._clients[number].sock.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            taken = 0
        if taken < len(data):
            self._held[number] = data[taken:]

    def _read(self, number: int) -> None:
        replies = len(self._clients[number].receive())
        now_ns = time.monotonic_ns() - self._begin_ns
        for _ in range(replies):
            request = self._numbers[number]
            self.latency_ns[request] = now_ns - self._due_ns[request]
            self._numbers[number] = request + len(self._clients)
        self._answered += replies
