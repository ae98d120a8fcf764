"""The contents of the pages of docs/: fenced blocks, tables and links.

A `python`, `js` or `sh` block with a `text` block right below it is a program and its output: a
Redis listens on port 6379, the proxy in front of it on 6380.

Without a `text` block, a block in Python or JavaScript prints nothing. A block without a language,
or in `sh` without a `text` block, is typed into a shell (tests/integration/shell.py).

A `redis` block is a session with an empty server: `> ` before each command, its reply below, in the
format of `shown`. `# 2 seconds later` is a pause; other lines that begin with # are remarks.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.harness import DEADLINE_S, ROOT, ReplyError

PAGES = sorted((ROOT / "docs").glob("*.md"))
DECISIONS = ROOT / "docs" / "decisions" / "README.md"  # the table of the records
RECORDS = sorted(DECISIONS.parent.glob("[0-9]*.md"))
# With those of the project's own directory and of the source folders.
EVERY_PAGE = [
    *sorted(ROOT.glob("*.md")),
    *PAGES,
    DECISIONS,
    *RECORDS,
    *(
        path
        for name in ("deploy", "examples", "bench", "tests", "scripts")
        for path in sorted((ROOT / name).rglob("*.md"))
    ),
]

RUN = ("python", "js", "sh")  # the languages of programs

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PAUSE = re.compile(r"# (\d+(?:\.\d+)?) seconds? later")


@dataclass
class Block:
    """A fenced block: its language, text and the line of the page on which it begins."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


@dataclass
class Step:
    """A command of a `redis` block, the reply shown below it, and the pause before it."""

    words: list[str]
    pause_s: float = 0.0
    shown: list[str] = field(default_factory=list)


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page."""
    text = page.read_text()
    return [
        Block(page, text.count("\n", 0, match.start()) + 1, match[1], match[2])
        for match in _FENCED.finditer(text)
    ]


def below(block: Block, others: Iterable[Block]) -> Block | None:
    """The `text` block among `others` that stands right below `block`: its output."""
    end = block.line + block.text.count("\n") + 3
    for other in others:
        if (other.page, other.line, other.language) == (block.page, end, "text"):
            return other
    return None


def programs(page: Path) -> list[tuple[Block, str]]:
    """The programs of a page, each with its output. A program in Python or JavaScript without a
    `text` block prints nothing; a block for the shell without one is typed, and not included.
    """
    found = blocks(page)
    made = []
    for block in found:
        prints = below(block, found)
        if block.language in RUN and (prints or block.language != "sh"):
            made.append((block, prints.text if prints else ""))
    return made


def missing(program: Block) -> list[str]:
    """The packages that a program imports and this machine lacks."""
    if program.language == "python":
        names = re.findall(r"^(?:import|from) (\w+)", program.text, re.MULTILINE)
        return [name for name in names if importlib.util.find_spec(name) is None]
    if program.language == "js":
        if shutil.which("node") is None:
            return ["node"]
        names = re.findall(r'require\("([^"]+)"\)', program.text)
        return [name for name in names if _fails("node", "-e", f"require.resolve('{name}')")]
    words = {"redis-cli", "python"} & set(program.text.split())
    return [word for word in words if shutil.which(word) is None]


def _fails(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, timeout=20).returncode != 0


# The format in which redis-cli shows replies in a terminal.
_IN_A_TERMINAL = 'redis-cli() { command redis-cli --no-raw "$@"; }'


def printed(program: Block, server: int, proxy: int) -> str:
    """A program's output on either stream, with these ports in place of 6379 and 6380."""
    text = re.sub(r"\b6379\b", str(server), program.text)
    text = re.sub(r"\b6380\b", str(proxy), text)
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "program.py"  # programs that start processes need a file
        file.write_text(text)
        done = subprocess.run(
            {
                "python": [sys.executable, str(file)],
                "js": ["node", "-e", text],
                "sh": ["bash", "-ec", f"{_IN_A_TERMINAL}\n{text}"],
            }[program.language],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DEADLINE_S,
            cwd=ROOT,
        )
    return done.stdout


def steps(block: Block) -> list[Step]:
    """The commands of a `redis` block."""
    found: list[Step] = []
    pause_s = 0.0
    for line in block.text.splitlines():
        if (pause := _PAUSE.match(line)) is not None:
            pause_s += float(pause[1])
        elif line.startswith("> "):
            found.append(Step(shlex.split(line[2:]), pause_s))
            pause_s = 0.0
        elif line.strip() and not line.startswith("#"):
            assert found, f"{block}: a reply before the first command"
            found[-1].shown.append(line.rstrip())
    return found


def shown(reply: object) -> list[str]:
    """A reply in the pages' format: arrays of numbers on one line, otherwise as redis-cli does."""
    if isinstance(reply, ReplyError):
        return [f"(error) {reply}"]
    if reply is None:
        return ["(nil)"]
    if isinstance(reply, int):
        return [f"(integer) {reply}"]
    if isinstance(reply, bytes):
        return [f'"{reply.decode()}"']
    if isinstance(reply, list):
        if not reply:
            return ["(empty array)"]
        if all(isinstance(part, int) for part in reply):
            return [" ".join(str(part) for part in reply)]
        found: list[str] = []
        for number, part in enumerate(reply, 1):
            head = f"{number}) "
            for line in shown(part):
                found.append(head + line)
                head = " " * len(head)
        return found
    return [str(reply)]


def rate_limit() -> Any:
    """The function of http-headers.md: a reply, policies and the time -> status and fields."""
    page = ROOT / "docs" / "http-headers.md"
    (block,) = [block for block in blocks(page) if block.language == "python"]
    found: dict[str, Any] = {}
    exec(block.text, found)
    return found["rate_limit"]


def rows(text: str, head: str) -> list[list[str]]:
    """The cells of the table whose first line begins with `head`, without head and rule."""
    lines = text[text.index("\n" + head) + 1 :].splitlines()
    found: list[list[str]] = []
    for line in lines:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    return found[2:]


def outside(page: Path) -> str:
    """The text of a page without its fenced blocks."""
    return _FENCED.sub("", page.read_text())


def links(page: Path) -> list[str]:
    """The targets of a page's links and pictures, without external ones."""
    text = outside(page)
    found = re.findall(r"\]\(([^)\s]+)\)", text)
    return [target for target in found if not re.match(r"[a-z]+:", target)]


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    text = outside(page)
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        plain = re.sub(r"[`*]|\[([^]]*)\]\([^)]*\)", r"\1", heading)
        found.add(re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-"))
    return found
