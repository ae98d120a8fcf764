"""The part of PromQL that dashboard and alerts use: checks expressions, and lists their selectors.

Prometheus' own promtool checks the same expressions where it is installed. This module does so
everywhere, and also returns the metrics and labels that are used.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

SCALAR, VECTOR, RANGE = "scalar", "instant vector", "range vector"

# A function's arguments and the type of its result.
FUNCTIONS = {
    "absent": ((VECTOR,), VECTOR),
    "changes": ((RANGE,), VECTOR),
    "histogram_quantile": ((SCALAR, VECTOR), VECTOR),
    "increase": ((RANGE,), VECTOR),
    "rate": ((RANGE,), VECTOR),
    "time": ((), SCALAR),
}
# An aggregation's parameter before the vector, if it takes one.
AGGREGATIONS = {"max": None, "min": None, "sum": None, "topk": SCALAR}

_BINDING = {
    **dict.fromkeys(("or",), 1),
    **dict.fromkeys(("and", "unless"), 2),
    **dict.fromkeys(("==", "!=", "<=", ">=", "<", ">"), 3),
    **dict.fromkeys(("+", "-"), 4),
    **dict.fromkeys(("*", "/", "%"), 5),
}
_TOKEN = re.compile(
    r"""\s*(?:
    (?P<duration>(?:\d+(?:ms|[smhdwy]))+) | (?P<number>\d+(?:\.\d+)?) | (?P<name>[a-zA-Z_:][\w:]*)
    | (?P<string>"(?:[^"\\]|\\.)*") | (?P<sign>=~|!~|==|!=|<=|>=|[-+*/%<>=(){}\[\],])
    )""",
    re.VERBOSE,
)


class NotPromqlError(Exception):
    """The error in an expression."""


@dataclass
class Selector:
    """The data selected from Prometheus: a metric, and for each label the operator and value it has
    to satisfy; `by` is the function that takes it as a range, if there is one.
    """

    metric: str
    labels: dict[str, tuple[str, str]]
    by: str = ""


@dataclass
class Parsed:
    """An expression: its kind and selectors; the labels of its values where an aggregation defines
    them (otherwise None); and the labels named by `by ()` and `on ()`, with the selectors that need
    them.
    """

    kind: str
    selectors: list[Selector] = field(default_factory=list)
    labels: set[str] | None = None
    named: list[tuple[str, list[Selector]]] = field(default_factory=list)

    def takes(self, *others: Parsed) -> Parsed:
        """The union with the others."""
        for other in others:
            self.selectors += other.selectors
            self.named += other.named
        return self


def parse(text: str) -> Parsed:
    """Parse an expression. Raises NotPromqlError."""
    reader = _Reader(text)
    found = reader.expression(0)
    if reader.word is not None:
        raise NotPromqlError(f"{reader.word!r} behind the end of {text!r}")
    return found


class _Reader:
    def __init__(self, text: str) -> None:
        self.tokens: list[tuple[str, str]] = []
        end = len(text.rstrip())
        at = 0
        while at < end:
            match = _TOKEN.match(text, at)
            if match is None:
                raise NotPromqlError(f"at {text[at : at + 20]!r}")
            self.tokens.append((str(match.lastgroup), match[str(match.lastgroup)]))
            at = match.end()
        self.at = 0

    @property
    def kind(self) -> str | None:
        return self.tokens[self.at][0] if self.at < len(self.tokens) else None

    @property
    def word(self) -> str | None:
        return self.tokens[self.at][1] if self.at < len(self.tokens) else None

    def take(self, kind: str = "", word: str = "") -> str:
        """The next token, which must be of this kind, or this literal."""
        found = self.word
        if found is None or (kind and self.kind != kind) or (word and found != word):
            raise NotPromqlError(f"{found!r} where {word or kind or 'something'!r} should be")
        self.at += 1
        return found

    def skip(self, *words: str) -> str:
        """The next token if it is one of these, otherwise nothing."""
        return self.take() if self.word in words else ""

    def expression(self, least: int) -> Parsed:
        left = self.operand()
        while self.word in _BINDING and _BINDING[self.word] > least:
            operator = self.take()
            labels, many = self.matching()
            right = self.expression(_BINDING[operator])
            if RANGE in (left.kind, right.kind):
                raise NotPromqlError(f"{operator} of a range")
            if operator in ("and", "or", "unless") and SCALAR in (left.kind, right.kind):
                raise NotPromqlError(f"{operator} of a number")
            made = Parsed(SCALAR if left.kind == right.kind == SCALAR else VECTOR)
            made.labels = right.labels if left.kind == SCALAR or many == "right" else left.labels
            made.takes(left, right)
            for label in labels:
                made.named += [(label, left.selectors), (label, right.selectors)]
            left = made
        return left

    def matching(self) -> tuple[list[str], str]:
        """The clause after an operator: on (...) group_left (...)."""
        labels: list[str] = []
        many = ""
        if self.skip("on", "ignoring"):
            labels = self.listed()
            if side := self.skip("group_left", "group_right"):
                many = side.removeprefix("group_")
                if self.word == "(":
                    self.listed()
        return labels, many

    def listed(self) -> list[str]:
        found: list[str] = []
        self.take(word="(")
        while not self.skip(")"):
            found.append(self.take("name"))
            if self.word != ")":
                self.take(word=",")
        return found

    def operand(self) -> Parsed:
        if self.skip("("):
            inner = self.expression(0)
            self.take(word=")")
            return inner
        if self.kind == "number":
            self.take()
            return Parsed(SCALAR)
        name = self.take("name")
        if name in AGGREGATIONS:
            return self.aggregation(name)
        if self.word == "(":
            return self.call(name)
        return self.selector(name)

    def aggregation(self, name: str) -> Parsed:
        labels = self.listed() if self.skip("by") else []
        parameter = AGGREGATIONS[name]
        parts = self.arguments(name, [VECTOR] if parameter is None else [parameter, VECTOR])
        inner = parts[-1]
        if self.skip("by"):
            labels = self.listed()
        made = Parsed(VECTOR, labels=inner.labels if name == "topk" else set(labels))
        made.named += [(label, inner.selectors) for label in labels]
        if inner.labels is not None and not set(labels) <= inner.labels:
            raise NotPromqlError(f"by {labels} of what has {sorted(inner.labels)}")
        return made.takes(*parts)

    def call(self, name: str) -> Parsed:
        if name not in FUNCTIONS:
            raise NotPromqlError(f"function {name!r}, which is not in tests/promql.py")
        wanted, kind = FUNCTIONS[name]
        parts = self.arguments(name, list(wanted))
        made = Parsed(kind).takes(*parts)
        for part in parts:
            made.labels = part.labels
        if name == "histogram_quantile":
            if made.labels is None or "le" not in made.labels:
                raise NotPromqlError("histogram_quantile of what has no le")
            made.labels = made.labels - {"le"}
        if wanted == (RANGE,):
            made.selectors[0].by = name
        return made

    def arguments(self, name: str, wanted: list[str]) -> list[Parsed]:
        self.take(word="(")
        found: list[Parsed] = []
        while not self.skip(")"):
            found.append(self.expression(0))
            if self.word != ")":
                self.take(word=",")
        if [part.kind for part in found] != wanted:
            raise NotPromqlError(f"{name} of {[part.kind for part in found]}, not {wanted}")
        return found

    def selector(self, name: str) -> Parsed:
        found = Selector(name, {})
        if self.skip("{"):
            while not self.skip("}"):
                label = self.take("name")
                operator = self.skip("=", "!=", "=~", "!~")
                if not operator:
                    raise NotPromqlError(f"{self.word!r} behind the label {label}")
                found.labels[label] = (operator, self.take("string")[1:-1])
                if self.word != "}":
                    self.take(word=",")
        made = Parsed(VECTOR, [found])
        if self.skip("["):
            self.take("duration")
            self.take(word="]")
            made.kind = RANGE
        return made
