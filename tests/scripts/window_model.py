"""The contract of LOG and ZLOG in naive Python: every stamp in a list, every window counted from
the start.

Models the replies and the key's contents afterwards, not how a script stores them. Times are
integer microseconds, and times in replies whole units, rounded up.
"""

from __future__ import annotations

from dataclasses import dataclass, field

SECOND = 1_000_000
TEN_YEARS_US = 315_360_000 * SECOND


@dataclass(frozen=True)
class Rule:
    """The words of a command except its cost."""

    limits: tuple[tuple[int, int], ...]  # (max, window in µs): the first, then those of AND
    gap_us: int = 0
    strict: bool = False
    penalty_us: int = 0
    unit_us: int = SECOND

    @property
    def longest_us(self) -> int:
        """The longest window: no stamp is kept for longer."""
        return max(window_us for _, window_us in self.limits)

    @property
    def most(self) -> int:
        """The largest max: STRICT and the repair keep no more stamps."""
        return max(limit for limit, _ in self.limits)

    def argv(self, mode: str, amount: int) -> tuple[object, ...]:
        """The script's ARGV; `amount` is the cost, or a refund's n; `mode` hit, peek or refund."""
        gap_us = 0 if mode == "refund" else self.gap_us
        strict = self.strict and mode == "hit"
        word = str(self.penalty_us) if mode == "hit" and self.penalty_us else mode
        more = [gap_us, int(strict)]
        more += [number for limit in self.limits[1:] for number in limit]
        (limit, window_us) = self.limits[0]
        return (
            limit,
            window_us,
            self.unit_us,
            amount,
            word,
            " ".join(map(str, more)) if any(more) else "",
        )


@dataclass(frozen=True)
class View:
    """The limiter as a hit of some cost finds it."""

    reply: list[int]
    refused: bool
    never: bool  # the cost is above a max
    punished: bool  # a penalty runs
    retry_us: int  # exact; 0 if not refused


def up(time_us: int, unit_us: int) -> int:
    """Convert to whole units, rounded up."""
    return -(-time_us // unit_us)


@dataclass
class Model:
    """One key: the stamps of its hits, oldest first, and the end of its penalty."""

    stamps: list[int] = field(default_factory=list)
    until: int | None = None
    wrote: bool = False  # whether the latest call wrote
    ttl_ms: int = 0  # if so, the time to live it set; 0: the key is gone

    def call(self, mode: str, clock: int, rule: Rule, amount: int) -> list[int]:
        """The reply; `mode` is hit, peek or refund."""
        self.wrote = False
        if mode == "refund":
            return self._refund(clock, rule, amount)
        if mode == "peek" or amount == 0:
            return look(self._repaired(clock, rule), self.until, clock, rule, amount).reply
        return self._hit(clock, rule, amount)

    def block(self, clock: int, span_us: int, unit_us: int) -> list[int]:
        """The reply to RL.BLOCK; 0 lifts the block. `ttl_ms` is the least that the key needs.

        A stamp that no rule can have set does not delay.
        """
        self.wrote, self.ttl_ms = span_us > 0 or self.until is not None, 0
        if span_us == 0:
            self.until = None
            return [0, 0, 0, -1, 0]
        now = effective(self.stamps, clock)
        if now - clock > TEN_YEARS_US:
            now = clock
        self.until = now + span_us
        left_us = self.until - clock
        self.ttl_ms = up(left_us, 1000) + 1
        return [1, 0, 0, up(left_us, unit_us), up(left_us, unit_us)]

    def too_far_ahead(self, clock: int, rule: Rule) -> bool:
        """Whether the newest stamp is further ahead of the clock than the rule can produce."""
        return bool(self.stamps) and self.stamps[-1] - clock > rule.longest_us

    def forget(self) -> None:
        """DEL, or the end of the key's time to live."""
        self.stamps, self.until = [], None

    def _repaired(self, clock: int, rule: Rule) -> list[int]:
        if self.too_far_ahead(clock, rule):
            return [clock] * min(len(self.stamps), rule.most)
        return self.stamps

    def _hit(self, clock: int, rule: Rule, cost: int) -> list[int]:
        repair = self.too_far_ahead(clock, rule)
        stamps = self._repaired(clock, rule)
        now = effective(stamps, clock)
        view = look(stamps, self.until, clock, rule, cost)
        if view.punished or view.never:
            if repair:
                self._write(stamps, self.until, clock, rule)
            return view.reply
        if not view.refused:
            self._write(stamps + [now] * cost, None, clock, rule)
            return look(self.stamps, None, clock, rule, 0).reply
        if rule.strict:
            held = [stamp for stamp in stamps if stamp > now - rule.longest_us]
            stamps = (held + [now] * cost)[-rule.most :]
            view = look(stamps, None, clock, rule, cost)
        until = None
        if rule.penalty_us:
            until = max(now + rule.penalty_us, clock + view.retry_us)
            view = look(stamps, until, clock, rule, cost)
        if repair or rule.strict or rule.penalty_us:
            self._write(stamps, until, clock, rule)
        return view.reply

    def _refund(self, clock: int, rule: Rule, count: int) -> list[int]:
        stamps = self._repaired(clock, rule)
        now = effective(stamps, clock)
        held = sum(stamp > now - rule.longest_us for stamp in stamps)
        if held:
            self._write(stamps[: len(stamps) - min(count, held)], self.until, clock, rule)
            stamps = self.stamps
        without_gap = Rule(rule.limits, unit_us=rule.unit_us)
        return look(stamps, self.until, clock, without_gap, 1).reply

    def _write(self, stamps: list[int], until: int | None, clock: int, rule: Rule) -> None:
        self.wrote = True
        self.stamps, self.until = stamps, until
        ends = [stamp + rule.longest_us for stamp in stamps[-1:]]
        ends += [] if until is None else [until]
        left_us = max(ends, default=clock) - clock
        self.ttl_ms = up(left_us, 1000) + 1 if left_us > 0 else 0


def effective(stamps: list[int], clock: int) -> int:
    """The effective time: the clock, unless a stamp is newer."""
    return max([clock, *stamps[-1:]])


def look(stamps: list[int], until: int | None, clock: int, rule: Rule, cost: int) -> View:
    """Evaluate a hit of `cost` on this state; the result is also RL.PEEK's."""
    now = effective(stamps, clock)
    windows = [
        (limit, window_us, [stamp for stamp in stamps if stamp > now - window_us])
        for limit, window_us in rule.limits
    ]
    spares = [max(0, limit - len(held)) for limit, _, held in windows]
    resets_us = [held[-1] + window_us - clock if held else 0 for _, window_us, held in windows]
    never = any(cost > limit for limit, _ in rule.limits)
    waits_us = []
    if cost and not never:
        for limit, window_us, held in windows:
            excess = len(held) + cost - limit  # this number must expire first
            if excess > 0:
                waits_us.append(held[excess - 1] + window_us - clock)
        if stamps and now - stamps[-1] < rule.gap_us:
            waits_us.append(stamps[-1] + rule.gap_us - clock)
    reported = spares.index(min(spares))
    remaining, reset_us = spares[reported], resets_us[reported]
    punished = until is not None and until > now
    if until is not None and punished:
        reported, remaining, reset_us = 0, 0, max(until - clock, resets_us[0])
        waits_us.append(until - clock)
    refused = never or bool(waits_us)
    retry_us = max(waits_us) if refused and not never else 0
    reply = [
        int(refused),
        rule.limits[reported][0],
        remaining,
        up(retry_us, rule.unit_us) if retry_us else -1,
        up(reset_us, rule.unit_us),
    ]
    return View(reply, refused, never, punished, retry_us)
