"""The supervisor of several workers: it binds, forks, replaces workers that end, and ends them all
on SIGTERM. It never reads a client's bytes.

    forked ──ready──> serving ──SIGTERM──> leaving ──┐
       ^                 └──────────died─────────────┴──> forked anew, at once or after a pause

The listening sockets belong to the supervisor and outlive every worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import sys
import time
from types import FrameType
from typing import Final, NoReturn

from rlproxy.config.config import Config, ConfigError, StartError
from rlproxy.net import tls_contexts
from rlproxy.observability import logs
from rlproxy.observability.logs import log
from rlproxy.observability.shared_memory import HALF, SharedMemory
from rlproxy.process.channel import Channel, Report
from rlproxy.process.intake import AWAY
from rlproxy.process.resources import Resources
from rlproxy.process.restart_policy import MAX_FAILURES, RestartPolicy, ending
from rlproxy.process.server import CUT, ENDING, Server, run
from rlproxy.upstream.embedded import end_with_parent

KILL_S: Final = 3.0  # seconds between the drain timeout and SIGKILL
LOOK_S: Final = 0.05  # seconds between two looks at signals, and at workers that have ended

_OURS: Final = (*ENDING, signal.SIGHUP, CUT)


class _Worker:
    """The state of one worker: of its process, or of the pause before the next one."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.name = f"worker {number + 1}"
        self.pid = 0  # 0: none
        self.ready = False
        self.restarts = RestartPolicy(time.monotonic)
        self.restarts.due = 0.0


class Supervisor:
    """The workers of a proxy."""

    def __init__(self, config: Config, resources: Resources) -> None:
        self._config = config
        self._resources = resources
        self._hung_up = False  # SIGHUP was received and is not handled yet
        self._pid = os.getpid()
        self._workers = [_Worker(number) for number in range(config.workers)]
        self._signals = 0  # number of signals to stop
        self._failed = ""  # reason to end without a signal

    def run(self) -> None:
        """Keep the workers running until SIGTERM or SIGINT, then end them.

        Raises StartError if the workers can't start, can't be kept running, or end with an error.
        """
        resources = self._resources
        for number in ENDING:
            signal.signal(number, self._stop)
        signal.signal(signal.SIGHUP, self._hang_up)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if ignored, children leave no exit codes
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        try:
            self._open_channel()
            asyncio.run(resources.start())
            while not self._signals and not self._failed:
                for worker in self._workers:
                    if worker.restarts.due <= time.monotonic():
                        self._start(worker)
                self._reports.poll(LOOK_S)
                if self._signals:
                    break
                if self._hung_up:
                    self.reload()
                ended = self._ended()
                # a worker that has ended sent its last report before
                while self._reports.poll():
                    self._received(self._reports.recv())
                for worker, code in ended:
                    self._retry(worker, ending(code))
                self._failed = self._failed or resources.check()
        finally:
            resources.listeners.close()
            self._end()
        if self._failed:
            raise StartError(self._failed)

    def _open_channel(self) -> None:
        try:
            self._accepted = SharedMemory(1)  # the settings, for workers that get SIGHUP
            self._reports, self._report_to = multiprocessing.Pipe(duplex=False)
        except OSError as error:
            raise StartError(f"cannot start: {error.strerror or error}") from None
        self._accept(self._config)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self._signals += 1

    def _hang_up(self, _number: int, _frame: FrameType | None) -> None:
        self._hung_up = True

    def reload(self) -> None:
        """Read the settings again; if they are valid, have every worker take them.

        Called after SIGHUP. Workers do not read the file: it may have changed again.
        """
        self._hung_up = False
        self._config = self._resources.reload(self._config, self._apply)

    def _apply(self, config: Config) -> None:
        tls_contexts.contexts(config)  # raises ConfigError; the workers make their own
        self._accept(config)
        self._signal(signal.SIGHUP)

    def _accept(self, config: Config) -> None:
        """Publish settings for the workers. Raises ConfigError."""
        if not self._accepted.publish(0, config):
            raise ConfigError([f"the settings take more than {HALF >> 20} MB"])

    # -- starting ---------------------------------------------------------------------------------

    def _start(self, worker: _Worker) -> None:
        # Until the child has reset its handlers, a signal would run the supervisor's there.
        signal.pthread_sigmask(signal.SIG_BLOCK, _OURS)
        try:
            worker.pid = os.fork()
            if worker.pid == 0:
                self._become(worker)
        except OSError as error:
            self._retry(worker, f"cannot start: {error.strerror}")
            return
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _OURS)
        worker.ready = False
        worker.restarts.started()

    def _become(self, worker: _Worker) -> NoReturn:
        """Run the process of a worker, from the fork to its exit."""
        code = 1
        channel = Channel(worker.number, self._report_to, self._accepted, self._pid)
        try:
            for number in (signal.SIGTERM, signal.SIGHUP, CUT):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C the supervisor sends SIGTERM
            # SIGHUP stays blocked until the worker's server serves.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, set(_OURS) - {signal.SIGHUP})
            end_with_parent()
            self._reports.close()
            if self._resources.admin is not None:
                self._resources.admin.forget()
            if not channel.check():
                logs.configure(self._config.log_level, self._config.log_format, worker.number + 1)
                run(Server(self._config, worker.number, self._resources, channel).run())
            code = 0
        except StartError as error:
            channel.failed(str(error))
        except BaseException:
            log.critical("unexpected_error", "unexpected error", exc_info=True)
        finally:
            with contextlib.suppress(OSError):
                sys.stderr.flush()
            os._exit(code)

    # -- main loop --------------------------------------------------------------------------------

    def _received(self, report: Report) -> None:
        """Act on a worker's report."""
        worker = self._workers[report.worker]
        worker.ready = not report.failed
        if self._resources.up_at is None:
            if report.failed:
                self._failed = report.text
            elif all(each.ready for each in self._workers):
                self._resources.ready(report.text)
        elif report.failed:
            why = f"{worker.name}: {report.text}"
            log.error("failed", "failed: {reason}", reason=why)
        else:
            text = "worker {worker} (process {process}) serves"
            log.info("worker_serves", text, worker=worker.number + 1, process=worker.pid)

    def _ended(self) -> list[tuple[_Worker, int]]:
        """Return the workers that have ended since: list of (worker, code as for ending())."""
        found = []
        for worker in self._workers:
            if worker.pid:
                pid, status = os.waitpid(worker.pid, os.WNOHANG)
                if pid:
                    found.append((worker, os.waitstatus_to_exitcode(status)))
        return found

    def _retry(self, worker: _Worker, how: str) -> None:
        """Schedule the start of a worker that ended or did not start; give up if none lasts."""
        pid, worker.pid = worker.pid, 0
        if self._resources.up_at is None:
            self._failed = self._failed or f"{worker.name} {how} before the proxy was ready"
            return
        pause_s = worker.restarts.ended()
        if all(other.restarts.hopeless() for other in self._workers):
            self._failed = f"no worker lasts: {worker.name} {how}, as all did {MAX_FAILURES} times"
            return
        # A worker that starts at once counts as empty, so that new clients are left to it.
        # Otherwise the remaining workers would take and keep its share.
        self._resources.client_counts.clients[worker.number] = AWAY if pause_s else 0
        log.warning(
            "worker_died",
            "worker {worker} (process {process}) {reason}; it is started again {when}",
            worker=worker.number + 1,
            process=pid,
            reason=how,
            when=f"in {pause_s:g} s" if pause_s else "at once",
        )

    # -- the end ----------------------------------------------------------------------------------

    def _end(self) -> None:
        """Make all workers drain, and wait until they have ended.

        A further signal cuts the remaining clients. KILL_S after the drain timeout, workers that
        still run are killed.
        """
        self._signals = max(self._signals, 1)
        seen = 1
        self._signal(signal.SIGTERM)
        limit_s = self._config.drain_timeout_s + KILL_S
        deadline = time.monotonic() + limit_s
        while any(worker.pid for worker in self._workers):
            if self._signals > seen:
                seen = self._signals
                self._signal(CUT)
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                self._signal(signal.SIGKILL)
            while self._reports.poll(LOOK_S):
                self._reports.recv()
            for worker, code in self._ended():
                worker.pid = 0
                if code in (0, -signal.SIGTERM, -CUT) or self._failed:
                    continue
                how = f"{ending(code)} at the signal to stop"
                if left_s <= 0 and code == -signal.SIGKILL:
                    how = f"was killed: it had not ended {limit_s:g} s after the signal to stop"
                self._failed = f"{worker.name} {how}"

    def _signal(self, number: int) -> None:
        for worker in self._workers:
            if worker.pid:
                os.kill(worker.pid, number)
