"""Build information that the process reports."""

from __future__ import annotations

import platform

from rlproxy.resp import requests
from rlproxy.version import VERSION, compiled, describe


def test_compiled_reports_how_the_hot_modules_run() -> None:
    assert compiled() == (not requests.__file__.endswith(".py"))


def test_describe_is_one_line() -> None:
    line = describe()
    assert line.startswith(VERSION + " (")
    assert ("interpreted" in line) != ("compiled" in line)
    assert ("compiled" in line) == compiled()
    assert platform.python_version() in line
    assert "\n" not in line


def test_version_is_three_numbers() -> None:
    numbers = VERSION.split(".")
    assert len(numbers) == 3
    assert all(number.isdigit() for number in numbers)
