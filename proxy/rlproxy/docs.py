"""The tables in docs/ that are generated from the code.

`rlproxy docs docs/*.md` replaces the text between `<!-- NAME: ... -->` and
`<!-- /NAME -->`. A test fails if a table differs from the code.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from rlproxy.config.config import OPTIONS
from rlproxy.observability.metrics import ERRORS, PROBLEMS, TABLE


def options() -> str:
    """Return the table of options."""
    rows = ["| option | default | meaning |", "|---|---|---|"]
    group = ""
    for option in OPTIONS:
        if option.group != group:
            group = option.group
            rows.append(f"| **{group}** | | |")
        takes = option.value.takes.replace("|", "\\|")
        default = f"`{option.value.default}`" if option.value.default else ""
        mark = " *" if option.reload else ""
        about = option.help.replace("|", "\\|")
        rows.append(f"| `{option.flag} {takes}`{mark} | {default} | {about} |")
    return "\n".join(rows)


def metrics() -> str:
    """Return the table of metrics."""
    rows = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    for row in TABLE:
        labels = ", ".join(f"`{label}`" for label in row.labels)
        rows.append(f"| `{row.name}` | {row.kind} | {labels} | {row.help} |")
    return "\n".join(rows)


def kinds(what: str, found: Mapping[str, str]) -> str:
    """Return the table of the kinds of a metric; `what` is the heading of their meanings."""
    rows = [f"| `{kind}` | {about} |" for kind, about in found.items()]
    return "\n".join([f"| kind | {what} |", "|---|---|", *rows])


TABLES: Final[Mapping[str, Callable[[], str]]] = {
    "options": options,
    "metrics": metrics,
    "errors": partial(kinds, "what went wrong", ERRORS),
    "problems": partial(kinds, "what is wrong with Redis", PROBLEMS),
}


def filled(text: str) -> str:
    """Return `text` with every table generated anew."""
    for name, table in TABLES.items():
        text = replaced(text, name, table()) or text
    return text


def replaced(text: str, name: str, block: str) -> str | None:
    """Return `text` with `block` between the markers of `name`; None if it has no such markers."""
    begin = re.search(rf"<!-- {name}:.*?-->\n", text)
    end = text.find(f"<!-- /{name} -->")
    if begin is None or end < begin.end():
        return None
    return f"{text[: begin.end()]}{block}\n{text[end:]}"


def main(argv: Sequence[str]) -> int:
    """Run `rlproxy docs FILE ...`: write the tables into the files.

    Returns the exit code: 0, or 2 if a file can't be read or written.
    """
    parser = argparse.ArgumentParser("rlproxy docs", description="Write the tables into the files.")
    parser.add_argument("file", nargs="+", help="a Markdown file with markers of tables")
    for name in parser.parse_args(argv).file:
        path = Path(name)
        try:
            path.write_text(filled(path.read_text()))
        except OSError as error:
            print(f"rlproxy docs: {name}: {error.strerror}", file=sys.stderr)
            return 2
    return 0
