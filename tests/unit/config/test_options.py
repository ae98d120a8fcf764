"""options: the texts that each kind of value accepts."""

from __future__ import annotations

import pytest
from rlproxy.config import options

from tests.unit.config.loading import mistakes, variable


@pytest.mark.parametrize(
    ("flag", "text", "why"),
    [
        ("--denial-cache", "-1", "expected a whole number from 0 to 100000000"),
        ("--denial-cache", "1e3", "expected a whole number from 0 to 100000000"),
        ("--denial-cache", "9" * 5000, "expected a whole number from 0 to 100000000"),
        ("--hit-timeout", "1s", "expected a whole number of milliseconds from 0 to 3600000"),
        ("--max-unread", "1 KB", "expected a whole number of bytes from 1024 to 1073741824"),
        ("--workers", "0", "expected a whole number from 1 to 256"),
        ("--share", "perhaps", "expected auto, yes or no"),
        ("--protected-mode", "perhaps", "expected yes or no"),
    ],
)
def test_a_wrong_number_or_switch(flag: str, text: str, why: str) -> None:
    assert mistakes(f"{flag}={text}") == (f"{flag} {text}: {why}",)
    assert mistakes(**{variable(flag): text}) == (f"{variable(flag)} {text}: {why}",)


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "1000000001", "x", "1 s"])
def test_wrong_seconds(text: str) -> None:
    for flag in ("--connect-timeout", "--drain-timeout"):
        (line,) = mistakes(f"{flag}={text}")
        assert line.startswith(f"{flag} {text}:")
        assert line.endswith("expected a number of seconds above 0 and up to 1000000000")


@pytest.mark.parametrize("text", ["", "8", "0", "60", "1777", "00600", "-1", "rw", "6 0", "\u0660"])
def test_wrong_permissions(text: str) -> None:
    with pytest.raises(ValueError, match="expected permissions such as 600"):
        options.MODE.parse(text)


@pytest.mark.parametrize(("text", "mode"), [("600", 0o600), ("0777", 0o777)])
def test_permissions(text: str, mode: int) -> None:
    assert options.MODE.parse(text) == mode


@pytest.mark.parametrize("mode", range(0o1000))
def test_octal_numbers_of_a_file_are_no_permissions(mode: int) -> None:
    with pytest.raises(ValueError, match="in the file without 0o"):
        options.MODE.parse(str(mode))


@pytest.mark.parametrize("text", ["", "|", "a|", "a|b|c", "\u00e9", "a\x07", "a,b", "a" * 65])
def test_a_wrong_command(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected the name of a command|no command has such"):
        options.COMMANDS.parse(text)


@pytest.mark.parametrize("text", ["config set", "CONFIG|SET"])
def test_a_command(text: str) -> None:
    assert options.COMMANDS.parse(text) == "config|set"


def test_a_wrong_choice() -> None:
    with pytest.raises(ValueError, match=r"^expected a, b or c$"):
        options.choice("a", "a|b|c").parse("d")
