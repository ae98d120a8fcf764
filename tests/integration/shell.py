"""Shell commands from the pages, executed: bash runs a block in a directory like the project's,
with real programs where possible and stand-ins otherwise.

`rlproxy` and `scripts/run` start a real proxy in the background, and return when it serves;
`rlproxy top` prints one frame. A stand-in (STAND_INS) records its arguments, which the tests check.
A program that is neither in REAL nor in STAND_INS is not found: add it to one of them.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests import harness
from tests.harness import DEADLINE_S, ROOT, wait_until
from tests.integration import examples
from tests.integration.started import alive

# Programs that are run unchanged.
REAL: tuple[str, ...] = ("cat", "chmod", "cp", "curl", "cut", "echo", "grep", "head", "install")
REAL += ("ls", "mkdir", "openssl", "redis-cli", "sed", "sh", "sleep", "sort", "tail", "timeout")
# Programs that are replaced, and why.
STAND_INS = {
    "dmesg": "is not available to every user",
    "docker": "needs Docker's daemon",
    "journalctl": "needs systemd's journal",
    "kubectl": "needs a cluster",
    "pip": "takes long; tests/integration/test_wheel.py installs the project",
    "ps": "shows no rlproxy: here it is called python",
    "systemctl": "needs systemd as the first process",
    "useradd": "changes the machine",
}
SHOWN_IN_A_TERMINAL = {"redis-cli": "--no-raw"}  # makes it print replies as in a terminal

_ONCE = ("--check-config", "--help", "--version")  # options with which rlproxy exits at once
_START = """#!/bin/sh
if [ "$1" = top ]; then
    shift
    exec {run} top --once --url "$REDIS_URL" "$@"
fi
[ "$1" = health ] && exec {run} "$@"
for word; do
    case $word in {once}) exec {run} "$@" ;; esac
done
log=$(mktemp {place}/log.XXXXXX)
{run} "$@" >"$log" 2>&1 &
echo $! "$log" >>{place}/started
until grep -qE '^  (try|first) ' "$log"; do
    kill -0 $! 2>/dev/null || {{ cat "$log" >&2; exit 1; }}
    sleep 0.02
done
"""
# One argument per line; a call begins with their number.
_NOTE = """#!/bin/sh
{{ echo $(($# + 1)) {name}; for word; do printf '%s\\n' "$word"; done; }} >>{place}/calls
"""
# a virtual environment is a directory with a pip
_PYTHON3 = """#!/bin/sh
if [ "$1 $2" = "-m venv" ]; then
    mkdir -p "$3/bin" && cp {place}/bin/pip "$3/bin/pip"
else
    exec {python} "$@"
fi
"""


def starts_a_proxy(text: str) -> bool:
    """Whether the block starts a proxy."""
    return (
        re.search(r"^(\$ )?(scripts/run|rlproxy)\b(?! top| health|.*--check-config)", text, re.M)
        is not None
    )


def commands(text: str) -> tuple[str, str | None]:
    """The typed commands of a block and the output it shows for each. A block with lines that begin
    with `$ ` is a session; other blocks show no output (None).
    """
    lines = text.splitlines(keepends=True)
    if not any(line.startswith("$ ") for line in lines):
        return text, None
    typed = "".join(line[2:] for line in lines if line.startswith("$ "))
    return typed, "".join(line for line in lines if not line.startswith("$ "))


class Shell:
    """A copy of the project in `place` and a shell in it. The `ports` of the pages are mapped to
    free ones.
    """

    def __init__(self, place: Path, ports: Mapping[str, int], **more: str) -> None:
        """`more` is added to the environment."""
        self._place = place
        self._ports = {"6380": ports.get("6380") or harness.free_port(), **ports}
        self.directory = place / "project"
        self._bin = place / "bin"
        self._bin.mkdir(parents=True)
        (place / "etc/systemd/system").mkdir(parents=True)
        self._environment = {
            **{name: text for name, text in os.environ.items() if not name.startswith("RLPROXY_")},
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'proxy'}",
            "RLPROXY_LOG_FORMAT": "text",
            "RLPROXY_LISTEN": f"127.0.0.1:{self._ports['6380']}",
            "REDIS_URL": f"redis://127.0.0.1:{self._ports['6380']}",
            **more,
        }
        self._copy()
        self._programs()

    def _copy(self) -> None:
        self.directory.mkdir()
        for name in ("deploy", "examples"):
            shutil.copytree(ROOT / name, self.directory / name)
        for name in ("Dockerfile", "pyproject.toml"):
            shutil.copy(ROOT / name, self.directory / name)

    def _programs(self) -> None:
        path = examples.environment()["PATH"]
        for name in REAL:
            found = shutil.which(name, path=path)
            if found is not None:
                option = SHOWN_IN_A_TERMINAL.get(name, "")
                self._put(name, f'#!/bin/sh\nPATH="{path}" exec {found} {option} "$@"\n')
        for name in ("python", ".venv/bin/python"):
            self._put(name, f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        self._put("python3", _PYTHON3.format(place=self._place, python=sys.executable))
        for name in STAND_INS:
            self._put(name, _NOTE.format(place=self._place, name=name))
        # The real scripts/run, with nothing to install.
        self._put("scripts/setup", "#!/bin/sh\n")
        shutil.copy(ROOT / "scripts/run", self.directory / "scripts/run.real")
        self._put(".venv/bin/rlproxy", f'#!/bin/sh\nexec {sys.executable} -m rlproxy "$@"\n')
        for name, run in (
            ("rlproxy", f"{sys.executable} -m rlproxy"),
            ("scripts/run", "scripts/run.real"),
        ):
            text = _START.format(place=self._place, run=run, once="|".join(_ONCE))
            self._put(name, f'{text[:10]}PATH="{path}"\n{text[10:]}')

    def _put(self, name: str, text: str) -> None:
        path = (self.directory if "/" in name else self._bin) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def _here(self, text: str) -> str:
        """`text` with the ports and directories of this shell."""

        def port(match: re.Match[str]) -> str:
            if match[1] and match[2] not in self._ports:
                self._ports[match[2]] = harness.free_port()
            return f"{match[1] or ''}{self._ports.get(match[2], match[2])}"

        local = r"(?:127\.0\.0\.1|0\.0\.0\.0|localhost|\[::1\]):"
        text = re.sub(rf"\b({local})?(\d{{4,5}})\b", port, text)
        return re.sub(r"(?<=\s)/(etc|opt)/", rf"{self._place}/\1/", " " + text)[1:]

    def there(self, text: str) -> str:
        """`text` with the ports of the pages restored."""
        for name, port in self._ports.items():
            text = re.sub(rf"\b{port}\b", name, text)
        return text

    def type(self, text: str) -> str:
        """Type `text`; return the output of bash and its programs, on either stream.

        Raises:
            AssertionError: a command ended with an exit code other than 0, or did not end.
        """
        process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", self._here(text)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.directory,
            env={**self._environment, "PATH": str(self._bin)},
            executable=shutil.which("bash"),
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=2 * DEADLINE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output = process.communicate()[0] + "\n(did not end)"
        assert process.returncode == 0, f"{text}\nended with {process.returncode}: {output}"
        return self.there(output)

    def calls(self) -> list[list[str]]:
        """The stand-ins' calls, the program's name first."""
        noted = self._place / "calls"
        lines = noted.read_text().splitlines() if noted.exists() else []
        found = []
        while lines:
            count, _, name = lines[0].partition(" ")
            words, lines = [name, *lines[1 : int(count)]], lines[int(count) :]
            found.append([self.there(word) for word in words])
        return found

    def started(self) -> list[tuple[int, str]]:
        """The running proxies: process id to log."""
        noted = self._place / "started"
        lines = noted.read_text().splitlines() if noted.exists() else []
        return [(int(pid), Path(log).read_text()) for pid, log in map(str.split, lines)]

    def close(self) -> None:
        """End the proxies; fails if one wrote a traceback."""
        found = self.started()
        for pid, _ in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        for pid, _ in found:
            wait_until(lambda pid=pid: not alive(pid), "the proxy ends")  # type: ignore[misc]
        for _, log in self.started():
            assert "Traceback" not in log, log
