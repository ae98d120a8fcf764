"""Hits on a key for which others wait: each is sent as a peek, and overtakes none. No I/O."""

from __future__ import annotations

from rlproxy.ratelimit.hit_replies import integers
from rlproxy.ratelimit.wait_queue import WaitQueues
from rlproxy.resp import encoding
from rlproxy.session.call import Call


def peek_if_queued(call: Call, waiting: WaitQueues, db: int) -> None:
    """Turn a hit into a peek if others wait on its key."""
    if call.rule.takes and waiting.blocks((db, call.key)):
        call.original_rule = call.rule
        call.rule = call.rule.peek()  # counted as the hit


def must_edit(call: Call) -> bool:
    """Return whether the reply to `call` needs edited(): a peek's, or one that wakes hits.

    Hits may begin to wait before the reply comes.
    """
    return call.original_rule is not None or call.rule.frees


def edited(call: Call, reply: bytes, waiting: WaitQueues, db: int) -> bytes:
    """Return the client's reply to a call by that of Redis, and wake the hits that may go."""
    if not reply.startswith((b"*", b":")):
        return reply
    if call.rule.frees and waiting.count > 0:
        for key in _keys(call):
            waiting.freed((db, key))
    rule = call.original_rule
    if rule is None:
        return reply
    found = integers(reply)
    return waiting.overtaking((db, call.key), rule, found) if found else reply


def _keys(call: Call) -> list[bytes]:
    """Return the keys of a call that frees, as bulks. RL.RESET may have several."""
    keys = [call.key]
    tail = call.rule.tail if call.rule.script is None else b""
    pos = 0
    while pos < len(tail):
        end = encoding.content(tail, pos)[1] + 2
        keys.append(tail[pos:end])
        pos = end
    return keys
