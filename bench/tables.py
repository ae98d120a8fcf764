"""A result as Markdown: its head, its tables, its verdicts; for the terminal and the pages."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Container, Iterable, Sequence
from functools import partial
from typing import Final

from . import rows
from .bounds import BOUNDS, NOT_MEASURED, NOT_MET, Bound, Verdict, judge
from .figures import RATIOS, Figure
from .parts import PARTIES
from .progress import number
from .result import Head, Result

WIDTH: Final = 110  # characters of a line of text
_WRAP: Final = partial(textwrap.fill, width=WIDTH, break_long_words=False, break_on_hyphens=False)
# The tables, in order: title, and the kinds of figures in them.
TABLES: Final = (
    ("Speed", (rows.RATE, rows.VALUES)),
    ("CPU seconds per million commands", (rows.CPU,)),
    ("Hits of one Python program", (rows.TASKS,)),
    ("Hits of one Python program, CPU seconds per million", (f"{rows.TASKS}-{rows.CPU}",)),
    ("One and two proxy processes", (rows.WORKERS,)),
    ("One and two proxy processes, CPU seconds per million", (f"{rows.WORKERS}-{rows.CPU}",)),
    ("Three masters", (rows.CLUSTER,)),
    ("Three masters, CPU seconds per million", (f"{rows.CLUSTER}-{rows.CPU}",)),
    ("Latency at fixed rates", (rows.LATENCY,)),
    ("Start", (rows.START,)),
    ("Memory of each idle client", (rows.IDLE,)),
    ("The script of a plain hit, time in Redis", (rows.COST,)),
)


def text(result: Result) -> str:
    """Return all of a result: head, tables, verdicts."""
    parts = [where(result.head)]
    for title, kinds in TABLES:
        if found := result.of(kinds):
            parts += [f"## {title}", table(found)]
    return flow("\n\n".join([*parts, *verdicts(result)]))


def where(head: Head) -> str:
    """Return the date, the machine, the versions and the method of a run."""
    facts = ", ".join(f"{name.replace('_', ' ')} {of}" for name, of in head.machine.items())
    versions = ", ".join(f"{name} {version}" for name, version in head.versions.items())
    lines = [f"measured on {head.date}", f"machine: {facts}", f"versions: {versions}"]
    return "\n".join(f"- {line[:1].upper()}{line[1:]}." for line in [*lines, *head.sentences])


def table(figures: Sequence[Figure]) -> str:
    """Return medians, ratios and spread of figures in Markdown, with parties in their order."""
    columns = list(dict.fromkeys([*PARTIES, *(name for one in figures for name in one.samples)]))
    lines = [
        [
            *(one.name, one.note, one.unit),
            *(cell(one.medians.get(name)) for name in columns),
            *(_two(one.ratios.get(name)) for name in RATIOS),
            f"{one.spread:.0%}",
        ]
        for one in figures
    ]
    return markdown(" | ".join(["row | what | unit", *columns, *RATIOS, "spread"]), lines, range(3))


def markdown(head: str, lines: Sequence[Sequence[object]], words: Container[int] = ()) -> str:
    """Return a Markdown table without the columns that are empty in all lines.

    head: its first line, such as `row | unit`.
    words: numbers of the columns that contain text; the others are aligned right.
    """
    names = head.split(" | ")
    kept = [place for place in range(len(names)) if any(line[place] != "" for line in lines)]
    rule = ["---" if place in words else "--:" for place in range(len(names))]
    cells = [[str(cell).replace("|", "\\|") for cell in line] for line in lines]
    return "\n".join(
        f"| {' | '.join(line[place] for place in kept)} |" for line in (names, rule, *cells)
    )


def verdicts(result: Result, bounds: Sequence[Bound] = BOUNDS) -> Iterable[str]:
    """Yield the bounds of the rows that were run, beginning with the bounds that are not met."""
    found = judge(result.figures, [row.name for row in rows.choose(result.only)], bounds)
    if not found:
        return
    yield "## What is required, and what was measured"
    missed = [one for one in found if one.word == NOT_MET]
    unknown = [one.bound for one in found if one.word == NOT_MEASURED]
    judged = len(found) - len(unknown)
    if missed:
        yield f"**Not reached: {len(missed)} of the {judged} bounds that were measured.**"
        yield "\n".join(map(_missed, missed))
    elif judged:
        yield f"All of the {judged} bounds that were measured are reached."
    if unknown:
        named = "; ".join(f"{bound.work} ({bound.against})" for bound in unknown)
        yield f"Not measured in this run: {named}."
    lines = []
    for one in found:
        bound = one.bound
        line = [bound.work, bound.against, bound.figure, one.word, _two(one.value), bound.required]
        lines.append([*line, _two(bound.goal), _floor(one)])
    head = "what | against | figure | verdict | measured | required | goal | floor"
    yield markdown(head, lines, range(4))


def _missed(one: Verdict) -> str:
    bound, floor = one.bound, f"; floor: {_floor(one)}" if _floor(one) else ""
    what = f"- {bound.work} ({bound.against}): {_two(one.value)}, to be {bound.required}"
    return f"{what} ({bound.figure}{floor})"


def _floor(one: Verdict) -> str:
    """Return the party that is a verdict's floor, and its value; "" without one."""
    return "" if one.floor is None else f"{one.bound.floor} {one.floor:.2f}"


def _two(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def cell(value: float | None) -> str:
    """Return a value as a table shows it; empty without one."""
    return "" if value is None else number(value)


def flow(text: str) -> str:
    """Return Markdown with its paragraphs and list items wrapped to lines of WIDTH.

    Blocks are separated by empty lines. Headings, tables, pictures and comments stay as they are.
    """
    blocks = []
    for block in filter(None, map(str.strip, text.split("\n\n"))):
        if block.startswith(("#", "|", "!", "<!--")):
            blocks.append(block)
        elif block.startswith("- "):
            items = [" ".join(item.split()) for item in re.split(r"\n(?=- )", block)]
            blocks.append("\n".join(_WRAP(item, subsequent_indent="  ") for item in items))
        else:
            blocks.append(_WRAP(" ".join(block.split())))
    return "\n\n".join(blocks) + "\n"
