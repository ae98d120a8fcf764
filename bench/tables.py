"""A result as Markdown: its head, its tables, its verdicts."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Container, Iterable, Sequence
from functools import partial
from typing import Final

from .bounds import BOUNDS, NOT_MET, Bound
from .figures import Figure, number
from .parts import PARTIES
from .result import Head, Result

WIDTH: Final = 110  # characters of a line of text
_WRAP: Final = partial(textwrap.fill, width=WIDTH, break_long_words=False, break_on_hyphens=False)
# ratios of the figures that have both columns
RATIOS: Final = (
    *(("proxy", party) for party in PARTIES if party not in ("proxy", "share", "stub")),
    *(("share", "haproxy"), ("share", "twemproxy"), ("proxy", "script"), ("proxy", "limits")),
    *(("evalsha", "bare"), ("2-workers", "1-worker")),
)


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
            *(_two(one.ratio(*pair)) for pair in RATIOS),
            f"{one.spread:.0%}",
        ]
        for one in figures
    ]
    head = ["row | what | unit", *columns, *map("/".join, RATIOS), "spread"]
    return markdown(" | ".join(head), lines, range(3))


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
    """Yield the bounds, beginning with those that are not met.

    After a run of some rows only, bounds that were not measured are left out.
    """
    by_name = {figure.name: figure for figure in result.figures}
    lines, missed, unknown = [], [], []
    for one in bounds:
        figure = by_name.get(one.figure, Figure("", "", ""))
        value = figure.ratio(one.over, one.under) if one.under else figure.medians.get(one.over)
        if value is None and result.only:
            continue
        verdict, beyond = one.verdict(value), figure.ratio(one.floor, one.under)
        floor = "" if beyond is None else f"{one.floor} {beyond:.2f}"
        line = [one.work, one.against, one.value, verdict, _two(value), one.required]
        lines.append([*line, _two(one.goal), floor])
        if value is None:
            unknown.append(f"{one.work} ({one.against})")
        elif verdict == NOT_MET:
            why = f"{one.value}; floor: {floor}" if floor else one.value
            what = f"{one.work} ({one.against}): {value:.2f}, to be {one.required}"
            missed.append(f"- {what} ({why})")
    if not lines:
        return
    yield "## What is required, and what was measured"
    judged = len(lines) - len(unknown)
    if missed:
        yield f"**Not reached: {len(missed)} of the {judged} bounds that were measured.**"
        yield "\n".join(missed)
    elif judged:
        yield f"All of the {judged} bounds that were measured are reached."
    if unknown:
        yield f"Not measured in this run: {'; '.join(unknown)}."
    head = "what | against | figure | verdict | measured | required | goal | floor"
    yield markdown(head, lines, range(4))


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
