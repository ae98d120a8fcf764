"""The version, and the kind of build that runs. A build of the package reads VERSION without
importing this module.
"""

import platform
from importlib.util import find_spec

VERSION = "0.1.0"


def compiled() -> bool:
    """Whether the hot modules run as machine code."""
    hot = find_spec("rlproxy.resp.requests")
    return hot is not None and not (hot.origin or "").endswith(".py")


def describe() -> str:
    """Return the version and the kind of build as one line of text."""
    how = "compiled" if compiled() else "interpreted"
    return f"{VERSION} ({how}, Python {platform.python_version()})"
