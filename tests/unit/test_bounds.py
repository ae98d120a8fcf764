"""The size of modules, classes and functions of the package stays within bounds."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import ROOT

PACKAGE = ROOT / "proxy" / "rlproxy"
MODULE_LINES = 600
CLASS_LINES = 400
FUNCTION_LINES = 75
ATTRIBUTES = 30

# Each entry must still be needed, and has a reason.
EXCEPTIONS = {
    "config/config.Config: attributes",  # one field is one option
}


def sizes(path: Path) -> Iterator[tuple[str, int, int]]:
    """Yield (what, its size, the bound) of a module and of all that it defines."""
    text = path.read_text()
    module = path.relative_to(PACKAGE).with_suffix("").as_posix()
    yield f"{module}: lines", len(text.splitlines()), MODULE_LINES
    for name, node in definitions(ast.parse(text), module):
        assert node.end_lineno is not None
        lines = node.end_lineno - node.lineno + 1
        if isinstance(node, ast.ClassDef):
            yield f"{name}: lines", lines, CLASS_LINES
            yield f"{name}: attributes", len(attributes(node)), ATTRIBUTES
        else:
            yield f"{name}: lines", lines, FUNCTION_LINES


Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def definitions(node: ast.AST, within: str) -> Iterator[tuple[str, Definition]]:
    """Yield (dotted name, node) of the classes and functions in `node`, at any depth."""
    for child in ast.iter_child_nodes(node):
        name = within
        if isinstance(child, Definition):
            name = f"{within}.{child.name}"
            yield name, child
        yield from definitions(child, name)


def attributes(node: ast.ClassDef) -> set[str]:
    """The names that a class declares in its body or its methods set on `self`."""
    found = {
        target.id
        for statement in node.body
        for target in targets(statement)
        if isinstance(target, ast.Name)
    }
    found |= {
        target.attr
        for method in node.body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
        for statement in ast.walk(method)
        for target in targets(statement)
        if isinstance(target, ast.Attribute)
        and isinstance(target.value, ast.Name)
        and target.value.id == "self"
    }
    return found - {"__slots__", "__match_args__"}


def targets(statement: ast.AST) -> Iterator[ast.expr]:
    """Yield what an assignment sets, tuples unpacked."""
    if isinstance(statement, ast.Assign):
        left = list(statement.targets)
    elif isinstance(statement, ast.AnnAssign | ast.AugAssign):
        left = [statement.target]
    else:
        return
    while left:
        target = left.pop()
        if isinstance(target, ast.Tuple | ast.List):
            left += target.elts
        else:
            yield target


def too_large() -> dict[str, tuple[int, int]]:
    """Whatever is above its bound: (size, bound) by name."""
    return {
        name: (size, bound)
        for path in sorted(PACKAGE.rglob("*.py"))
        for name, size, bound in sizes(path)
        if size > bound
    }


def test_only_the_exceptions_are_too_large() -> None:
    found = too_large()
    assert found.keys() == EXCEPTIONS, found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x: int = 1", {"x"}),
        ("__slots__ = ('x',)", set()),
        ("def f(self):\n  self.a = self.b, other.c = 1, 2", {"a", "b"}),
        ("def f(self):\n  self.a, (self.b, c) = 1, (2, 3)", {"a", "b"}),
        ("async def f(self):\n  if x:\n    self.a: int = 1\n  self.b += 1", {"a", "b"}),
        ("def f(self):\n  self.a.b = 1\n  self.c[0] = 1", set()),
    ],
)
def test_attributes_are_those_of_the_class(text: str, expected: set[str]) -> None:
    (node,) = ast.parse("class C:\n" + "\n".join(f"  {line}" for line in text.split("\n"))).body
    assert isinstance(node, ast.ClassDef)
    assert attributes(node) == expected


def test_sizes_of_what_is_nested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.unit.test_bounds.PACKAGE", tmp_path)
    (tmp_path / "m.py").write_text(
        "class C:\n  def f(self):\n    self.x = 1\n    def g():\n      pass\n"
    )
    assert list(sizes(tmp_path / "m.py")) == [
        ("m: lines", 5, MODULE_LINES),
        ("m.C: lines", 5, CLASS_LINES),
        ("m.C: attributes", 1, ATTRIBUTES),
        ("m.C.f: lines", 4, FUNCTION_LINES),
        ("m.C.f.g: lines", 2, FUNCTION_LINES),
    ]
