"""Clients that run one step again and again while a test does something to the servers.

with RepeatingClients(proxy.raw, 4, step) as load:
    load.wait_rounds(5)
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from tests.harness import Raw, wait_until

# Called with a connection, the number of its client, and how many rounds that client has done.
Step = Callable[[Raw, int, int], None]


class RepeatingClients:
    """Clients that repeat `step`, each on a thread and a connection of its own, until the block
    ends. An error of one client ends all of them, and is raised at the end of the block.

    connect: returns a new connection.
    rounds: completed steps, by client.
    """

    def __init__(self, connect: Callable[[], Raw], clients: int, step: Step) -> None:
        self.rounds = [0] * clients
        self._connect = connect
        self._step = step
        self._over = threading.Event()
        self._errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(clients)]

    def __enter__(self) -> RepeatingClients:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for each in self._threads:
            each.join()
        if self._errors:
            raise self._errors[0]

    def _run(self, number: int) -> None:
        try:
            with self._connect() as raw:
                while not self._over.is_set():
                    self._step(raw, number, self.rounds[number])
                    self.rounds[number] += 1
        except BaseException as error:
            self._errors.append(error)
            self._over.set()

    def wait_rounds(self, count: int) -> None:
        """Wait until each client has completed `count` more rounds, or one has failed."""
        before = min(self.rounds)
        wait_until(
            lambda: self._over.is_set() or min(self.rounds) >= before + count,
            f"each client completes {count} more rounds",
        )
