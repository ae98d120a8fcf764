"""The reply to RL.HELP, and the call by which Redis sends it to a client."""

from __future__ import annotations

from typing import Final

from rlproxy.resp import encoding

LINES: Final = (
    "RL.<subcommand> key [<arg> [value] [opt] ...]. Subcommands are:",
    (
        "RL.HIT <key> <max> <window> [MS] [ALGO <name>] [COST <n>] [BURST <n>] [GAP <t>] [STRICT]"
        " [PENALTY <t>] [WAIT <t>] [AND <max> <window> ...]"
    ),
    "    Count a hit on <key>: at most <max> are admitted in any <window> seconds.",
    "    Answers limited (0 or 1), limit, remaining, retry_after, reset_after.",
    "    * MS: all times of the command and of its reply in milliseconds.",
    "    * ALGO: LOG (default), ZLOG, FIXED, COUNTER, TOKEN, LEAKY or GCRA.",
    "    * COST: what the hit weighs (default 1); 0 looks without writing.",
    "    * BURST: capacity of TOKEN, LEAKY and GCRA (default <max>).",
    "    * GAP: least time between two hits that count (LOG, ZLOG).",
    "    * STRICT: refused hits count too (LOG, ZLOG, FIXED).",
    "    * PENALTY: once refused, refuse everything on the key for so long.",
    "    * WAIT: hold the reply until the hit is admitted, at most so long.",
    "    * AND: a further limit on the same key, up to 8 times (LOG, ZLOG).",
    "    * POLICY <name> instead of <max> <window>: a rule of the settings file; COST and WAIT",
    "      may follow. RL.PEEK and RL.REFUND take it, too.",
    (
        "RL.PEEK <key> <max> <window> [MS] [ALGO <name>] [COST <n>] [BURST <n>] [GAP <t>]"
        " [AND <max> <window> ...]"
    ),
    "    What RL.HIT would answer; writes nothing, replicas answer it too.",
    "RL.REFUND <key> <max> <window> <n> [MS] [ALGO <name>] [BURST <n>] [AND <max> <window> ...]",
    "    Give back up to <n> hits, the newest first; answers as RL.PEEK does then.",
    "RL.RESET <key> [<key> ...]",
    "    Forget the limiters; answers how many there were.",
    "RL.BLOCK <key> <t> [MS] [ALGO <name>]",
    "    Refuse every hit of this ALGO (default LOG) on <key> until t is over; 0 lifts the block.",
    "    * POLICY <name> instead of ALGO: answers as RL.PEEK does then.",
    "CL.THROTTLE <key> <max_burst> <count> <period> [<quantity>]",
    "    As redis-cell: GCRA, <count> per <period> seconds, bursts of <max_burst> + 1.",
    "RL.THROTTLE <key> <max_burst> <count> <period> [<quantity>]",
    "    The same.",
    "RL.STATS",
    "    What the proxy has counted since it began, in the style of INFO.",
    "RL.TOP <n> [REFUSED]",
    "    The keys with most hits, or refusals, of the last minute; of each its error, too.",
    "    With REFUSED also the policy or the rule that refused it.",
    "RL.POLICIES",
    "    Of each policy its name, rule, mode (enforced or shadow), hits and refused hits.",
    "RL.HELP",
    "    Print this help.",
)


def _call() -> bytes:
    lines = ",".join("{ok='" + line.replace("'", "\\'") + "'}" for line in LINES)
    return encoding.bulks(b"EVAL", b"return {" + lines.encode() + b"}", b"0")


CALL: Final = _call()
