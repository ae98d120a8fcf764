"""A plugin of pytest for --collect-only: test files are imported, and so compiled, but no tests are
made of them.
"""

from __future__ import annotations


def pytest_pycollect_makeitem() -> list[object]:
    """Make no test of a name in a test file."""
    return []
