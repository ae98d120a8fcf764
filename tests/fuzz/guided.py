"""A run of atheris (extra `fuzz`), guided by the coverage of the interpreted modules; started by
`python -m tests.fuzz --engine atheris`.
"""

from __future__ import annotations

import sys


def main() -> None:
    try:
        import atheris
    except ImportError:
        sys.exit("atheris is not installed: pip install 'rlproxy[fuzz]', or --engine mutate")
    with atheris.instrument_imports(include=["proxy"], enable_loader_override=False):
        from tests.fuzz.targets import TARGETS
    target = TARGETS[sys.argv[1]]
    atheris.Setup([sys.argv[0], *sys.argv[2:]], target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
