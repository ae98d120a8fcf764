"""The text of a rule: the words of RL.HIT behind the key, from a parsed hit."""

from __future__ import annotations

from rlproxy.ratelimit.algorithms import DEFAULT_ALGORITHM, MICROSECONDS, MILLISECONDS, Limiter


def rule_text(limiter: Limiter) -> bytes:
    """Return the words that RL.HIT takes for `limiter`; those of CL.THROTTLE become GCRA's."""
    ms = limiter.unit_us == MILLISECONDS
    words = [b"%d" % limiter.max, _time(limiter.window_us, ms)]
    if ms:
        words.append(b"MS")
    if limiter.algorithm.name != DEFAULT_ALGORITHM:
        words += [b"ALGO", limiter.algorithm.name]
    if limiter.cost != 1:
        words += [b"COST", b"%d" % limiter.cost]
    if limiter.burst:
        words += [b"BURST", b"%d" % limiter.burst]
    if limiter.strict:
        words.append(b"STRICT")
    for word, time_us in (
        (b"GAP", limiter.gap_us),
        (b"PENALTY", limiter.penalty_us),
        (b"WAIT", limiter.wait_us),
    ):
        if time_us:
            words += [word, _time(time_us, ms)]
    for most, window_us in limiter.limits:
        words += [b"AND", b"%d" % most, _time(window_us, ms)]
    return b" ".join(words)


def _time(time_us: int, ms: bool) -> bytes:
    """Return a time as RL.HIT takes it: in milliseconds, or in seconds."""
    if ms:
        return b"%d" % (time_us // MILLISECONDS)
    seconds = b"%d.%06d" % divmod(time_us, MICROSECONDS)
    return seconds.rstrip(b"0").rstrip(b".")
