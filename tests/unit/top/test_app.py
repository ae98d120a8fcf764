"""top: how `rlproxy top` is called, and what ends it."""

from __future__ import annotations

import pytest
from rlproxy import cli
from rlproxy.top.app import Client


@pytest.mark.parametrize(
    ("args", "wrong"),
    [
        (
            ["--url", "http://x"],
            "--url http://x: expected redis://HOST:PORT, rediss://HOST:PORT or",
        ),
        (["--url", "localhost:6380"], "--url localhost:6380: expected redis://HOST:PORT"),
        (["--url", "redis://:secret@x:y"], "--url redis://***@x:y: "),
        (["--url", "redis://x/?nothing=1"], "a parameter that is not known"),
        (["--interval", "0"], "argument --interval: expected seconds from 0.1 to 3600"),
        (["--interval", "nan"], "argument --interval: expected seconds from 0.1 to 3600"),
        (["--interval"], "argument --interval: expected one argument"),
        (["one", "secret"], "an argument too many; the proxy's address is given with --url URL"),
        ([], "this is no terminal; --once prints one frame"),
    ],
)
def test_wrong_usage(args: list[str], wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code: object = cli.main(["top", *args])
    except SystemExit as ended:
        code = ended.code
    out, line = capsys.readouterr()
    assert (code, out) == (2, "")
    assert line.startswith("rlproxy top: ") and wrong in line
    assert line.count("\n") == 1 and "secret" not in line


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["top", "--help"])
    assert ended.value.code == 0
    out, _ = capsys.readouterr()
    assert "REDISCLI_AUTH" in out and "rlproxy top --once" in out and "\n  busiest " in out
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    assert "rlproxy top --help" in capsys.readouterr()[0]


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("redis://", "127.0.0.1:6380"),
        ("redis://10.0.0.1", "10.0.0.1:6380"),
        ("rediss://:secret@proxy.example:7000/3", "proxy.example:7000"),
        ("redis://[::1]:7000", "[::1]:7000"),
        ("unix:///run/rlproxy.sock", "/run/rlproxy.sock"),
    ],
)
def test_where_it_is(url: str, where: str) -> None:
    assert Client(url).where == where
