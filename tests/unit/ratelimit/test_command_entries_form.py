"""command_entries: the entries in each protocol, as whole frames."""

from __future__ import annotations

import pytest
from rlproxy.ratelimit.command_entries import ENTRIES, Entry, docs, info
from rlproxy.resp.encoding import bulk

from tests.unit.session.entries import split

BY_NAME = {entry.name: entry for entry in ENTRIES}
IDS = [name.decode() for name in BY_NAME]

RESET_10 = (
    b"*10\r\n$8\r\nrl.reset\r\n:-2\r\n~2\r\n+write\r\n+noscript\r\n:1\r\n:-1\r\n:1\r\n"
    b"~3\r\n+@keyspace\r\n+@write\r\n+@slow\r\n"
    b"~2\r\n$26\r\nrequest_policy:multi_shard\r\n$23\r\nresponse_policy:agg_sum\r\n"
    b"~1\r\n%3\r\n$5\r\nflags\r\n~2\r\n+RM\r\n+delete\r\n"
    b"$12\r\nbegin_search\r\n%2\r\n$4\r\ntype\r\n$5\r\nindex\r\n$4\r\nspec\r\n"
    b"%1\r\n$5\r\nindex\r\n:1\r\n"
    b"$9\r\nfind_keys\r\n%2\r\n$4\r\ntype\r\n$5\r\nrange\r\n$4\r\nspec\r\n"
    b"%3\r\n$7\r\nlastkey\r\n:-1\r\n$7\r\nkeystep\r\n:1\r\n$5\r\nlimit\r\n:0\r\n"
    b"*0\r\n"
)
HELP_10 = (
    b"*10\r\n$7\r\nrl.help\r\n:1\r\n*2\r\n+noscript\r\n+fast\r\n:0\r\n:0\r\n:0\r\n"
    b"*2\r\n+@fast\r\n+@scripting\r\n*0\r\n*0\r\n*0\r\n"
)


def test_entries_in_each_protocol() -> None:
    assert info(BY_NAME[b"rl.reset"], True) == RESET_10
    assert info(BY_NAME[b"rl.help"], False) == HELP_10


@pytest.mark.parametrize("entry", ENTRIES, ids=IDS)
@pytest.mark.parametrize("resp3", [False, True])
def test_entries_are_whole_frames(entry: Entry, resp3: bool) -> None:
    line, values = split(info(entry, resp3))
    assert line == b"*10\r\n"
    assert values[0] == bulk(entry.name)


@pytest.mark.parametrize("entry", ENTRIES, ids=IDS)
@pytest.mark.parametrize("resp3", [False, True])
def test_docs_are_whole_frames(entry: Entry, resp3: bool) -> None:
    line, values = split(b"*2\r\n" + docs(entry, resp3))
    assert values[0] == bulk(entry.name)
    line, values = split(values[1])
    assert line[:1] == (b"%" if resp3 else b"*")
    told = dict(zip(values[::2], values[1::2], strict=True))
    assert int(line[1:]) == (len(told) if resp3 else 2 * len(told))
    assert list(told)[:4] == [
        bulk(word) for word in (b"summary", b"since", b"group", b"complexity")
    ]
    assert (bulk(b"arguments") in told) == bool(entry.arguments)


THROTTLE_DOCS = (
    b"%5\r\n$7\r\nsummary\r\n$47\r\nCL.THROTTLE under the name proposed for Valkey.\r\n"
    b"$5\r\nsince\r\n$5\r\n0.1.0\r\n$5\r\ngroup\r\n$6\r\nmodule\r\n"
    b"$10\r\ncomplexity\r\n$4\r\nO(1)\r\n$9\r\narguments\r\n*5\r\n"
    b"%4\r\n$4\r\nname\r\n$3\r\nkey\r\n$4\r\ntype\r\n$3\r\nkey\r\n"
    b"$12\r\ndisplay_text\r\n$3\r\nkey\r\n$14\r\nkey_spec_index\r\n:0\r\n"
    b"%3\r\n$4\r\nname\r\n$9\r\nmax_burst\r\n$4\r\ntype\r\n$7\r\ninteger\r\n"
    b"$12\r\ndisplay_text\r\n$9\r\nmax_burst\r\n"
    b"%3\r\n$4\r\nname\r\n$5\r\ncount\r\n$4\r\ntype\r\n$7\r\ninteger\r\n"
    b"$12\r\ndisplay_text\r\n$5\r\ncount\r\n"
    b"%3\r\n$4\r\nname\r\n$6\r\nperiod\r\n$4\r\ntype\r\n$7\r\ninteger\r\n"
    b"$12\r\ndisplay_text\r\n$6\r\nperiod\r\n"
    b"%4\r\n$4\r\nname\r\n$8\r\nquantity\r\n$4\r\ntype\r\n$7\r\ninteger\r\n"
    b"$12\r\ndisplay_text\r\n$8\r\nquantity\r\n$5\r\nflags\r\n~1\r\n+optional\r\n"
)
AND_RESP2 = (
    b"*10\r\n$4\r\nname\r\n$3\r\nand\r\n$4\r\ntype\r\n$5\r\nblock\r\n$5\r\ntoken\r\n$3\r\nAND\r\n"
    b"$5\r\nflags\r\n*3\r\n+optional\r\n+multiple\r\n+multiple_token\r\n$9\r\narguments\r\n*2\r\n"
    b"*6\r\n$4\r\nname\r\n$3\r\nmax\r\n$4\r\ntype\r\n$7\r\ninteger\r\n"
    b"$12\r\ndisplay_text\r\n$3\r\nmax\r\n"
    b"*6\r\n$4\r\nname\r\n$6\r\nwindow\r\n$4\r\ntype\r\n$6\r\ndouble\r\n"
    b"$12\r\ndisplay_text\r\n$6\r\nwindow\r\n"
)


def test_docs_in_each_form() -> None:
    throttle = docs(BY_NAME[b"rl.throttle"], True)
    assert throttle == b"$11\r\nrl.throttle\r\n" + THROTTLE_DOCS
    assert docs(BY_NAME[b"rl.hit"], False).endswith(AND_RESP2)
