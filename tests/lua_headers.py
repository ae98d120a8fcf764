"""The headers of the Lua scripts: `-- word  text` lines, before the code.

The words are fixed. `-- cost` lists the Redis calls of a hit.
"""

from __future__ import annotations

import re
from typing import Final

from rlproxy.ratelimit import scripts
from rlproxy.ratelimit.scripts import Script

_REQUIRED: Final = ("algo", "guarantee", "state", "KEYS[1]", "returns", "cost")
_FIELD: Final = re.compile(r"^-- (\S+)\s+(\S.*)$")
_CONTINUED: Final = re.compile(r"^--\s{3,}(\S.*)$")
_ARGUMENT: Final = re.compile(r"ARGV\[(\d+)\]")


def parse_header(text: str) -> dict[str, str]:
    """Return the header of a script, by word.

    Raises ValueError if a word is missing or repeated, or if a line is not a header line. Raises it
    also if the ARGV in the header are not exactly those that the code reads.
    """
    header: dict[str, str] = {}
    word = ""
    lines = text.splitlines()
    for line in lines:
        if not line.startswith("--"):
            break
        if (field := _FIELD.match(line)) is not None:
            word = field[1]
            if word in header:
                raise ValueError(f"the header has {word} twice")
            header[word] = field[2]
        elif (more := _CONTINUED.match(line)) is not None and word:
            header[word] += " " + more[1]
        else:
            raise ValueError(f"no header line: {line}")
    for word in _REQUIRED:
        if word not in header:
            raise ValueError(f"the header lacks {word}")
    code = "\n".join(line for line in lines if not line.lstrip().startswith("--"))
    read = sorted({int(index) for index in _ARGUMENT.findall(code)})
    documented = [index for index in range(1, 100) if f"ARGV[{index}]" in header]
    if read != documented:
        raise ValueError(f"the header has ARGV {documented}, the code reads {read}")
    return header


# By the stem of the file's name.
HEADERS: Final = {
    path.stem: parse_header(scripts.text(path.stem)) for path in scripts.directory().glob("*.lua")
}


def algorithm_of(script: Script) -> str:
    """Return the value of ALGO that `script` implements."""
    return HEADERS[script.name]["algo"]
