"""The Lua scripts: their sources, and their SHA-1 digests."""

from __future__ import annotations

import functools
import hashlib
import re
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import rlproxy
from rlproxy.config.config import StartError
from rlproxy.ratelimit.algorithms import ALGORITHMS
from rlproxy.resp import encoding

# The ways in which a call names its script: indices of Script.words. They use texts with different
# digests: from version 7.4 on, Redis may evict a text that came by EVAL first, even after a later
# SCRIPT LOAD.
LOADED: Final = 0  # EVALSHA of the text that the control connection loads
SOURCE: Final = 1  # EVAL of a text that no EVALSHA names
SHADOW: Final = 2  # EVAL of a text that answers a refusal as an admission; see hit_replies

_TOKEN: Final = re.compile(
    r"--[^\n]*|'(?:[^'\\]|\\.)*'|[A-Za-z_]\w*|\d+(?:\.\d+)?|\.\.\.|\.\.|[=~<>]=|\S"
)
_GLUED: Final = re.compile(r"\w\w|--|\[\[")
_INCLUDE: Final = re.compile(r"^-- include (\w+)$", re.MULTILINE)  # a file of lua/shared
_SHADOWED: Final = (
    b"local r=(function()%b end)()if r[1]==1 then r[1],r[4]=0,-1 end return r"  # r: maybe an error
)

BLOCK: Final = "block"  # the script of RL.BLOCK without a policy
# With a policy: block.lua, then the algorithm's script as a peek. In the arguments of the peek the
# length of the block stands in the place of the mode.
_BLOCKING: Final = """
local done = (function(ARGV) %s end)({'%s', ARGV[5], ARGV[3], ARGV[7]})
if done.err then return done end
ARGV[5] = 'peek'
%s"""
# Hits of several keys, each with max, window and unit, at one time. An error of one is its reply.
_GROUP: Final = """local function hit(KEYS, ARGV) %s end
local time, replies = redis.call('TIME'), {}
local clock = time[1] * 1000000 + time[2]
for index = 1, #KEYS do
  local last = 3 * index
  local words = {ARGV[last - 2], ARGV[last - 1], ARGV[last], nil, nil, nil, clock}
  local _, reply = pcall(hit, {KEYS[index]}, words)
  replies[index] = type(reply) == 'table' and reply or {err = reply}
end
return replies"""
MAX_GROUP: Final = 16  # hits of a group, which Redis runs in about 0.1 ms


class Script:
    """A script as Redis runs it.

    name: stem of the file's name, or blocking() of that.
    source: stripped script, as the control connection loads it.
    sha: SHA-1 digest of `source`, in hexadecimal.
    words: the words of a call between the array header and the key, by way. They name the script by
        its digest or a text.
    group: runs several hits of an algorithm in one call; None for other scripts.
    """

    def __init__(self, name: str, source: bytes) -> None:
        self.name = name
        self.source = source
        self.sha = hashlib.sha1(source, usedforsecurity=False).hexdigest().encode()
        programs = (self.sha, source + b" ", _SHADOWED % source)
        number_of_keys = encoding.bulk(b"1")
        self.words: list[bytes] = [
            encoding.bulk(verb) + encoding.bulk(program) + number_of_keys
            for verb, program in zip((b"EVALSHA", b"EVAL", b"EVAL"), programs, strict=True)
        ]
        self.group: Group | None = None


class Group(Script):
    """The script that runs several hits, each as the script of an algorithm does.

    It takes three arguments for each key, and returns a list of replies.

    heads: the request of a call by EVALSHA up to the keys, by their number.
    """

    def __init__(self, of: Script) -> None:
        super().__init__(f"{of.name} group", (_GROUP % of.source.decode()).encode())
        by_sha = encoding.bulk(b"EVALSHA") + encoding.bulk(self.sha)
        self.heads: list[bytes] = [
            b"*%d\r\n" % (3 + 4 * keys) + by_sha + encoding.bulk(b"%d" % keys)
            for keys in range(MAX_GROUP + 1)
        ]


def blocking(name: str) -> str:
    """Return the name of the script that blocks a key and runs the script `name` as a peek."""
    return f"{BLOCK} {name}"


def strip(text: str) -> bytes:
    """Return the same script in fewer bytes: no comments, no needless blanks, short local names.

    The length counts: Redis hashes the body of every EVAL, and every hit in MULTI carries it. A
    local variable must not share its name with a table field written `name =`.
    """
    tokens = [token for token in _TOKEN.findall(text) if not token.startswith("--")]
    short = _short_names(tokens)
    out: list[str] = []
    last = ""
    for token in tokens:
        word = token if last in (".", ":") else short.get(token, token)
        if out and (_GLUED.match(out[-1][-1] + word[0]) or (last[0].isdigit() and word == "..")):
            out.append(" ")
        out.append(word)
        last = token
    return "".join(out).encode()


def _short_names(tokens: list[str]) -> dict[str, str]:
    """Map each name declared by `local`, by `for` or as a parameter to a short unused name."""
    declared: dict[str, None] = {}  # in order
    listing = False  # inside a list of declared names
    before = ""
    for token in tokens:
        if token in ("local", "for"):
            listing = True
        elif listing and token not in ("function", ",", "("):
            listing = before in ("local", "for", "function", ",", "(") and token != ")"
            if listing:
                declared[token] = None
        before = token
    taken = {token for token in tokens if token not in declared}
    free = (name for name in _names() if name not in taken)
    return {name: next(free) for name in declared}


def _names() -> Iterator[str]:
    letters = string.ascii_letters
    yield from letters
    yield from (first + second for first in letters for second in letters)


def directory() -> Path:
    """Return the folder of the Lua files: in the installed package, or at the top of a checkout."""
    package = Path(rlproxy.__file__).resolve().parent  # not __file__: this module may be compiled
    inside = package / "lua"
    return inside if inside.is_dir() else package.parents[1] / "lua"


def text(name: str) -> str:
    """Return the text of the file `name`, with those that it includes. Raises OSError."""
    folder = directory()

    def included(found: re.Match[str]) -> str:
        return (folder / "shared" / f"{found[1]}.lua").read_text()

    return _INCLUDE.sub(included, (folder / f"{name}.lua").read_text())


@functools.cache
def load() -> dict[str, Script]:
    """Return all scripts by name: the stem of the file's name, blocking() of that, and groups.

    They are read once per process. Raises StartError if a Lua file is missing.
    """
    try:
        found = {
            name: Script(name, strip(text(name)))
            for name in [BLOCK, *[row.script for row in ALGORITHMS.values()]]
        }
    except FileNotFoundError as missing:
        raise StartError(f"no {missing.filename}") from None
    more: list[Script] = []
    block = found[BLOCK].source.decode()
    for row in ALGORITHMS.values():
        script = found[row.script]
        script.group = Group(script)
        source = _BLOCKING % (block, row.name.decode(), script.source.decode())
        more += [Script(blocking(row.script), source.encode()), script.group]
    return found | {script.name: script for script in more}
