"""The build that runs: its version, compiled or interpreted."""

from __future__ import annotations

import platform

from rlproxy.resp import requests
from rlproxy.version import VERSION


def compiled() -> bool:
    """Whether the hot modules run as machine code."""
    return not (requests.__file__ or "").endswith(".py")


def describe() -> str:
    """Return the version and the kind of build as one line of text."""
    how = "compiled" if compiled() else "interpreted"
    return f"{VERSION} ({how}, Python {platform.python_version()})"
