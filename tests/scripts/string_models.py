"""Naive models of the five string-state algorithms, in exact integers, written from the contract
alone.

A model computes the hits that are free at a given time, and the state after a hit. It finds every
time in a reply by trying clocks until the answer changes, not by solving for it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Generic, NamedTuple, TypeVar

NS = 1000  # nanoseconds in a microsecond
TEN_YEARS_US = 315_360_000 * 1_000_000


@dataclass(frozen=True)
class Rule:
    """A limit: `limit` is max or BURST, `interval_ns` the window or the emission interval."""

    limit: int
    interval_ns: int


def window(limit: int, window_us: int) -> Rule:
    """The rule of a window algorithm."""
    return Rule(limit, window_us * NS)


def bucket(count: int, window_us: int, burst: int | None = None) -> Rule:
    """The rule of a bucket algorithm: `count` hits in `window_us`, at most `burst` at once."""
    return Rule(count if burst is None else burst, max(1, window_us * NS // count))


@dataclass(frozen=True)
class Ask:
    """One call: `mode` is hit, peek or refund; `cost` is n for a refund."""

    cost: int = 1
    mode: str = "hit"
    unit: int = 1_000_000
    penalty_us: int = 0
    strict: bool = False
    wait_us: int | None = None

    def argv(self, algorithm: str, rule: Rule) -> list[object]:
        """The script's ARGV, without trailing arguments that have their defaults."""
        mode = str(self.penalty_us) if self.penalty_us else self.mode
        windowed = algorithm in ("FIXED", "COUNTER")
        span = rule.interval_ns // NS if windowed else rule.interval_ns
        more = "0 1" if self.strict else ""
        if self.wait_us is not None:
            more = str(self.wait_us)
        return [rule.limit, span, self.unit, self.cost, mode, more]


State = TypeVar("State")


@dataclass(frozen=True)
class Kept(Generic[State]):
    """The contents of a key: the limiter's state and the end of a penalty (0: none)."""

    state: State
    until_us: int = 0


class Model(ABC, Generic[State]):
    """One limiter. All times are nanoseconds unless a name has another unit.

    After call(): `choices` are the values the key may hold now (None: gone), and `ttl_ms` is the PX
    of a write (None: the call must not write). With `optional` the write may be omitted too.
    `retry_us` and `reset_us` are the exact times behind the reply. adopt() then takes over the
    server's choice.
    """

    algorithm: ClassVar[str]

    def __init__(self) -> None:
        self.kept: Kept[State] | None = None
        self.choices: list[Kept[State] | None] = []
        self.ttl_ms: int | None = None
        self.optional = False
        self.retry_us = 0
        self.reset_us = 0

    # -- defined by each algorithm -----------------------------------------------------------------

    @abstractmethod
    def newest(self, state: State) -> int:
        """The latest time in the state."""

    @abstractmethod
    def horizon(self, rule: Rule) -> int:
        """The largest distance ahead of the clock that the rule can produce."""

    @abstractmethod
    def repaired(self, state: State, rule: Rule, clock: int) -> State:
        """A state too far ahead, set to the current clock."""

    @abstractmethod
    def spare(self, state: State | None, rule: Rule, clock: int) -> int:
        """The number of hits of cost 1 that are free."""

    @abstractmethod
    def unused(self, state: State | None, rule: Rule, clock: int) -> bool:
        """Whether the state equals that of an unused limiter."""

    @abstractmethod
    def aged(self, state: State | None, rule: Rule, clock: int) -> State | None:
        """The same limiter at `clock`."""

    @abstractmethod
    def taken(self, state: State | None, rule: Rule, clock: int, cost: int) -> State:
        """The state after a hit that counts."""

    @abstractmethod
    def given(self, state: State, rule: Rule, clock: int, hits: int) -> State:
        """The state after a refund."""

    @abstractmethod
    def text(self, state: State) -> str:
        """The stored text."""

    @abstractmethod
    def empty(self) -> State:
        """The state of a limiter that was blocked before its first hit."""

    def effective(self, state: State | None, clock: int) -> int:
        """The clock, or the newest time of the state where that is later."""
        return clock if state is None else max(clock, self.newest(state))

    def hold(self, state: State | None, rule: Rule, clock: int) -> int:
        """How long earlier hits delay a shaped hit."""
        raise NotImplementedError

    # -- common to all algorithms ------------------------------------------------------------------

    def stored(self, kept: Kept[State] | None) -> bytes | None:
        """The key's value."""
        if kept is None:
            return None
        end = f"!{kept.until_us}" if kept.until_us else ""
        return (self.text(kept.state) + end).encode()

    def adopt(self, value: bytes | None) -> None:
        """Continue from `value`, which must be one of those allowed after the latest call."""
        for kept in self.choices:
            if self.stored(kept) == value:
                self.kept = kept
                return
        raise AssertionError(f"{value!r} not in {[self.stored(kept) for kept in self.choices]}")

    def call(self, rule: Rule, clock_us: int, ask: Ask) -> list[int]:
        """Return the reply; the class describes the other results."""
        kept, clock = self.kept, clock_us * NS
        self.choices, self.ttl_ms, self.optional = [kept], None, False
        state = found = kept.state if kept else None
        ahead = found is not None and self.newest(found) - clock > self.horizon(rule)
        if found is not None and ahead:
            state = self.repaired(found, rule, clock)
        until_us = kept.until_us if kept else 0
        if until_us * NS <= self.effective(state, clock):
            until_us = 0
        if ask.mode == "refund":
            if found is not None and state is not None:
                state = self._refund(rule, clock, found, state, until_us, ask.cost)
            ask = replace(ask, cost=1, mode="peek")
            reply = self._refusal_or_look(rule, clock_us, state, until_us, ask)
            if found is not None:
                self.ttl_ms = ttl_ms(self.reset_us)
            return reply

        hit = ask.mode == "hit" and ask.cost > 0
        if not hit or until_us or not self._fits(rule, clock, state, ask):
            never = ask.cost > rule.limit
            wrote = hit and ahead
            if hit and not until_us and not never:
                if ask.strict:
                    state, wrote = self.taken(state, rule, clock, ask.cost), True
                if ask.penalty_us:
                    retry_us = self._retry_us(rule, clock_us, state, ask)
                    now_us = up(self.effective(state, clock), NS)
                    until_us = max(now_us + ask.penalty_us, clock_us + retry_us)
                    wrote = True
            reply = self._refusal_or_look(rule, clock_us, state, until_us, ask)
            if wrote and state is not None:
                # Whether a refusal's write updates the state is left open.
                aged = self.aged(state, rule, clock)
                self.choices = [Kept(state, until_us)]
                if aged is not None:
                    self.choices.append(Kept(aged, until_us))
                self.ttl_ms = ttl_ms(self.reset_us)
            return reply

        hold_us = 0
        if ask.wait_us is not None:
            hold_us = up(self.hold(state, rule, clock), NS)
        state = self.taken(state, rule, clock, ask.cost)
        self.choices = [Kept(state)]
        whole_us = self._reset_us(rule, clock_us, state)
        self.ttl_ms = ttl_ms(whole_us)
        self.retry_us, self.reset_us = -1, whole_us - hold_us
        reply = [0, rule.limit, self.spare(state, rule, clock), -1, up(self.reset_us, ask.unit)]
        return reply if ask.wait_us is None else [*reply, hold_us]

    def block(self, clock_us: int, span_us: int, unit_us: int) -> list[int]:
        """Return the reply to RL.BLOCK; 0 lifts the block. `ttl_ms` is the least that it needs.

        The key holds what it held, or an empty limiter. A time that no rule can have set does
        not delay.
        """
        kept, empty = self.kept, self.empty()
        self.choices, self.ttl_ms, self.optional = [kept], None, False
        if span_us == 0:
            if kept is not None and kept.until_us:
                self.choices = [None if kept.state == empty else Kept(kept.state)]
            return [0, 0, 0, -1, 0]
        state = empty if kept is None else kept.state
        now_us = up(self.effective(state, clock_us * NS), NS)
        if now_us - clock_us > TEN_YEARS_US:
            now_us = clock_us
        left_us = now_us + span_us - clock_us
        self.choices = [Kept(state, now_us + span_us)]
        self.ttl_ms = ttl_ms(left_us)
        return [1, 0, 0, up(left_us, unit_us), up(left_us, unit_us)]

    def _refund(
        self, rule: Rule, clock: int, found: State, state: State, until_us: int, hits: int
    ) -> State:
        given = self.given(state, rule, clock, hits)
        self.optional = given in (state, self.aged(state, rule, clock))
        self.choices = [Kept(given, until_us)]
        if self.optional:  # Nothing to refund: the key may be unchanged or hold the current state.
            self.choices += [self.kept, Kept(state, until_us)]
        elif state != found:
            self.choices.append(Kept(self.given(found, rule, clock, hits), until_us))
        if not until_us and self.unused(given, rule, clock):
            self.choices.append(None)
        return given

    def _fits(self, rule: Rule, clock: int, state: State | None, ask: Ask) -> bool:
        if ask.cost > rule.limit:
            return False
        if ask.wait_us is not None:
            return self.hold(state, rule, clock) <= ask.wait_us * NS
        return ask.cost <= self.spare(state, rule, clock)

    def _retry_us(self, rule: Rule, clock_us: int, state: State | None, ask: Ask) -> int:
        if ask.cost == 0:
            return 0
        return first(lambda us: self._fits(rule, (clock_us + us) * NS, state, ask))

    def _reset_us(self, rule: Rule, clock_us: int, state: State | None) -> int:
        return first(lambda us: self.unused(state, rule, (clock_us + us) * NS))

    def _refusal_or_look(
        self, rule: Rule, clock_us: int, state: State | None, until_us: int, ask: Ask
    ) -> list[int]:
        clock = clock_us * NS
        spare = 0 if until_us else self.spare(state, rule, clock)
        self.reset_us = max(until_us - clock_us, 0, self._reset_us(rule, clock_us, state))
        limited = bool(until_us) or (ask.cost > 0 and not self._fits(rule, clock, state, ask))
        self.retry_us, alone_us = -1, 0  # alone_us: until a penalty ends that alone refuses it
        if limited and ask.cost <= rule.limit:
            own_us = self._retry_us(rule, clock_us, state, ask)
            self.retry_us = max(until_us - clock_us, own_us)
            alone_us = 0 if own_us else until_us - clock_us
        retry = -1 if self.retry_us < 0 else up(self.retry_us, ask.unit)
        reply = [int(limited), rule.limit, spare, retry, up(self.reset_us, ask.unit)]
        return reply if ask.wait_us is None else [*reply, alone_us]


def up(value: int, unit: int) -> int:
    """Convert to whole units, rounded up."""
    return -(-value // unit)


def ttl_ms(left_us: int) -> int:
    """The PX of a limiter that is unused again after this time."""
    return up(left_us, 1000) + 1


def first(true_after: Callable[[int], bool]) -> int:
    """The smallest number from 0 on for which the predicate is true; it must stay true from there
    on.
    """
    if true_after(0):
        return 0
    low, high = 0, 1
    while not true_after(high):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        if true_after(middle):
            high = middle
        else:
            low = middle
    return high


class FixedState(NamedTuple):
    """Hits of the window that began at `start`."""

    hits: int
    start: int


class Fixed(Model[FixedState]):
    """FIXED: a window that begins with the first hit."""

    algorithm = "FIXED"

    def newest(self, state: FixedState) -> int:
        return state.start

    def horizon(self, rule: Rule) -> int:
        return rule.interval_ns

    def repaired(self, state: FixedState, rule: Rule, clock: int) -> FixedState:
        return FixedState(state.hits, clock)

    def aged(self, state: FixedState | None, rule: Rule, clock: int) -> FixedState | None:
        return None if self.unused(state, rule, clock) else state

    def spare(self, state: FixedState | None, rule: Rule, clock: int) -> int:
        running = self.aged(state, rule, clock)
        return max(0, rule.limit - (running.hits if running else 0))

    def unused(self, state: FixedState | None, rule: Rule, clock: int) -> bool:
        return state is None or clock - state.start >= rule.interval_ns

    def taken(self, state: FixedState | None, rule: Rule, clock: int, cost: int) -> FixedState:
        running = self.aged(state, rule, clock) or FixedState(0, clock)
        return FixedState(running.hits + cost, running.start)

    def given(self, state: FixedState, rule: Rule, clock: int, hits: int) -> FixedState:
        if self.unused(state, rule, clock):
            return state
        return FixedState(max(0, state.hits - hits), state.start)

    def text(self, state: FixedState) -> str:
        return f"F{state.hits}:{state.start // NS:016}"

    def empty(self) -> FixedState:
        return FixedState(0, 0)


class CounterState(NamedTuple):
    """Hits of the window that began at `start`, and of the one before."""

    start: int
    current: int
    previous: int


class Counter(Model[CounterState]):
    """COUNTER: the previous window counts in proportion to its overlap with the sliding window."""

    algorithm = "COUNTER"

    def newest(self, state: CounterState) -> int:
        return state.start

    def horizon(self, rule: Rule) -> int:
        return rule.interval_ns

    def repaired(self, state: CounterState, rule: Rule, clock: int) -> CounterState:
        return state._replace(start=clock)

    def aged(self, state: CounterState | None, rule: Rule, clock: int) -> CounterState | None:
        if state is None:
            return None
        start, current, previous = state
        now = max(clock, start)
        for _ in range(2):
            if now - start >= rule.interval_ns:
                start, current, previous = start + rule.interval_ns, 0, current
        if now - start >= rule.interval_ns or not (current or previous):
            return None
        return CounterState(start, current, previous)

    def spare(self, state: CounterState | None, rule: Rule, clock: int) -> int:
        aged = self.aged(state, rule, clock)
        if aged is None:
            return rule.limit
        covered = aged.start + rule.interval_ns - max(clock, aged.start)
        weighed = (rule.limit - aged.current) * rule.interval_ns - aged.previous * covered
        return max(0, weighed // rule.interval_ns)

    def unused(self, state: CounterState | None, rule: Rule, clock: int) -> bool:
        return self.aged(state, rule, clock) is None

    def taken(self, state: CounterState | None, rule: Rule, clock: int, cost: int) -> CounterState:
        now = self.effective(state, clock)
        aged = self.aged(state, rule, clock) or CounterState(now, 0, 0)
        return aged._replace(current=aged.current + cost)

    def given(self, state: CounterState, rule: Rule, clock: int, hits: int) -> CounterState:
        aged = self.aged(state, rule, clock)
        if aged is None:
            return state
        return aged._replace(current=max(0, aged.current - hits))

    def text(self, state: CounterState) -> str:
        return f"C{state.start // NS:016}:{state.current}:{state.previous}"

    def empty(self) -> CounterState:
        return CounterState(0, 0, 0)


class Level(NamedTuple):
    """A whole number of hits (left in TOKEN, taken in LEAKY) at a time."""

    hits: int
    time: int


class LevelModel(Model[Level]):
    """What TOKEN and LEAKY share: a Level as their state."""

    def newest(self, state: Level) -> int:
        return state.time

    def horizon(self, rule: Rule) -> int:
        return rule.limit * rule.interval_ns

    def repaired(self, state: Level, rule: Rule, clock: int) -> Level:
        return Level(state.hits, clock)

    def text(self, state: Level) -> str:
        return f"{self.algorithm[0]}{state.hits}:{state.time:019}"

    def empty(self) -> Level:
        return Level(0, 0)


class Token(LevelModel):
    """TOKEN: up to BURST tokens, one more at every emission interval."""

    algorithm = "TOKEN"

    def aged(self, state: Level | None, rule: Rule, clock: int) -> Level:
        now = self.effective(state, clock)
        if state is None:
            return Level(rule.limit, now)
        fresh = (now - state.time) // rule.interval_ns
        if state.hits + fresh >= rule.limit:
            return Level(rule.limit, now)
        return Level(state.hits + fresh, state.time + fresh * rule.interval_ns)

    def spare(self, state: Level | None, rule: Rule, clock: int) -> int:
        return self.aged(state, rule, clock).hits

    def unused(self, state: Level | None, rule: Rule, clock: int) -> bool:
        return self.spare(state, rule, clock) == rule.limit

    def taken(self, state: Level | None, rule: Rule, clock: int, cost: int) -> Level:
        aged = self.aged(state, rule, clock)
        return Level(aged.hits - cost, aged.time)

    def given(self, state: Level, rule: Rule, clock: int, hits: int) -> Level:
        aged = self.aged(state, rule, clock)
        return Level(min(rule.limit, aged.hits + hits), aged.time)


class Leaky(LevelModel):
    """LEAKY: a level that drains by one at every emission interval and may not exceed BURST."""

    algorithm = "LEAKY"

    def aged(self, state: Level | None, rule: Rule, clock: int) -> Level:
        now = self.effective(state, clock)
        if state is None:
            return Level(0, now)
        drained = (now - state.time) // rule.interval_ns
        if drained >= state.hits:
            return Level(0, now)
        return Level(state.hits - drained, state.time + drained * rule.interval_ns)

    def spare(self, state: Level | None, rule: Rule, clock: int) -> int:
        return max(0, rule.limit - self.aged(state, rule, clock).hits)

    def unused(self, state: Level | None, rule: Rule, clock: int) -> bool:
        return self.aged(state, rule, clock).hits == 0

    def taken(self, state: Level | None, rule: Rule, clock: int, cost: int) -> Level:
        aged = self.aged(state, rule, clock)
        return Level(aged.hits + cost, aged.time)

    def given(self, state: Level, rule: Rule, clock: int, hits: int) -> Level:
        aged = self.aged(state, rule, clock)
        return Level(max(0, aged.hits - hits), aged.time)

    def hold(self, state: Level | None, rule: Rule, clock: int) -> int:
        aged = self.aged(state, rule, clock)
        return aged.time + aged.hits * rule.interval_ns - clock if aged.hits else aged.time - clock


class Gcra(Model[int]):
    """GCRA: the theoretical arrival time, at which all hits taken are paid for; redis-cell's one
    integer.
    """

    algorithm = "GCRA"

    def newest(self, state: int) -> int:
        return state

    def effective(self, state: int | None, clock: int) -> int:
        return clock

    def horizon(self, rule: Rule) -> int:
        return rule.limit * rule.interval_ns

    def repaired(self, state: int, rule: Rule, clock: int) -> int:
        return clock + self.horizon(rule)

    def aged(self, state: int | None, rule: Rule, clock: int) -> int:
        return clock if state is None else max(clock, state)

    def spare(self, state: int | None, rule: Rule, clock: int) -> int:
        debt = self.aged(state, rule, clock) - clock
        return max(0, (self.horizon(rule) - debt) // rule.interval_ns)

    def unused(self, state: int | None, rule: Rule, clock: int) -> bool:
        return state is None or state <= clock

    def taken(self, state: int | None, rule: Rule, clock: int, cost: int) -> int:
        return self.aged(state, rule, clock) + cost * rule.interval_ns

    def given(self, state: int, rule: Rule, clock: int, hits: int) -> int:
        return max(clock, state - hits * rule.interval_ns)

    def text(self, state: int) -> str:
        return f"{state:019}"

    def empty(self) -> int:
        return 0


AnyModel = Model[FixedState] | Model[CounterState] | Model[Level] | Model[int]
MODELS: dict[str, Callable[[], AnyModel]] = {
    model.algorithm: model for model in (Fixed, Counter, Token, Leaky, Gcra)
}
