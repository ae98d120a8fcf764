"""help_text: it names all commands and options, and is a script's reply."""

from __future__ import annotations

from rlproxy.ratelimit import grammar as g
from rlproxy.ratelimit import help_text
from rlproxy.ratelimit.algorithms import ALGORITHMS


def test_help_names_every_command_and_option() -> None:
    text = "\n".join(help_text.LINES)
    assert help_text.LINES[0] == "RL.<subcommand> key [<arg> [value] [opt] ...]. Subcommands are:"
    for name, options in g.OPTIONS.items():
        (line,) = (line for line in help_text.LINES if line.startswith(name.decode()))
        for option in options:
            assert f"[{option.decode()}" in line
    for throttle in g.THROTTLES:
        assert throttle.decode() in text
    for algorithm in ALGORITHMS:
        assert algorithm.decode() in text
    assert "RL.RESET" in text
    assert "RL.HELP" in text


def test_help_is_a_script_of_simple_strings() -> None:
    words = help_text.REQUEST.split(b"\r\n")
    assert words[2] == b"EVAL"
    assert words[4].count(b"{ok='") == len(help_text.LINES)
    for line in help_text.LINES:
        assert line.replace("'", "\\'").encode() in words[4]
        assert "\r" not in line
        assert "\n" not in line
        assert "\\" not in line
    assert words[6] == b"0"
