"""The tests. They refuse compiled modules that are older than their source."""

import os
import sys
from pathlib import Path

for _module in (Path(__file__).parents[1] / "proxy").rglob("*.so"):
    _source = _module.with_name(_module.name.partition(".")[0] + ".py")
    if not _source.exists() or os.environ.get("RLPROXY_INTERPRETED"):
        continue
    if _source.stat().st_mtime > _module.stat().st_mtime:
        sys.exit(f"{_source} is newer than its compiled module: run scripts/compile")
