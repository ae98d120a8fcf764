"""events: every line that is logged has a row, with as many values, and every row a line."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from rlproxy.downstream import admission
from rlproxy.observability import log_events, log_throttle
from rlproxy.observability.log_events import EVENTS, Event

from tests.harness import ROOT

LEVELS = ("debug", "info", "warning", "error", "critical")
MODULES = sorted((ROOT / "proxy").rglob("*.py"))
PLACES = re.compile(r"%[-+ #0]*\d*(?:\.\d+)?[a-z]")
# the first argument of log.info() and others where it is a name
NAMED = {"CANNOT_ACCEPT": "balancer"}


@cache
def constants(path: Path) -> dict[str, str]:
    """Names of the module, and of its functions, that stand for one text."""
    found: dict[str, str] = {}
    for node in ast.walk(ast.parse(path.read_text())):
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(node, ast.AnnAssign):
            target = node.target
        if isinstance(target, ast.Name) and isinstance(node, ast.Assign | ast.AnnAssign):
            value = node.value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                found[target.id] = value.value
    return found


def lines() -> list[tuple[str, str, str]]:
    """Module, level and text of every line that is logged."""
    found = []
    for path in MODULES:
        names = constants(path)
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id == "log"
                and node.func.attr in LEVELS
            ):
                first = node.args[0]
                if isinstance(first, ast.Name):
                    home = path.with_stem(NAMED.get(first.id, path.stem))
                    text = (names | constants(home))[first.id]
                else:
                    assert isinstance(first, ast.Constant), ast.unparse(node)
                    text = str(first.value)
                found.append((path.stem, node.func.attr, text))
    return found


@cache
def texts(path: Path) -> set[str]:
    """Every text in a module but for docstrings and the table; what an f-string fills in is x."""
    if path.stem in ("log_events", "docs"):
        return set()
    tree = ast.parse(path.read_text())
    parts = {
        part
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr | ast.Expr)
        for part in (node.values if isinstance(node, ast.JoinedStr) else [node.value])
    }
    found = {
        "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
    }
    return found | {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in parts
    }


def test_there_are_lines() -> None:
    assert len(lines()) > 25


@pytest.mark.parametrize(("module", "level", "text"), lines())
def test_every_line_has_a_row(module: str, level: str, text: str) -> None:
    if text == "%s":  # of what happens repeatedly: its kind has a row
        assert module in ("wiring", "app", "admin_process")
        return
    event = log_events.of_text(text)
    assert event is not None, f"{module} logs what has no row in log_events: {text}"
    assert level == event.level or event.name in ("failed", log_events.UNEXPECTED)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.name)
def test_every_row_has_a_line_and_a_name_for_each_value(event: Event) -> None:
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", event.name)
    assert event.level in LEVELS
    assert len(PLACES.findall(event.text)) == len(event.fields)
    if "{}" in event.text:
        assert log_events.of_kind(event.text) is not None
        return
    assert event.text in {text for path in MODULES for text in texts(path)}


def test_names_and_texts() -> None:
    assert len({event.text for event in EVENTS}) == len(EVENTS)
    words = {name for event in EVENTS for name in event.fields if name}
    reserved = {"timestamp", "level", "event", "message", "logger", "exception", "kind"}
    assert not words & reserved


@pytest.mark.parametrize(
    ("kind", "name", "values"),
    [
        (admission.FULL.line, "clients_turned_away", ("max number of clients reached",)),
        (
            admission.FULL_ADDRESS.line,
            "clients_turned_away",
            ("max number of clients of one address reached",),
        ),
        (
            admission.PROTECTED.line,
            "clients_turned_away",
            ("protected mode, and Redis' default user needs no password",),
        ),
        (
            admission.UNJUDGED_LINE,
            "clients_turned_away",
            ("protected mode, and it is not known yet whether Redis needs a password",),
        ),
        ("{} TLS handshakes failed: a\nb", "tls_handshakes_failed", ("a\nb",)),
        ("turned away {} clients: no PROXY header", "clients_turned_away", ("no PROXY header",)),
        ("cut {} client(s) that read nothing for 60 s", "clients_stalled", ("60",)),
        (log_throttle.OTHERS, "more_repeats", ()),
    ],
)
def test_kinds(kind: str, name: str, values: tuple[str, ...]) -> None:
    found = log_events.of_kind(kind)
    assert found is not None
    assert (found[0].name, found[1]) == (name, values)


def test_every_kind_has_a_row() -> None:
    """Texts with {} in them, where kinds are made."""
    makers = {path for path in MODULES if ".happened(" in path.read_text()}
    makers |= {path for path in MODULES if path.stem in ("admission", "log_throttle")}
    kinds = {text for path in makers for text in texts(path) if "{}" in text} - {"{}"}
    assert len(kinds) >= 7
    for kind in kinds:
        assert log_events.of_kind(kind) is not None, kind


def test_what_has_no_row() -> None:
    assert log_events.of_kind("nobody says {} times") is None
    assert log_events.of_text("nobody says this") is None
