"""The reply to RL.HELP, and the request by which Redis sends it to a client."""

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
    "    Replies limited (0 or 1), limit, remaining, retry_after, reset_after.",
    "    * MS: all times of the command and of its reply in milliseconds.",
    "    * ALGO: LOG (default), ZLOG, FIXED, COUNTER, TOKEN, LEAKY or GCRA.",
    "    * COST: weight of the hit (default 1); 0 counts nothing.",
    "    * BURST: capacity of TOKEN, LEAKY and GCRA (default <max>).",
    "    * GAP: least time between two hits that count (LOG, ZLOG).",
    "    * STRICT: refused hits count too (LOG, ZLOG, FIXED).",
    "    * PENALTY: after a refusal, refuse every hit on the key for <t>.",
    "    * WAIT: hold the reply until the hit is admitted, at most for <t>.",
    "    * AND: a further limit on the same key, up to 8 times (LOG, ZLOG).",
    "    * POLICY <name> instead of <max> <window>: a rule of the settings file; COST and WAIT",
    "      may follow. RL.PEEK and RL.REFUND take it, too.",
    (
        "RL.PEEK <key> <max> <window> [MS] [ALGO <name>] [COST <n>] [BURST <n>] [GAP <t>]"
        " [AND <max> <window> ...]"
    ),
    "    What RL.HIT would reply. Writes nothing, so replicas accept it too.",
    "RL.REFUND <key> <max> <window> <n> [MS] [ALGO <name>] [BURST <n>] [AND <max> <window> ...]",
    "    Give back up to <n> hits, the newest first. Replies as RL.PEEK afterwards.",
    "RL.RESET <key> [<key> ...]",
    "    Delete the keys. Replies how many there were.",
    "RL.BLOCK <key> <t> [MS] [ALGO <name>]",
    "    Refuse every hit of this ALGO (default LOG) on <key> until t is over; 0 lifts the block.",
    "    * POLICY <name> instead of ALGO: replies as RL.PEEK by this policy.",
    "CL.THROTTLE <key> <max_burst> <count> <period> [<quantity>]",
    "    As redis-cell: GCRA, <count> per <period> seconds, bursts of <max_burst> + 1.",
    "RL.THROTTLE <key> <max_burst> <count> <period> [<quantity>]",
    "    CL.THROTTLE under the name proposed for Valkey.",
    "RL.STATS",
    "    The proxy's counters since its start, in the style of INFO.",
    "RL.TOP <n> [REFUSED]",
    "    [key, count, error] of the keys with most hits of the last minute.",
    "    With REFUSED those with most refusals, and the policy or rule that refused them.",
    "RL.POLICIES",
    "    [name, rule, mode, hits, refused] of each policy; mode is enforced or shadow.",
    "RL.HELP",
    "    Print this help.",
)


_TABLE: Final = ",".join(["{ok='" + line.replace("'", "\\'") + "'}" for line in LINES])
REQUEST: Final = encoding.bulks(b"EVAL", b"return {" + _TABLE.encode() + b"}", b"0")
