"""The load clients in clients/: which of them this machine can run, and how to run several at
once.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.integration import runtimes

CLIENTS = Path(__file__).parent / "clients"
KINDS = [(f"exact:{number}", 2 + 3 * number, 40 + 25 * number) for number in range(20)]


@dataclass
class LoadClient:
    """One library's load client, and the replies it reported."""

    name: str
    command: list[str]
    connections: int
    seen: Counter[tuple[str, int, int, int]] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    process: subprocess.Popen[str] | None = None

    def start(self, port: int, seconds: int) -> None:
        """Start the process."""
        self.process = subprocess.Popen(
            [*self.command, str(port), str(seconds), str(self.connections)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def finish(self, timeout_s: float) -> None:
        """Wait until the process ends and parse its report."""
        assert self.process is not None
        try:
            text, _ = self.process.communicate(timeout=timeout_s)
        finally:
            self.process.kill()
            self.process.wait()
        for line in text.splitlines():
            words = line.split()
            if len(words) == 5 and words[0].startswith("exact:"):
                limited, limit, remaining, count = map(int, words[1:])
                self.seen[words[0], limited, limit, remaining] += count
            else:
                self.errors.append(f"{self.name}: {line}")
        if self.process.returncode:
            self.errors.append(f"{self.name}: exit code {self.process.returncode}")


def python_loaders(connections: int) -> list[LoadClient]:
    """Four load clients of Python's libraries and both protocols, with `connections` in all."""
    fourth = "valkey" if importlib.util.find_spec("valkey") else "redis"
    script = str(CLIENTS / "python_client.py")
    return [
        LoadClient(name, [sys.executable, script, name], connections // 4)
        for name in ("redis", "redis-3", "redis.asyncio", fourth)
    ]


def foreign_loaders(connections: int, directory: Path) -> list[LoadClient]:
    """Load clients of the other languages that are installed, `connections` each."""
    scripts = {
        "redis-rb": "ruby_client.rb",
        "Redis.pm": "perl_client.pl",
        "phpredis": "php_client.php",
        "node-redis": "node_redis_client.js",
        "ioredis": "ioredis_client.js",
    }
    found = []
    for name, script in scripts.items():
        path = runtimes.CLIENTS[name].path()
        if path and not runtimes.CLIENTS[name].missing():
            found.append(LoadClient(script, [path, str(CLIENTS / script)], connections))
    made = directory / "hiredis_client"
    source = CLIENTS / "hiredis_client.c"
    compiler = ["gcc", "-O2", "-o", str(made), str(source), "-lhiredis"]
    if not runtimes.CLIENTS["hiredis"].missing() and _succeeds(compiler):
        found.append(LoadClient("hiredis_client.c", [str(made)], connections))
    return found


def _succeeds(command: list[str]) -> bool:
    done = subprocess.run(command, capture_output=True, timeout=30, cwd=CLIENTS)
    return done.returncode == 0
