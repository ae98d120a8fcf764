"""Fuzzing: `python -m tests.fuzz [--target NAME] [--seconds N | --inputs N] [--engine ...]`,
`python -m tests.fuzz differential --streams N --seed S`, `python -m tests.fuzz replay TARGET FILE`.

Exit code 1 if an input failed; failing inputs are saved and listed.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

from rlproxy.version import describe

from tests.fuzz import differential, mutate
from tests.fuzz.mutate import Ran
from tests.fuzz.targets import TARGETS

FOUND = Path(tempfile.gettempdir()) / "rlproxy-fuzz"


def main(argv: list[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    if words[:1] == ["differential"]:
        return differential.main(words[1:])
    if words[:1] == ["replay"]:
        return _replay(words[1:])
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--target", choices=sorted(TARGETS), action="append")
    parser.add_argument("--seconds", type=float, default=0, help="for each target")
    parser.add_argument("--inputs", type=int, default=0, help="for each target")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument(
        "--engine",
        choices=("mutate", "atheris"),
        default="mutate",
        help="atheris is guided by coverage (of interpreted modules), mutate is faster",
    )
    parser.add_argument("--corpus", type=Path, default=mutate.CORPUS, help="atheris: grown there")
    parser.add_argument("--found", type=Path, default=FOUND, help="where failing inputs are saved")
    options = parser.parse_args(words)
    if not options.seconds and not options.inputs:
        options.seconds = 20.0
    names = options.target or sorted(TARGETS)
    print(f"fuzzing {describe()}, seed {options.seed}, engine {options.engine}", flush=True)
    rows: list[tuple[str, Ran, list[str]]] = []
    for name in names:
        if options.engine == "atheris":
            ran, saved = _atheris(name, options)
        else:
            ran, saved = _mutate(name, options)
        rows.append((name, ran, saved))
    print("\ntarget        inputs     seconds   per second  crashes")
    for name, ran, saved in rows:
        rate = ran.inputs / max(ran.seconds, 1e-9)
        print(f"{name:10} {ran.inputs:9} {ran.seconds:11.1f} {rate:12.0f}  {len(saved):7}")
        for path in saved:
            print(f"    python -m tests.fuzz replay {name} {path}")
    total = sum(ran.inputs for _, ran, _ in rows)
    found = sum(len(saved) for _, _, saved in rows)
    print(f"in all {total} inputs, {found} crashes")
    return 1 if found else 0


def _mutate(name: str, options: argparse.Namespace) -> tuple[Ran, list[str]]:
    def progress(ran: Ran) -> None:
        rate = ran.inputs / max(ran.seconds, 1e-9)
        crashes = len(ran.crashes)
        print(f"{name}: {ran.inputs} inputs, {rate:.0f}/s, {crashes} crashes", flush=True)

    target, seeds = TARGETS[name], mutate.corpus(name)
    ran = mutate.run(target, seeds, options.seed, options.inputs, options.seconds, progress)
    saved = []
    for crash in ran.crashes:
        path = _save(options.found, name, crash.data)
        traceback.print_exception(crash.error, limit=-3)
        print(f"{name}: saved {path}", flush=True)
        saved.append(path)
    return ran, saved


def _save(directory: Path, name: str, data: bytes) -> str:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}-{hashlib.sha1(data).hexdigest()[:12]}"
    path.write_bytes(data)
    return str(path)


def _atheris(name: str, options: argparse.Namespace) -> tuple[Ran, list[str]]:
    """libFuzzer ends its process, so it runs in a new one."""
    corpus = options.corpus / name
    corpus.mkdir(parents=True, exist_ok=True)
    options.found.mkdir(parents=True, exist_ok=True)
    before = set(options.found.iterdir())
    command = [sys.executable, "-m", "tests.fuzz.guided", name, str(corpus)]
    command += [f"-seed={options.seed}", f"-artifact_prefix={options.found}/{name}-"]
    command += [f"-max_len={mutate.MAX_INPUT}", "-print_final_stats=1", "-timeout=20"]
    if options.inputs:
        command.append(f"-runs={options.inputs}")
    if options.seconds:
        command.append(f"-max_total_time={max(1, round(options.seconds))}")
    started = time.monotonic()
    process = subprocess.Popen(command, stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    executed = 0
    for line in process.stdout:
        if found := re.search(r"number_of_executed_units: (\d+)", line):
            executed = int(found[1])
        elif found := re.match(r"#(\d+)\s+(pulse|INITED|DONE)", line):
            executed = max(executed, int(found[1]))
            print(f"{name}: {line.rstrip()}", flush=True)
        elif not line.startswith(("INFO:", "WARNING: Failed to find", "#", "stat::")):
            print(f"{name}: {line.rstrip()}", flush=True)
    process.wait()
    saved = sorted(str(path) for path in set(options.found.iterdir()) - before)
    if process.returncode and not saved:
        saved.append(f"(exit code {process.returncode})")
    return Ran(executed, time.monotonic() - started), saved


def _replay(words: list[str]) -> int:
    if len(words) != 2 or words[0] not in TARGETS:
        print(f"usage: python -m tests.fuzz replay {{{','.join(sorted(TARGETS))}}} FILE")
        return 2
    try:
        TARGETS[words[0]](Path(words[1]).read_bytes())
    except Exception:
        traceback.print_exc()
        return 1
    print("holds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
