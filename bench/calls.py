"""The EVALSHA that the proxy sends to Redis for a hit, made by the proxy's grammar."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, cast

import hiredis
from rlproxy.ratelimit import scripts
from rlproxy.ratelimit.grammar import Grammar
from rlproxy.ratelimit.scripts import LOADED
from rlproxy.resp import encoding

from .errors import BenchError

HIT: Final = b"RL.HIT"
GRAMMAR: Final = Grammar(scripts.load())


@dataclass(frozen=True)
class ScriptCall:
    """One hit as EVALSHA, and the script `source` that must be loaded for it."""

    evalsha: tuple[bytes, ...]
    source: bytes


@cache
def of(command: tuple[bytes, ...]) -> ScriptCall:
    """Return the script call of `RL.HIT key max window ...`. Raises BenchError if it is invalid."""
    rule = GRAMMAR.rule(b"", HIT, list(command[1:]))
    if rule.script is None:
        raise BenchError(f"{b' '.join(command).decode()}: {rule.error.decode().strip()}")
    reader = hiredis.Reader()
    reader.feed(rule.words(LOADED) + encoding.bulk(command[1]) + rule.tail)
    return ScriptCall(tuple(cast("list[bytes]", reader.gets())), rule.script.source)


def bare(command: tuple[bytes, ...]) -> ScriptCall:
    """Return the same hit as a call of bare_log.lua, which does the least that is possible."""
    source = Path(__file__).with_name("bare_log.lua").read_bytes()
    sha = hashlib.sha1(source, usedforsecurity=False).hexdigest().encode()
    return ScriptCall((b"EVALSHA", sha, b"1", *of(command).evalsha[3:]), source)
