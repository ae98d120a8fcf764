"""A result as Markdown: its head, its tables, its verdicts; for the terminal and the pages."""

from __future__ import annotations

import textwrap
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Final

from . import bounds
from .parts import PARTIES
from .progress import number
from .report import TABLES
from .result import Result, Row, wanted

WIDTH: Final = 110  # characters of a line of text


def text(result: Result) -> str:
    """Return all of a result: head, tables, verdicts."""
    parts = [bullets(where(result.date, result.machine, result.versions, result.sentences))]
    for title, kinds in TABLES:
        rows = result.of(kinds)
        if rows:
            parts += [f"## {title}", table(rows)]
    return "\n\n".join([*parts, *verdicts(result)]) + "\n"


def where(
    date: str,
    machine: Mapping[str, object],
    versions: Mapping[str, object],
    sentences: Iterable[str],
) -> Iterable[str]:
    """Yield the date, the machine, the versions and the method of a run as sentences."""
    facts = ", ".join(f"{name.replace('_', ' ')} {of}" for name, of in machine.items())
    yield f"Measured on {date}."
    yield f"Machine: {facts}."
    yield f"Versions: {', '.join(f'{name} {version}' for name, version in versions.items())}."
    yield from (f"{line[:1].upper()}{line[1:]}." for line in sentences)


def table(rows: Sequence[Row]) -> str:
    """Return medians, ratios and spread of rows in Markdown."""
    columns, ratios = _columns(rows), union(row["ratios"] for row in rows)
    lines = [["row", "what", "unit", *columns, *ratios, "spread"]]
    for row in rows:
        medians, found = row["medians"], row["ratios"]
        line = [row["name"], row["note"], row["unit"]]
        line += [cell(medians.get(name)) for name in columns]
        line += [f"{found[name]:.2f}" if name in found else "" for name in ratios]
        lines.append([*line, f"{row['spread']:.0%}"])
    return markdown(lines, range(3))


def _columns(rows: Sequence[Row]) -> list[str]:
    """Return the columns of the rows, parties first, in the order of PARTIES."""
    found = union(row["medians"] for row in rows)
    return sorted(found, key=lambda name: PARTIES.index(name) if name in PARTIES else len(PARTIES))


def markdown(lines: Sequence[Sequence[str]], words: Container[int]) -> str:
    """Return a Markdown table without the columns that are empty in all lines but the head.

    lines: the first one is the head.
    words: numbers of the columns that contain text; the others are aligned right.
    """
    head, *rest = lines
    kept = [place for place in range(len(head)) if any(line[place] for line in rest)]
    shown = [[line[place].replace("|", "\\|") for place in kept] for line in lines]
    rule = ["---" if place in words else "--:" for place in kept]
    return "\n".join(f"| {' | '.join(line)} |" for line in (shown[0], rule, *shown[1:]))


def verdicts(result: Result) -> Iterable[str]:
    """Yield the bounds and the measured values, beginning with the bounds that are not met."""
    if not result.verdicts:
        return
    yield "## What is required, and what was measured"
    missed = [one for one in result.verdicts if one["verdict"] == bounds.NOT_MET]
    unknown = [one for one in result.verdicts if one["verdict"] == bounds.NOT_MEASURED]
    judged = len(result.verdicts) - len(unknown)
    if missed:
        yield wrapped(f"**Not reached: {len(missed)} of the {judged} bounds that were measured.**")
        yield bullets(_missed(one) for one in missed)
    elif judged:
        yield wrapped(f"All of the {judged} bounds that were measured are reached.")
    if unknown:
        named = "; ".join(f"{one['work']} ({one['against']})" for one in unknown)
        yield wrapped(f"Not measured in this run: {named}.")
    lines = [["what", "against", "figure", "verdict", "measured", "required", "goal", "floor"]]
    for one in result.verdicts:
        sign, bound = wanted(one)
        goal = one["goal"]
        line = [one["work"], one["against"], f"{one['figure']}: {one['of']}", one["verdict"]]
        line += ["" if one["value"] is None else f"{one['value']:.2f}", f"{sign} {bound:.2f}"]
        lines.append([*line, "" if goal is None else f"{goal:.2f}", _floor(one)])
    yield markdown(lines, range(4))


def _missed(one: Row) -> str:
    sign, bound = wanted(one)
    return (
        f"{one['work']} ({one['against']}): {one['value']:.2f}, to be {sign} {bound:.2f} "
        f"({one['figure']}: {one['of']}{'; floor: ' if _floor(one) else ''}{_floor(one)})"
    )


def _floor(one: Row) -> str:
    """Return the party that is a verdict's floor, and its value; "" without one."""
    value = one["floor_value"]
    return "" if value is None else f"{one['floor']} {value:.2f}"


def cell(value: float | None) -> str:
    """Return a value as a table shows it; empty without one."""
    return "" if value is None else number(value)


def union(names: Iterable[Iterable[str]]) -> list[str]:
    """Return every name once, in order of first occurrence."""
    return list(dict.fromkeys(name for some in names for name in some))


def wrapped(words: str, first: str = "", rest: str = "") -> str:
    """Return a paragraph in lines of WIDTH."""
    return textwrap.fill(
        " ".join(words.split()),
        WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def bullets(lines: Iterable[str]) -> str:
    """Return a list in Markdown."""
    return "\n".join(wrapped(line, "- ", "  ") for line in lines)
