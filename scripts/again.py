"""pytest, and once more, alone, what failed beside others.

Tests with real servers judge what happens in real time. On a machine that stands still for a second
one in ten thousand may fail. What fails again, on servers of its own and with nothing beside it, is
an error, and so is what has no such excuse: tests of pure code, and many at once.

    python scripts/again.py FILE [what pytest takes ...]

The names of what was tried again are appended to FILE, with how it ended.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

MOST = 5  # so many at once are no accident
PURE, NOT_PURE = "tests/unit/", "tests/unit/test_bench"  # (these run the benchmark)


def pytest(cache: str, *args: str) -> int:
    """Its exit code."""
    command = [sys.executable, "-m", "pytest", "-o", f"cache_dir={cache}", *args]
    return subprocess.run(command).returncode


def may_try_again(failed: list[str]) -> bool:
    """Whether these tests have the excuse of a busy machine."""
    if not all("::" in name for name in failed):
        return False  # a file that could not be read, or pytest's own processes
    pure = [name for name in failed if name.startswith(PURE) and not name.startswith(NOT_PURE)]
    return not pure and 0 < len(failed) <= MOST


def main() -> int:
    """The exit code of the last run."""
    told, args = Path(sys.argv[1]), sys.argv[2:]
    with tempfile.TemporaryDirectory(prefix="rlproxy-pytest-") as cache:
        code = pytest(cache, *args)
        found = Path(cache, "v", "cache", "lastfailed")
        if code != 1 or not found.exists():  # (1: some tests failed; all else is worse)
            return code
        failed = sorted(json.loads(found.read_text()))
        if not may_try_again(failed):
            return code
        print(f"\n{len(failed)} failed: once more, alone", flush=True)
        code = pytest(cache, *args, "-n", "0", "--last-failed", "--last-failed-no-failures", "none")
        with told.open("a") as file:
            file.writelines(f"{'failed again' if code else 'passed'}: {name}\n" for name in failed)
        return code


if __name__ == "__main__":
    sys.exit(main())
