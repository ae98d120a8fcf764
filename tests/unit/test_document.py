"""The generated tables, the command reference and the ACL line agree with the code."""

from __future__ import annotations

import importlib
import re

from rlproxy import docs
from rlproxy.config import config
from rlproxy.observability import metrics
from rlproxy.ratelimit import command_entries, grammar
from rlproxy.ratelimit.algorithms import ALGORITHMS
from rlproxy.ratelimit.scripts import load
from rlproxy.resp import commands

from tests.harness import ROOT

COMMANDS = (ROOT / "docs" / "commands.md").read_text()
OPTIONS = (ROOT / "docs" / "options.md").read_text()
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
LIMITS = (ROOT / "docs" / "resource-limits.md").read_text()
PACKAGE = ROOT / "proxy" / "rlproxy"


def test_generated_tables_are_up_to_date() -> None:
    again = "run: rlproxy docs docs/*.md"
    assert "<!-- options: " in OPTIONS
    assert docs.filled(OPTIONS) == OPTIONS, again


def test_the_metrics_in_the_docs_are_those_of_the_table() -> None:
    page = (ROOT / "docs" / "observability.md").read_text()
    assert docs.filled(page) == page, "run: rlproxy docs docs/observability.md"
    for row in metrics.TABLE:
        assert f"| `{row.name}` |" in page
    for kind in metrics.ERRORS:
        assert f"| `{kind}` |" in page


def test_every_command_is_in_the_reference_and_in_help() -> None:
    text = "\n".join(command_entries.HELP)
    for name in commands.FAMILY:
        assert f"`{name.decode()}" in COMMANDS
        assert name.decode() in text


def test_every_option_word_is_in_the_reference_and_in_help() -> None:
    text = "\n".join(command_entries.HELP)
    for name, words in grammar.OPTIONS.items():
        line = re.search(rf"^{re.escape(name.decode())} .*$", text, re.MULTILINE)
        row = re.search(rf"^\| `{re.escape(name.decode())} [^|]*\|", COMMANDS, re.MULTILINE)
        assert line is not None
        assert row is not None
        for word in words:
            assert word.decode() in line[0]
            assert word.decode() in row[0]


def test_rights_of_the_acl_line_cover_the_scripts_calls() -> None:
    line = re.search(r"^ACL SETUSER .*$", OPERATIONS, re.MULTILINE)
    assert line is not None
    documented = set(re.findall(r"\+([\w|]+)", line[0]))
    # RL.RESET, script calls, the denial cache, commands of client libraries.
    called = {"del", "eval", "evalsha"}
    called |= {"client|tracking", "client|caching"}
    called |= {"ping", "info", "multi", "exec", "discard"}
    for script in load().values():
        words = {word.lower() for word in re.findall(r"[({=]'([A-Z]{3,})'", script.source.decode())}
        called |= words - {name.decode().lower() for name in ALGORITHMS}
    assert documented == called


def test_resource_limits_equal_the_code() -> None:
    flags = {option.flag for option in config.OPTIONS}
    for row in re.findall(r"^\| (?!what ).*\|$", LIMITS, re.MULTILINE):
        for name in re.findall(r"`([^`]+)`", row.rpartition(" | ")[2]):
            if name.startswith("--"):
                assert name in flags, row
                continue
            module, _, constant = f"rlproxy.{name}".rpartition(".")
            found = getattr(importlib.import_module(module), constant, None)
            if isinstance(found, int | float):
                assert any(re.search(rf"(?<![\d.,]){form}\b", row) for form in forms(found)), row
            elif found is None:
                importlib.import_module(f"rlproxy.{name}")


def forms(value: float) -> list[str]:
    """The forms in which the page may write a constant."""
    return [
        f"{value:,g}" if value < 1000 else f"{value:,}",
        f"{value / 1024:g} KB",
        f"{value / 1024**2:g} MB",
        f"{value * 1000:g} ms",
    ]


def test_names_in_the_architecture_exist() -> None:
    pages = [(ROOT / name).read_text() for name in ("ARCHITECTURE.md", "CONTRIBUTING.md")]
    text = re.sub(r"```.*?```", "", "".join(pages), flags=re.DOTALL)
    source = "".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    folders = [PACKAGE, PACKAGE / "upstream" / "cluster", ROOT]
    paths = set(re.findall(r"`([\w/]+\.(?:py|lua))`", text))
    missing = {path for path in paths if not any((at / path).exists() for at in folders)}
    assert missing == set()
    names = set(re.findall(r"`(?:\w+\.)?(\w+)\(\)`", text))
    assert {name for name in names if f"def {name}(" not in source} == set()
    assert len(paths) > 60 and len(names) > 30


def test_the_map_of_the_cluster_has_all_its_modules() -> None:
    text = (PACKAGE / "upstream" / "cluster" / "__init__.py").read_text()
    rows = re.findall(r"^ {4,6}(\w.*?)  +", text, re.MULTILINE)
    modules = {path.stem for path in (PACKAGE / "upstream" / "cluster").glob("*.py")}
    assert sorted(", ".join(rows).split(", ")) == sorted(modules - {"__init__"})
