"""rlproxy: a Redis-protocol proxy that adds exact, shared rate limits to any Redis.

RLPROXY_INTERPRETED=1 in the environment loads the source of modules that are also compiled. It
serves for debugging, comparing and testing both.
"""

import os
import sys

if os.environ.get("RLPROXY_INTERPRETED"):
    from importlib.machinery import SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader

    class _SourceFirst:
        """An import finder that finds this package's modules as source files only."""

        @staticmethod
        def find_spec(
            name: str, path: list[str] | None, target: object = None
        ) -> ModuleSpec | None:
            """Find the source of a module; see importlib.abc.MetaPathFinder."""
            if not name.startswith(__name__ + ".") or not path:
                return None
            return FileFinder(path[0], (SourceFileLoader, SOURCE_SUFFIXES)).find_spec(name)

    sys.meta_path.insert(0, _SourceFirst)  # type: ignore[arg-type]
