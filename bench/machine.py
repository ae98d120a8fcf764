"""The environment of a run: machine, versions, commit."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Final

from . import load
from .errors import BenchError
from .parts import PARTIES
from .processes import run
from .result import Head

PACKAGES: Final = ("uvloop", "hiredis", "redis", "limits")
_FIELD: Final = re.compile(r"^(.+?)\s*: (.*)$", re.M)  # of /proc/cpuinfo
_MAKE: Final = {"family": "cpu family", "model": "model"}
_SERVER: Final = re.compile(r"(\w+) server v=(\S+)")
_NUMBER: Final = re.compile(r"\d+\.\d+[\w.+~-]*")


def head(executable: str, sentences: Sequence[str], parties: Sequence[str] = ()) -> Head:
    """Return the head of a result, before the benchmark adds load.

    sentences: the method.
    parties: those whose versions are of interest.
    """
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return Head(date, machine(), _versions(executable, parties), sentences)


def machine() -> dict[str, str | int | float]:
    """Return processor, cores, memory, kernel, and the load average."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "load_before": round(os.getloadavg()[0], 2),
        "memory_gb": round(pages / 1e9, 1),
    }


def _versions(executable: str, parties: Sequence[str]) -> dict[str, str]:
    """Return the versions of the server, of redis-benchmark, of `parties` and of PACKAGES.

    What is not installed is left out. rlproxy's includes "compiled" if it is.
    """
    built = run([sys.executable, "-m", "rlproxy", "--version"])
    found = {"rlproxy": built.strip().removeprefix("rlproxy "), "server": server(executable)}
    commands = {name: [PARTIES[name].program, PARTIES[name].version] for name in parties}
    commands[load.REDIS_BENCHMARK] = [load.REDIS_BENCHMARK, "--version"]
    for name, command in commands.items():
        if shutil.which(command[0]) and command[1]:
            with contextlib.suppress(BenchError):
                match = _NUMBER.search(run(command))
                found[name] = match[0] if match else "(no version)"
    for package in PACKAGES:
        found["redis-py" if package == "redis" else package] = metadata.version(package)
    with contextlib.suppress(BenchError):
        found["commit"] = run(["git", "rev-parse", "--short=12", "HEAD"]).strip()
        if run(["git", "status", "--porcelain", "--untracked-files=no"]).strip():
            found["commit"] += " and changes"
    return found


def server(executable: str) -> str:
    """Return the name and version of a server: `Redis 7.0.15`, `Valkey 9.1.0`."""
    match = _SERVER.match(run([executable, "--version"]))
    return f"{match[1]} {match[2]}" if match else "(no version)"


def _processor() -> str:
    """The processor's name, with family and model: one name may stand for several makes."""
    with contextlib.suppress(OSError):
        found = dict(_FIELD.findall(Path("/proc/cpuinfo").read_text()))
        if "model name" in found:
            made = [f"{key} {found[name]}" for key, name in _MAKE.items() if name in found]
            return f"{found['model name']} ({', '.join(made)})" if made else found["model name"]
    return platform.processor() or platform.machine()
