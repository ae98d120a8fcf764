"""command_splitter: commands in bytes that come in pieces of any size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rlproxy.resp import requests as c
from rlproxy.upstream.cluster.command_splitter import CommandSplitter

from tests.harness import command

WORDS = st.lists(st.binary(max_size=20), min_size=1, max_size=5)


def split(pieces: list[bytes]) -> tuple[list[list[bytes]], list[bytes], int]:
    """Return the words and the requests of all commands, and the last result."""
    splitter = CommandSplitter()
    words: list[list[bytes]] = []
    written: list[bytes] = []
    code = c.NEED_MORE
    for piece in pieces:
        splitter.feed(piece)
        while (code := splitter.next()) not in (c.NEED_MORE, c.MALFORMED):
            if code == c.COMMAND:
                words.append(splitter.argv)
                written.append(splitter.written)
        if code == c.MALFORMED:
            break
        splitter.release()
    return words, written, code


@given(st.lists(WORDS, max_size=6), st.integers(1, 40))
def test_commands_in_pieces(commands: list[list[bytes]], size: int) -> None:
    data = b"".join(command(*each) for each in commands)
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    assert split(pieces) == (commands, [command(*each) for each in commands], c.NEED_MORE)


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_inline_and_empty_requests(size: int) -> None:
    data = b'PING\r\n\r\n*0\r\n*-1\r\nset k "a b"\n' + command("GET", "k")
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    words, written, code = split(pieces)
    assert words == [[b"PING"], [b"set", b"k", b"a b"], [b"GET", b"k"]]
    assert written == [command(*each) for each in words]
    assert code == c.NEED_MORE


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_what_servers_do_not_check(size: int) -> None:
    data = b"*2\rx$3\ryGETab$1\rzkcd" + command("GET", "k" * 20_000)
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    words, written, code = split(pieces)
    assert words == [[b"GET", b"k"], [b"GET", b"k" * 20_000]]
    assert b"".join(written) == data
    assert code == c.NEED_MORE


@pytest.mark.parametrize(
    "data",
    [
        b"*x\r\n",
        b"*1\r\n+\r\n",
        b"*1\r\n$x\r\n",
        b"*1\r\n$-1\r\n",
        b"*1\r\n$536870913\r\n",
        b"*2\r\n$3\r\nGET\r\n$536870913\r\n" + command("KEYS", "*"),
        b'SET "k\r\n',
        b"*99999999999\r\n",
        b"x" * 70_000,
    ],
)
def test_what_is_malformed(data: bytes) -> None:
    splitter = CommandSplitter()
    splitter.feed(command("PING") + data)
    assert splitter.next() == c.COMMAND
    assert splitter.next() == c.MALFORMED
    assert splitter.rest() == data


@pytest.mark.parametrize("size", [1, 7, 1000, 60_000])
def test_an_open_command_that_turns_out_malformed_is_kept_whole(size: int) -> None:
    begin = b"*3\r\n$3\r\nSET\r\n$30000\r\n" + b"k" * 30_000 + b"\r\n"
    data = begin + b"$536870913\r\n" + command("KEYS", "*")
    splitter = CommandSplitter()
    code = c.NEED_MORE
    for at in range(0, len(data), size):
        splitter.feed(data[at : at + size])
        code = code if code == c.MALFORMED else splitter.next()
        splitter.release()
    assert code == c.MALFORMED
    assert splitter.rest() == data
