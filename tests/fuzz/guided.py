"""A run of atheris (extra `fuzz`), guided by the coverage of the interpreted modules; started by
`python -m tests.fuzz --engine atheris`.
"""

from __future__ import annotations

import sys


def main() -> None:
    try:
        import atheris  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError:
        sys.exit("atheris is not installed: pip install 'rlproxy[fuzz]', or --engine mutate")
    with atheris.instrument_imports(include=["rlproxy"]):
        from rlproxy.resp import requests

        from tests.fuzz.targets import TARGETS
    if requests.__file__.endswith(".so"):
        sys.exit("atheris sees nothing of compiled modules: run it where they are not compiled")
    target = TARGETS[sys.argv[1]]
    atheris.Setup([sys.argv[0], *sys.argv[2:]], target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
