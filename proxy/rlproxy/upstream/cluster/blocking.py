"""The timeout of a blocking command: what is left of it when the command is sent again."""

from __future__ import annotations

from typing import Final

from rlproxy.resp.encoding import bulks
from rlproxy.upstream.cluster.command_splitter import COMMAND, CommandSplitter
from rlproxy.upstream.cluster.routes import BLOCKS_OPTION, timeout_at

_LEAST_S: Final = 0.001  # zero would block for ever


def with_rest(written: bytes, blocks: int, passed_s: float) -> bytes:
    """Return a blocking command with the rest of its timeout.

    written: the command as an array of bulks.
    blocks: where its timeout stands; see Route.blocks.
    passed_s: time that it has blocked.
    """
    splitter = CommandSplitter()
    splitter.feed(written)
    if splitter.next() != COMMAND:
        return written
    words = list(splitter.words)
    at = timeout_at(blocks, words[1:]) + 1
    if at == 0:
        return written
    unit_s = 0.001 if blocks == BLOCKS_OPTION else 1.0
    try:
        timeout_s = float(words[at]) * unit_s
    except ValueError:
        return written
    if timeout_s <= 0.0:
        return written
    left_s = max(timeout_s - passed_s, _LEAST_S)
    words[at] = b"%d" % max(1, round(left_s / unit_s)) if unit_s < 1.0 else b"%.3f" % left_s
    return bulks(*words)
