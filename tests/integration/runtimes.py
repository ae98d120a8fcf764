"""The clients of other languages that this machine has, and their versions."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.harness import DEADLINE_S

HERE = Path(__file__).parent
# Debian installs Go packages in this folder; they are used without modules.
GO = {"GO111MODULE": "off", "GOPATH": "/usr/share/gocode"}


@dataclass(frozen=True)
class Client:
    """A client library: its name, its language's program, and the program's arguments that print
    the library's version. The same arguments fail where the library is missing.
    """

    name: str
    program: str
    version: tuple[str, ...]
    runtime: str
    runtime_version: tuple[str, ...]

    def path(self) -> str | None:
        """The path of the language's program."""
        return sys.executable if self.program == "python" else shutil.which(self.program)

    def missing(self) -> str:
        """Why the client cannot run here; empty if it can."""
        if self.path() is None:
            return f"no {self.program} on this machine"
        return "" if self.installed() else f"no {self.name} for {self.program}"

    def installed(self) -> str:
        """The library's version; empty where it is missing."""
        return _printed(self.path(), self.version)

    def runs(self) -> str:
        """The version of the language's program."""
        return f"{self.runtime} {_printed(self.path(), self.runtime_version)}".strip()


def _python(package: str) -> tuple[str, ...]:
    return ("-c", f"import importlib.metadata as m; print(m.version({package!r}))")


def _node(package: str) -> tuple[str, ...]:
    return ("-p", f"require('{package}/package.json').version")


_PYTHON = ("-c", "import platform; print(platform.python_version())")
_NODE = ("-p", "process.versions.node")
_HIREDIS = r"""
printf '#include <hiredis/hiredis.h>\nHIREDIS_MAJOR HIREDIS_MINOR HIREDIS_PATCH' |
gcc -E -P - | tail -n 1 | tr -s ' ' .
"""
_REDIGO = r"""
go list github.com/gomodule/redigo/redis >&2 &&
dpkg-query -W -f '${Version}' golang-github-gomodule-redigo-dev | grep -oE '[0-9]+(\.[0-9]+)+'
"""
_HEAD = "head -n 1 | grep -oE '[0-9]+(\\.[0-9]+)+' | head -n 1"

CLIENTS = {
    client.name: client
    for client in (
        Client("redis-cli", "sh", ("-c", f"redis-cli --version | {_HEAD}"), "POSIX sh", ()),
        Client("redis-py", "python", _python("redis"), "Python", _PYTHON),
        Client("valkey-py", "python", _python("valkey"), "Python", _PYTHON),
        Client("starlette", "python", _python("starlette"), "Python", _PYTHON),
        Client("fastapi", "python", _python("fastapi"), "Python", _PYTHON),
        Client("node-redis", "node", _node("redis"), "Node.js", _NODE),
        Client("ioredis", "node", _node("ioredis"), "Node.js", _NODE),
        Client("express", "node", _node("express"), "Node.js", _NODE),
        Client(
            "phpredis",
            "php",
            ("-r", 'echo phpversion("redis"); exit(phpversion("redis") ? 0 : 1);'),
            "PHP",
            ("-r", "echo PHP_VERSION;"),
        ),
        Client(
            "redis-rb",
            "ruby",
            ("-e", 'require "redis"; print Redis::VERSION'),
            "Ruby",
            ("-e", "print RUBY_VERSION"),
        ),
        Client(
            "Redis.pm",
            "perl",
            ("-MRedis", "-e", "print Redis->VERSION"),
            "Perl",
            ("-e", 'printf "%vd", $^V'),
        ),
        Client("hiredis", "sh", ("-c", _HIREDIS), "gcc", ("-c", f"gcc --version | {_HEAD}")),
        Client(
            "redigo",
            "sh",
            ("-c", _REDIGO),
            "Go",
            ("-c", f"go version | {_HEAD}"),
        ),
    )
}


def environment(**more: str) -> dict[str, str]:
    """The environment of a program in another language."""
    return {**os.environ, **GO, **more}


@functools.cache
def _printed(path: str | None, args: Sequence[str]) -> str:
    if path is None or not args:
        return ""
    done = subprocess.run(
        [path, *args],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        cwd=HERE,
        env=environment(),
    )
    return done.stdout.strip() if done.returncode == 0 else ""
