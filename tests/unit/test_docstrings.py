"""Every public method has a docstring: its own, or that of the method it overrides."""

from __future__ import annotations

import ast
import inspect
from importlib import import_module

import pytest

from tests.harness import ROOT

SOURCE = ROOT / "proxy"
PATHS = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts): path
    for path in sorted((SOURCE / "rlproxy").rglob("*.py"))
    if path.stem not in ("__init__", "__main__")
}


def docstrings(module: str) -> dict[str, dict[str, str]]:
    """The docstring of each method of each class: "" for none. Compiled modules have no others."""
    return {
        each.name: {
            method.name: ast.get_docstring(method) or ""
            for method in each.body
            if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        for each in ast.parse(PATHS[module].read_text()).body
        if isinstance(each, ast.ClassDef)
    }


WRITTEN = {module: docstrings(module) for module in PATHS}


def inherited(owner: type, method: str) -> str:
    """The docstring of the method that `method` of `owner` overrides; "" for none."""
    for base in owner.__mro__[1:]:
        found = WRITTEN.get(base.__module__, {}).get(base.__name__)
        if found is None and hasattr(base, method):  # of a library
            return inspect.getdoc(getattr(base, method)) or ""
        if found is not None and found.get(method):
            return found[method]
    return ""


@pytest.mark.parametrize("module", PATHS)
def test_public_methods_have_docstrings(module: str) -> None:
    bare = [
        f"{name}.{method}"
        for name, methods in WRITTEN[module].items()
        for method, text in methods.items()
        if not (text or name.startswith("_") or method.startswith("_"))
        and not inherited(getattr(import_module(module), name), method)
    ]
    assert bare == []
