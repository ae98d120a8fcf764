"""The table of events in docs/logging.md has every event that the program logs, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rlproxy.observability import logs

from tests.harness import ROOT

LEVELS = ("debug", "info", "warning", "error", "critical")
MODULES = sorted((ROOT / "proxy").rglob("*.py"))
PAGE = (ROOT / "docs" / "logging.md").read_text()
ROW = re.compile(r"^\| `(\w+)` \| ([a-z, ]+) \| (.*) \| (.*) \|$", re.MULTILINE)
FIELD = re.compile(r"\{(\w+)[^}]*\}")
RESERVED = {"timestamp", "level", "event", "message", "logger", "exception", "worker", logs.PLAIN}
ADDED = {"happened": {"count", "client"}}  # fields that LogThrottle adds
OPTIONS = {"one", "exc_info"}  # arguments that are no fields


@dataclass(frozen=True)
class Line:
    """One call that logs: where, its event, level, sentences, fields."""

    where: str
    event: str
    level: str
    texts: tuple[str, ...]
    one: tuple[str, ...]
    fields: frozenset[str]


def strings(node: ast.AST) -> tuple[str, ...]:
    """The strings that an expression can be: one, or both of `a if b else c`."""
    if isinstance(node, ast.IfExp):
        return strings(node.body) + strings(node.orelse)
    assert isinstance(node, ast.Constant) and isinstance(node.value, str), ast.unparse(node)
    return (node.value,)


@cache
def constants() -> dict[str, tuple[str, ...]]:
    """The module constants that are strings, by name."""
    return {
        node.target.id: strings(node.value)
        for path in MODULES
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }


def meant(node: ast.expr, tree: ast.Module) -> tuple[str, ...]:
    """The strings that an argument can be; a variable's value is assigned just before the call."""
    if not isinstance(node, ast.Name):
        return strings(node)
    assigned = [
        each
        for each in ast.walk(tree)
        if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == node.id
        if node.lineno - 15 < each.lineno < node.lineno
    ]
    if not assigned:
        return constants()[node.id]
    return strings(max(assigned, key=lambda each: each.lineno).value)


@cache
def lines() -> tuple[Line, ...]:
    return tuple(each for path in MODULES for each in lines_of(path))


def lines_of(path: Path) -> Iterator[Line]:
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name, args = ast.unparse(node.func).rpartition(".")[2], node.args
        if ast.unparse(node.func) == "_made":  # lines of the log's own handler
            level, args = ast.unparse(args[0]).partition(".")[2].lower(), args[1:]
        elif ast.unparse(node.func).partition(".")[0] == "log" and name in LEVELS:
            level = name
        elif name == "happened":
            level = "error" if path.parent.name == "admin" else "warning"
        else:
            continue
        (event,) = meant(args[0], tree)
        given = {word.arg: word.value for word in node.keywords if word.arg}
        one = meant(given["one"], tree) if "one" in given else ()
        fields = frozenset(given) - OPTIONS | ADDED.get(name, set())
        if any(word.arg is None for word in node.keywords):
            fields |= {"file", "line"}  # (of log_line_broken)
        yield Line(path.stem, event, level, meant(args[1], tree), one, fields)


def rows() -> set[tuple[str, str, str]]:
    """Event, level and message of each row; a row with two levels counts as two."""
    return {
        (event, level, text)
        for event, levels, text, _ in ROW.findall(PAGE.partition("\n## Events\n")[2])
        for level in levels.split(", ")
    }


def test_every_line_has_a_row_and_passes_its_fields() -> None:
    for line in lines():
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", line.event), line
        for text in (*line.texts, *line.one):
            assert set(FIELD.findall(text)) <= line.fields, line
        for text in line.texts:
            assert (line.event, line.level, FIELD.sub(r"*\1*", text)) in rows(), line
        assert not line.fields & (RESERVED - {"worker", logs.PLAIN}), line


def test_every_row_has_a_line() -> None:
    logged = {
        (line.event, line.level, FIELD.sub(r"*\1*", text))
        for line in lines()
        for text in line.texts
    }
    assert len(logged) > 35
    by_packages = (logs.UNEXPECTED, "error", "unexpected error")
    assert rows() - logged == {by_packages}


def test_every_field_of_a_line_is_on_the_page() -> None:
    for line in lines():
        for name in line.fields - {logs.PLAIN}:
            assert re.search(rf"[`*]{name}[`*]", PAGE), (str(line), name)


def test_events_of_other_packages_are_on_the_page() -> None:
    assert f"`{logs.OTHER}`" in PAGE and f"`{logs.PYTHON_WARNING}`" in PAGE
