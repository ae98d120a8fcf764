"""The bytes of replies and requests, and errors of Redis without script details."""

from __future__ import annotations

import pytest
from rlproxy.resp import encoding

SHA = b"0123456789abcdef0123456789abcdef01234567"


def test_error_is_one_line() -> None:
    assert encoding.error("ERR no") == b"-ERR no\r\n"
    assert encoding.error("ERR a\r\nb\nc") == b"-ERR a  b c\r\n"
    assert encoding.error("ERR é") == b"-ERR \xc3\xa9\r\n"
    assert encoding.error("ERR \udcff").count(b"\r\n") == 1


def test_an_unknown_eval_is_reported_without_the_script() -> None:
    for name, args in ((b"'EVAL'", b"'local a' '1' "), (b"`EVAL_RO`", b"`local a`, `1`, ")):
        error = b"-ERR unknown command %b, with args beginning with: %b\r\n" % (name, args)
        cleaned = b"-ERR unknown command %b: RL commands need it on the server\r\n" % name
        assert encoding.clean_error(error) == cleaned
    other = b"-ERR unknown command 'DEL', with args beginning with: 'k' \r\n"
    assert encoding.clean_error(other) == other


def test_only_an_error_is_cleaned() -> None:
    text = b"$40\r\nERR x script: on @user_script:3.%b\r\n" % (b"y" * 8)
    assert encoding.clean_error(text) == text


@pytest.mark.parametrize("word", [b"", b"k", b"a\r\nb", b"x" * 1000])
def test_content_of_a_bulk(word: bytes) -> None:
    data = b"$1\r\na\r\n" + encoding.bulk(word) + b"$"
    start, end = encoding.content(data, 7)
    assert (data[start:end], end) == (word, len(data) - 3)


@pytest.mark.parametrize("other", [b"", b"k", b"kk", b"xk", b"kx", b"x" * 1000 + b"k"])
def test_the_same_bytes(other: bytes) -> None:
    for word in (b"", b"k", b"kk", b"x" * 1000 + b"k"):
        data = b"k" + other + b"k"
        assert encoding.same(word, data, 1, 1 + len(other)) == (word == other)


CLEANED = [
    # as they are
    (b"-NOAUTH Authentication required.\r\n", None),
    (b"-NOPERM this user has no permissions to run the 'eval' command\r\n", None),
    (b"-LOADING Redis is loading the dataset in memory\r\n", None),
    (b"-BUSY Redis is busy running a script.\r\n", None),
    # Redis 6.2 puts it before
    (
        b"-ERR Error running script (call to f_"
        + SHA
        + b"): @user_script:1: @user_script: 1: -OOM command not allowed\r\n",
        b"-OOM command not allowed\r\n",
    ),
    (
        b"-ERR Error running script (call to f_" + SHA + b"): @user_script:7: boom\r\n",
        b"-ERR boom\r\n",
    ),
    (
        b"-user_script:1: attempt to compare nil with number\r\n",
        b"-ERR user_script:1: attempt to compare nil with number\r\n",
    ),
]


@pytest.mark.parametrize(("line", "clean"), CLEANED)
def test_clean_error(line: bytes, clean: bytes | None) -> None:
    assert encoding.clean_error(line) == (line if clean is None else clean)


NO_RIGHT = b"-NOPERM User bob has no permissions to run the '%s' command\r\n"
NO_RIGHT_6 = b"-NOPERM this user has no permissions to run the '%s' command or its subcommand\r\n"
UNKNOWN = b"-ERR unknown command '%s', with args beginning with: 'x'\r\n"
UNKNOWN_6 = b"-ERR unknown command `%s`, with args beginning with: `x`, \r\n"


@pytest.mark.parametrize("form", [NO_RIGHT, NO_RIGHT_6, UNKNOWN, UNKNOWN_6])
@pytest.mark.parametrize("command", [b"eval", b"EVALSHA"])
def test_a_refused_script_command_is_recognized(form: bytes, command: bytes) -> None:
    assert encoding.refused_eval(form % command) == command.upper()


@pytest.mark.parametrize(
    "error",
    [
        *(NO_RIGHT % b"get", UNKNOWN % b"evals", b"-NOSCRIPT No matching script.\r\n"),
        b"-NOPERM No permissions to access a key\r\n",
        b"-ERR unknown command called from script 'EVALSHA'\r\n",
    ],
)
def test_another_error_refuses_no_script_command(error: bytes) -> None:
    assert encoding.refused_eval(error) == b""
