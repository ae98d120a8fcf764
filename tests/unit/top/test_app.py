"""How `rlproxy top` is called, and what it makes of replies."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from rlproxy import cli
from rlproxy.top.client import Client, Sample

from tests.harness import ROOT

STATS = (
    b"# Server\r\nversion:1.2.3\r\nmean:1.5\r\nuptime_in_seconds:5\r\nhits:7\r\nupstream:a:6379\r\n"
    b"\xff\x1b:\x00\r\n\r\n"
)


WRONG_URL = (
    "argument --url: expected redis[s]://[[USER]:PASSWORD@]HOST:PORT, unix:///PATH, "
    "[tls:]HOST:PORT or unix:PATH"
)


@pytest.mark.parametrize(
    ("args", "wrong"),
    [
        (["--url", "http://x"], WRONG_URL),
        (["--url", "localhost"], WRONG_URL),
        (["--url", "secret@localhost:x"], WRONG_URL),
        (["--url", "redis://:secret@x:y"], WRONG_URL),
        (["--url", "redis://x/?nothing=1"], WRONG_URL),
        (["--interval", "0"], "argument --interval: expected seconds from 0.1 to 3600"),
        (["--interval", "nan"], "argument --interval: expected seconds from 0.1 to 3600"),
        (["--interval"], "argument --interval: expected one argument"),
        (["one", "secret"], "unknown argument; the options are --url URL, --interval"),
    ],
)
def test_wrong_usage(args: list[str], wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["top", *args])
    out, printed = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    usage, line = printed.split("\n", 1)
    assert usage.startswith("usage: rlproxy top [-h] [--url URL]")
    assert line.startswith("rlproxy top: ") and wrong in line
    assert line.count("\n") == 1 and "secret" not in line


def test_without_the_extra() -> None:
    code = (
        "import sys; sys.modules['rich'] = None; from rlproxy.cli import main; "
        "sys.exit(main(['top', '--once']))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    wanted = "rlproxy top: it needs the package rich: pip install rich\n"
    assert (found.returncode, found.stdout, found.stderr) == (1, "", wanted)


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("redis://10.0.0.1", "10.0.0.1:6379"),
        ("rediss://:secret@proxy.example:7000/3", "proxy.example:7000"),
        ("redis://[::1]:7000", "[::1]:7000"),
        ("unix:///run/rlproxy.sock", "unix:/run/rlproxy.sock"),
        ("unix:/run/rlproxy.sock", "unix:/run/rlproxy.sock"),
        ("unix:rlproxy.sock", "unix:rlproxy.sock"),
        ("localhost:6380", "localhost:6380"),
        ("tls:[::1]:7000", "[::1]:7000"),
    ],
)
def test_where_it_is(url: str, where: str) -> None:
    assert Client(url).where == where


def sample(*replies: Any) -> Sample:
    client = Client("redis://")
    found = iter(replies)
    client._redis.execute_command = lambda *_: next(found)  # type: ignore[method-assign]
    return client.sample()


def test_a_sample() -> None:
    refused = [[b"a\x1b", 3, 0, b"5 60"], [b"", 1, 0, b""]]
    policies = [[b"login", b"5 60", b"enforced", 7, 2]]
    found = sample(STATS, [[b"a\x1b", 5, 1], [b"", 2, 0]], refused, policies)
    assert found.stats["upstream"] == "a:6379" and found.stats[r"\xff\x1b"] == r"\x00"
    numbers = [found.numbers[name] for name in ("hits", "mean", "version", "nothing")]
    assert numbers == [7, 1.5, 0, 0]
    assert found.hits == {r"a\x1b": (5, 1, ""), '""': (2, 0, "")}
    assert found.refused == {r"a\x1b": (3, 0, "5 60"), '""': (1, 0, "")}
    assert found.modes == {"login": "enforced"}
    assert (found.numbers["login hits"], found.numbers["login refused"]) == (7, 2)


@pytest.mark.parametrize(
    "replies",
    [
        (),
        (STATS,),
        (b"", [], [], []),
        (b"# Server\r\nredis_version:7.0.0\r\n", [], [], []),
        (STATS.replace(b"hits:7", b"hits:x"), [], [], []),
        (7, [], [], [], []),
        (STATS, None, [], []),
        (STATS, [[b"k", b"x", 0]], [], []),
        (STATS, [[b"k", 10**400, 0]], [], []),
        (STATS, [[1, 1, 1]], [], []),
        (STATS, [b"k", 1, 1], [], []),
        (STATS, [], [], [[b"login", b"5 60", b"enforced", b"x", 0]]),
    ],
)
def test_replies_of_an_unexpected_form(replies: Any) -> None:
    with pytest.raises(ConnectionError, match="unexpected replies; is this an address of --listen"):
        sample(*replies)
