"""Proxies that start by fork: one process has imported the proxy, which is most of the work of a
start.

Run as a program: `python -m tests.prefork DESCRIPTOR`, of a socket on which it takes requests.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time

MAX_BYTES = 1 << 20  # of a request
PAUSE_S = 0.005  # between two looks at whether a process has ended


def start(
    args: list[str], environment: dict[str, str], output: int, log: int
) -> Forked | subprocess.Popen[bytes]:
    """Start `python -m rlproxy ARGS` with an empty stdin, by fork on Linux.

    environment: the RLPROXY_INTERPRETED in it has no effect on a forked process.
    output, log: the descriptors of files for stdout and stderr.
    """
    if sys.platform == "linux":
        return Forked(args, environment, output, log)
    command = [sys.executable, "-m", "rlproxy", *args]
    return subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=log
    )


class Forked:
    """A forked proxy, with the interface of Popen.

    It inherits the limit of open files and the CPUs of this process.
    """

    def __init__(self, args: list[str], environment: dict[str, str], output: int, log: int) -> None:
        self.returncode: int | None = None
        request = {
            "args": args,
            "environment": environment,
            "files": resource.getrlimit(resource.RLIMIT_NOFILE),
            "cpus": list(os.sched_getaffinity(0)),
        }
        socket.send_fds(_server(), [json.dumps(request).encode()], [output, log])
        self.pid = int(_server().recv(MAX_BYTES))

    def poll(self) -> int | None:
        """Return its exit code, None while it runs."""
        if self.returncode is None:
            _server().send(json.dumps({"pid": self.pid}).encode())
            self.returncode = json.loads(_server().recv(MAX_BYTES))
        return self.returncode

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait until it ends and return its exit code. Raises subprocess.TimeoutExpired."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while (code := self.poll()) is None:
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired("rlproxy", timeout_s or 0.0)
            time.sleep(PAUSE_S)
        return code

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


@functools.cache
def _server() -> socket.socket:
    """Start the process that forks; it ends with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-m", __name__, str(theirs.fileno())]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=os.getcwd())
    atexit.register(process.wait)
    atexit.register(ours.close)
    return ours


def serve(requests: socket.socket) -> list[str] | None:
    """Serve requests until their socket is closed.

    Returns None then, and the arguments of the proxy in each process that was forked.
    """
    while True:
        data, files, *_ = socket.recv_fds(requests, MAX_BYTES, 2)
        if not data:
            return None
        request = json.loads(data)
        if "pid" in request:
            pid, status = os.waitpid(request["pid"], os.WNOHANG)
            code = os.waitstatus_to_exitcode(status) if pid else None
            requests.send(json.dumps(code).encode())
            continue
        pid = os.fork()
        if not pid:
            requests.close()
            files.insert(0, os.open(os.devnull, os.O_RDONLY))
            for target, file in enumerate(files):
                os.dup2(file, target)
                os.close(file)
            os.environ.clear()
            os.environ.update(request["environment"])
            resource.setrlimit(resource.RLIMIT_NOFILE, request["files"])
            os.sched_setaffinity(0, request["cpus"])
            return list(request["args"])
        for file in files:
            os.close(file)
        requests.send(b"%d" % pid)


if __name__ == "__main__":
    import encodings.idna  # noqa: F401 (imported for the children, by getaddrinfo())

    from rlproxy.cli import main
    from rlproxy.process import run  # noqa: F401 (imported for the children)
    from rlproxy.ratelimit import scripts

    scripts.load()
    # The collector of a child shall not touch, and so copy, the pages of this process.
    gc.collect()
    gc.freeze()
    found = serve(socket.socket(fileno=int(sys.argv[1])))
    if found is None:
        sys.exit()
    try:
        code = main(found)
    except SystemExit as end:  # of argparse
        code = end.code if isinstance(end.code, int) else 1
    sys.stdout.flush()
    # The end of the interpreter would touch these pages, too: 15 ms of CPU time for each proxy.
    os._exit(code)
