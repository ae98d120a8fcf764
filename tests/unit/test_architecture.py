"""The module table: who may import whom, and that the core knows no socket, loop or clock."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "proxy"

# Every pure module: what it may import of the package, and of everything else.
PURE: dict[str, tuple[set[str], set[str]]] = {
    "version": (set(), set()),
    "commands": (set(), set()),
    "replies": (set(), {"re"}),
    "framing": ({"commands"}, set()),
    "scripts": (set(), {"hashlib", "re", "string", "pathlib"}),
    "limiters": (set(), set()),
    "circuit": (set(), set()),
    "stats": ({"limiters"}, {"hashlib"}),
    "metrics": ({"stats"}, {"dataclasses"}),
    "patience": ({"circuit"}, set()),
    "loading": ({"patience"}, set()),
    "ways": ({"grammar", "scripts"}, {"re"}),
    "grammar": ({"limiters", "names", "replies", "scripts", "stats"}, {"re"}),
    "waiting": ({"grammar", "limiters", "replies", "stats"}, {"collections", "math"}),
    "denials": ({"grammar", "replies"}, set()),
    "state": ({"commands", "stats"}, set()),
    "answers": ({"framing", "patience", "replies", "state", "stats"}, set()),
    "introspection": ({"replies", "state"}, set()),
    "window": (set(), {"collections"}),
    "greeting": ({"commands", "framing", "replies", "state"}, set()),
    "calls": (
        {
            *("circuit", "commands", "denials", "framing", "grammar", "patience", "replies"),
            *("state", "stats", "waiting", "window"),
        },
        {"mypy_extensions"},
    ),
    "session": (
        {
            *("answers", "calls", "commands", "replies", "state", "framing", "grammar"),
            *("greeting", "introspection", "patience", "permissions", "stats", "waiting", "window"),
            "scripts",
        },
        set(),
    ),
    "config": (
        set(),
        {"argparse", "difflib", "os", "dataclasses", "pathlib", "re", "tomllib", "urllib.parse"},
    ),
    "masters": ({"circuit", "config"}, {"dataclasses"}),
    "quiet": (set(), set()),
    "events": (set(), {"re", "dataclasses"}),
    "permissions": ({"commands", "replies"}, set()),
    "names": (set(), set()),
    "sketch": (
        {"stats"},
        {*("array", "base64", "collections", "dataclasses", "heapq")}
        | {"itertools", "math", "operator"},
    ),
    "prefixes": ({"names", "stats"}, {"collections", "json"}),
    "dashboard": ({"names"}, {"collections", "dataclasses", "math", "sys", "unicodedata"}),
    "probes": ({"metrics"}, {"dataclasses"}),
    "recent": ({"metrics", "stats"}, {"collections", "dataclasses", "itertools"}),
    "view": ({"metrics", "names", "prefixes", "probes", "recent", "stats"}, {"math"}),
    "doors": ({"commands", "config", "peers", "permissions", "replies"}, {"dataclasses"}),
    "peers": (set(), {"ipaddress", "dataclasses"}),
    "proxyprotocol": ({"peers"}, {"ipaddress", "dataclasses"}),
    "build": ({"framing", "version"}, {"platform"}),
}
# Every other module: what it may import of the package.
IMPURE: dict[str, set[str]] = {
    "board": {"metrics", "prefixes"},
    "exposition": {"metrics"},
    "tls": {"config"},
    "tlsstream": {"tls"},
    "upstream": {
        *("circuit", "patience", "replies", "config", "scripts", "tls", "tlsstream", "metrics"),
        "loading",
    },
    "topology": {"circuit", "config", "masters", "tls", "upstream"},
    "lane": {
        *("calls", "circuit", "commands", "denials", "replies", "framing", "patience", "state"),
        *("stats", "tlsstream", "upstream", "window", "loading", "ways"),
    },
    "telemetry": {
        *("board", "build", "calls", "downstream", "lane", "limiters", "metrics", "replies"),
        *("prefixes", "probes", "sketch", "stats", "version"),
    },
    "crowd": set(),
    "lingering": {"tlsstream"},
    "downstream": {
        *("calls", "config", "crowd", "doors", "lingering", "peers", "quiet", "session"),
        *("tlsstream", "upstream", "window"),
    },
    "descriptors": set(),
    "logs": {"events"},
    "arrivals": {"peers", "proxyprotocol", "quiet", "stats", "tlsstream"},
    "embedded": {"config"},
    "listeners": {"config"},
    "balance": set(),
    "restarts": set(),
    "watch": {"board", "exposition", "metrics", "probes", "recent", "sketch", "view"},
    "admin": {"board", "embedded", "logs", "peers", "probes", "quiet", "watch"},
    "adminprocess": {"board", "config", "listeners", "peers", "quiet", "restarts"},
    "server": {
        *("scripts", "balance", "build", "calls", "config", "denials", "downstream", "embedded"),
        *("arrivals", "grammar", "lane", "listeners", "tls", "topology", "upstream", "waiting"),
        *("circuit", "descriptors", "doors", "logs", "patience", "peers", "quiet", "version"),
        *("adminprocess", "board", "commands", "prefixes", "sketch", "stats", "telemetry"),
        *("loading", "metrics", "probes", "window"),
    },
    "workers": {
        *("adminprocess", "scripts", "balance", "board", "config", "embedded", "listeners"),
        *("logs", "restarts", "server"),
    },
    "top": {"config", "dashboard", "names"},
    "cli": {
        *("adminprocess", "top", "config", "build", "embedded", "logs", "scripts", "server"),
        *("tls", "workers"),
    },
    "health": {"config"},
    "document": {"config", "events", "metrics"},
    "__main__": {"cli"},
    "__init__": set(),
}
ALWAYS = {"__future__", "typing", "collections.abc"}
FORBIDDEN = {"asyncio", "socket", "select", "selectors", "time", "datetime", "threading", "uvloop"}


def imports(module: str) -> tuple[set[str], set[str]]:
    """What `module` imports anywhere in its text: of the package, and of everything else."""
    inside: set[str] = set()
    outside: set[str] = set()
    for node in ast.walk(ast.parse((PACKAGE / f"{module}.py").read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            inside |= {node.module} if node.module else {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module.split(".")[0] == "proxy":
                parts = node.module.split(".")[1:2]
                inside |= set(parts) or {alias.name for alias in node.names}
            else:
                outside.add(node.module)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                name, _, below = alias.name.partition(".")
                (inside if name == "proxy" else outside).add(
                    below if name == "proxy" else alias.name
                )
    return inside, outside


def test_every_module_is_in_the_table() -> None:
    assert {path.stem for path in PACKAGE.glob("*.py")} == {*PURE, *IMPURE}


@pytest.mark.parametrize("module", PURE)
def test_pure(module: str) -> None:
    inside, outside = imports(module)
    assert inside <= PURE[module][0]
    assert outside - ALWAYS <= PURE[module][1]
    assert not {name.split(".")[0] for name in outside} & FORBIDDEN


@pytest.mark.parametrize("module", PURE)
def test_pure_modules_import_pure_ones_only(module: str) -> None:
    assert PURE[module][0] <= set(PURE)
    assert not PURE[module][1] & FORBIDDEN


@pytest.mark.parametrize("module", IMPURE)
def test_impure(module: str) -> None:
    assert imports(module)[0] <= IMPURE[module]


@pytest.mark.parametrize("module", PURE)
def test_pure_modules_ask_no_builtin_for_the_world(module: str) -> None:
    called = {
        node.func.id
        for node in ast.walk(ast.parse((PACKAGE / f"{module}.py").read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not called & {"open", "print", "input", "exec", "eval", "__import__"}


@pytest.mark.parametrize("module", [*PURE, *IMPURE])
def test_a_module_opens_with_what_it_owns(module: str) -> None:
    text = ast.get_docstring(ast.parse((PACKAGE / f"{module}.py").read_text()))
    assert text, module


def test_the_table_has_no_circle() -> None:
    rows = {**{name: row[0] for name, row in PURE.items()}, **IMPURE}
    left = dict(rows)
    while left:
        free = [name for name, uses in left.items() if not uses & set(left)]
        assert free, f"these import each other: {sorted(left)}"
        for name in free:
            del left[name]
