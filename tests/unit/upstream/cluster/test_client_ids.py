"""client_ids: ids with the number of their node, in arguments and in replies of real servers."""

from __future__ import annotations

import pytest
from rlproxy.upstream.cluster import client_ids as c


def test_redirection_is_shown() -> None:
    text = b"$30\r\nid=5 name=id=5 redir=7 resp=2\r\n"
    body = b"id=%d name=id=5 redir=%d resp=2" % (c.shown_id(5, 1), c.shown_id(7, 1))
    assert c.shown_text(text, 1) == b"$%d\r\n%b\r\n" % (len(body), body)


@pytest.mark.parametrize("frame", [b"-ERR x\r\n", b"$-1\r\n", b"_\r\n"])
def test_other_replies_stay(frame: bytes) -> None:
    assert c.shown_integer(frame, 3) == frame
    assert c.shown_text(frame, 3) == frame
    assert c.shown_hello(frame, 3) == frame


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("LIST", "LIST"),
        ("LIST ID {5@1}", "LIST ID 5"),
        ("LIST id {5@1} {6@2} {7@1}", "LIST id 5 NONE 7"),
        ("LIST ID {5@2}", "LIST ID NONE"),
        ("LIST ID x", "LIST ID x"),
        ("KILL TYPE normal ID {5@1} SKIPME no", "KILL TYPE normal ID 5 SKIPME no"),
        ("KILL ID {5@0}", "KILL ID NONE"),
        ("KILL ID 0", "KILL ID 0"),
        ("KILL NOT-ID {5@2} {6@2} USER u", "KILL NOT-ID NONE NONE USER u"),
        ("KILL NOT-ID {5@2} {6@1}", "KILL NOT-ID NONE 6"),
        ("KILL ID ID {5@1}", "KILL ID ID 5"),
        ("KILL ADDR 127.0.0.1:5", "KILL ADDR 127.0.0.1:5"),
        ("KILL ID", "KILL ID"),
        ("UNBLOCK {5@1} ERROR", "UNBLOCK 5 ERROR"),
        ("UNBLOCK {5@2}", "UNBLOCK NONE"),
        ("KILL MAXAGE 5", "KILL MAXAGE 5"),
    ],
)
def test_arguments(line: str, expected: str) -> None:
    args = []
    for word in line.split():
        own, _, node = word.strip("{}").partition("@")
        args.append(str(c.shown_id(int(own), int(node))).encode() if node else word.encode())
    found = c.args_for(args, 1)
    assert found == expected.encode().replace(b"NONE", c._NONE).split()
