"""waits: the table in the module's docstring, and the masks of events."""

from __future__ import annotations

import inspect
import re

from rlproxy.session import fail_open, router, session, waits

DOC = waits.__doc__ or ""
TABLE, _, EVENTS = DOC.partition("An event of the left column")
MASKS = ("ENDED_BY_REPLIES", "CLOSE")
WAITS = {name: value for name, value in vars(waits).items() if name.isupper() and name not in MASKS}


def test_the_table_names_every_wait_once() -> None:
    rows = re.findall(r"^    ([A-Z]+) ", TABLE, re.MULTILINE)
    assert sorted(rows) == sorted(WAITS)


def test_every_row_names_the_end_of_the_wait_and_all_its_setters() -> None:
    parts = {"router": router, "session": session, "fail open": fail_open}
    for row in re.findall(r"^    [A-Z]+ .*", TABLE, re.MULTILINE):
        name, _end, setters = re.split(r"  +", row.strip())
        sets = re.compile(rf"(return|[^=!]=) waits\.{name}\b")
        found = [part for part, module in parts.items() if sets.search(inspect.getsource(module))]
        assert setters == ("all of them" if len(found) == len(parts) else ", ".join(found)), row


def test_waits_are_distinct_bits() -> None:
    bits = [value for name, value in WAITS.items() if name != "NOTHING"] + [waits.CLOSE]
    assert waits.NOTHING == 0
    assert all(value.bit_count() == 1 for value in bits)
    assert len(set(bits)) == len(bits)


def test_every_wait_is_ended_by_an_event() -> None:
    unended = [name for name, value in WAITS.items() if value & ~waits.ENDED_BY_REPLIES]
    # Other events end them.
    assert unended == ["OPEN", "TICK", "HELD", "READ"]


def test_the_table_of_events_names_masks_and_waits_that_exist() -> None:
    named = set(re.findall(r"\b[A-Z_]{4,}\b", EVENTS))
    assert named <= set(vars(waits))
    assert {name for name in vars(waits) if name.startswith("ENDED_BY_")} <= named
