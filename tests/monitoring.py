"""Dashboard, alerts and runbook as data, for the tests that check them."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from tests.harness import ROOT

DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus" / "rlproxy.rules.yml"
RUNBOOK = ROOT / "docs" / "runbook.md"
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "rlproxy.json").read_text())
PANELS: list[dict[str, Any]] = [each for each in DASHBOARD["panels"] if each["type"] != "row"]
ALERTS: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
]

_VARIABLES = {"$job": ".+", "$instance": ".+"}


@dataclass(frozen=True)
class Expression:
    """An expression with its variables replaced, and its location."""

    where: str
    expr: str
    legend: str = ""

    def __str__(self) -> str:
        return self.where


def expressions(interval: str = "5m") -> list[Expression]:
    """All expressions of the dashboard, for graphs whose points cover `interval`."""
    found = [
        Expression(f"{panel['title']}:{target['refId']}", target["expr"], target["legendFormat"])
        for panel in PANELS
        for target in panel["targets"]
    ]
    found += [Expression(each["name"], each["expr"]) for each in DASHBOARD["annotations"]["list"]]
    return [Expression(each.where, filled(each.expr, interval), each.legend) for each in found]


def filled(expr: str, interval: str = "5m") -> str:
    """The expression as Grafana sends it to Prometheus."""
    for name, value in {**_VARIABLES, "$__rate_interval": interval}.items():
        expr = expr.replace(name, value)
    return expr


def program(name: str) -> str:
    """The path of a program; skips the test if it is not installed."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no {name} on this machine (Debian: prometheus)")
    return found


def sections() -> dict[str, str]:
    """The runbook's text on each alert."""
    _, *found = re.split(r"^## (?=Rlproxy)", RUNBOOK.read_text(), flags=re.MULTILINE)
    return {name: text for name, _, text in (part.partition("\n") for part in found)}
