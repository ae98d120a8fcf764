"""The log: JSON with stable names, sentences that clients cannot forge, no blocking writes."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from rlproxy.downstream import admission
from rlproxy.observability.logs import configure, log

from tests.documents import blocks
from tests.harness import ROOT

TEXT = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) ([A-Z]+) (.*)\n")
CANNOT = ("redis_unreachable", "cannot reach Redis at {address}: {reason}; retrying")


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    root = logging.getLogger()
    kept = (root.handlers[:], root.level, sys.excepthook, sys.unraisablehook, threading.excepthook)
    yield
    root.handlers[:], level, sys.excepthook, sys.unraisablehook, threading.excepthook = kept
    root.setLevel(level)
    logging.captureWarnings(False)


class Stream(io.TextIOWrapper):
    """A file in the place of standard error."""

    def __init__(self) -> None:
        file = tempfile.TemporaryFile()  # noqa: SIM115 - it is closed with this stream
        super().__init__(file, "utf-8", "backslashreplace", newline="")

    def getvalue(self) -> str:
        self.seek(0)
        return self.read()


def made(form: str = "json", level: str = "info", worker: int = 0) -> Stream:
    stream = Stream()
    configure(level, form, worker, stream)
    return stream


def objects(stream: Stream) -> list[dict[str, Any]]:
    """Every line, parsed; a line that is no object fails."""
    text = stream.getvalue()
    assert not text or text.endswith("\n")
    found = [json.loads(line) for line in text.split("\n")[:-1]]
    assert all(isinstance(each, dict) for each in found)
    return found


def one(stream: Stream) -> dict[str, Any]:
    found = objects(stream)
    assert len(found) == 1, found
    return found[0]


# -- JSON ------------------------------------------------------------------------------------------


def test_an_event_and_its_values() -> None:
    stream = made()
    log.warning(*CANNOT, address="10.0.0.1:6379", reason="connection refused")
    found = one(stream)
    assert list(found)[:4] == ["timestamp", "level", "event", "message"]
    at = found.pop("timestamp")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", at)
    assert abs(datetime.now().astimezone() - datetime.fromisoformat(at)) < timedelta(minutes=1)
    assert found == {
        "level": "warning",
        "event": "redis_unreachable",
        "message": "cannot reach Redis at 10.0.0.1:6379: connection refused; retrying",
        "address": "10.0.0.1:6379",
        "reason": "connection refused",
    }


@pytest.mark.parametrize("form", ["json", "text"])
def test_no_value_begins_a_line_of_its_own(form: str) -> None:
    stream = made(form)
    evil = 'a\n{"level": "error"}\r\n\x1b[2J\x00\x85\u2028\u202e\udc80%s %d{x}{0}{'
    log.warning(*CANNOT, address="h", reason=evil)
    log.warning("other", "{reason}", reason=evil)
    log.warning("tls_handshakes_failed", "{client}", client=evil, reason=evil)
    lines = stream.getvalue().splitlines()  # (which knows more ends of lines than \n)
    assert len(lines) == 3
    assert all(line.isprintable() for line in lines)
    if form == "json":
        first, second, last = objects(stream)
        assert first["reason"] == second["message"] == last["reason"] == evil
    else:
        assert all(TEXT.fullmatch(f"{line}\n") for line in lines)


# -- of others -------------------------------------------------------------------------------------


def test_other_packages() -> None:
    stream = made()
    logging.getLogger("uvicorn.error").setLevel(logging.NOTSET)  # as before uvicorn was configured
    logging.getLogger("uvicorn.error").info(
        "Started server process [%d]", 7, extra={"color_message": "Started \x1b[36m%d\x1b[0m"}
    )
    try:
        fail("x")
    except ValueError:
        logging.getLogger("uvicorn.error").exception("Exception in ASGI application\n")
    first, second = objects(stream)
    assert (second["event"], second["message"]) == (
        *("unexpected_error", "Exception in ASGI application"),
    )
    assert first.pop("timestamp")
    assert first == {
        "level": "info",
        "event": "other",
        "message": "Started server process [7]",
        "logger": "uvicorn.error",
    }


def fail(secret: str) -> None:
    raise ValueError(f"broken on purpose: {len(secret)}\nINFO all is well")


def failed(form: str) -> Stream:
    stream = made(form)
    try:
        fail("".join(["hun", "ter2"]))
    except ValueError:
        log.critical("unexpected_error", "unexpected error", exc_info=True)
    return stream


def test_a_traceback_in_json() -> None:
    found = one(failed("json"))
    assert (found["event"], found["level"]) == ("unexpected_error", "critical")
    assert found["exception"].startswith("Traceback (most recent call last):\n")
    assert "ValueError: broken on purpose: 7" in found["exception"]
    assert "hunter2" not in str(found)  # (no values of variables)


async def test_what_a_task_raised_that_nobody_asked() -> None:
    stream = made()

    async def task() -> None:
        fail("x")

    running = asyncio.get_running_loop().create_task(task())
    await asyncio.wait({running})
    del running
    found = one(stream)
    assert (found["event"], found["logger"]) == ("unexpected_error", "asyncio")
    assert found["message"].startswith("Task exception was never retrieved")
    assert "broken on purpose" in found["exception"]


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_line_that_cannot_be_written(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    stream = made(form)
    logging.getLogger("package").info("%d hits", "no number")
    log.info("hits", "{hits} hits")
    log.info("hits", "{hits:d} hits", hits="no number")
    log.info("stopped", "and on")
    assert capsys.readouterr().err == ""
    lines = stream.getvalue().splitlines()
    assert len(lines) == 4
    for line, error in zip(lines, ("TypeError", "KeyError", "ValueError"), strict=False):
        assert f"a line of the log could not be written: {error}: " in line
        assert "test_logs.py line " in line


# -- text ------------------------------------------------------------------------------------------


@pytest.fixture
def _berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "CET-1")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize(("form", "language"), [("text", "text"), ("json", "json")])
@pytest.mark.usefixtures("_berlin")
def test_the_page_shows_what_is_written(
    form: str, language: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line of docs/logging.md, in both forms."""
    shown = [block for block in blocks(ROOT / "docs" / "logging.md") if block.language == language]
    stream = made(form, worker=2)
    at = datetime.fromisoformat("2026-03-01T12:00:01.000Z").timestamp()
    monkeypatch.setattr(time, "time", lambda: at)
    monkeypatch.setattr(time, "time_ns", lambda: round(at * 1e9))
    full = {"count": 1234, "client": "10.0.0.9:40112", "reason": admission.FULL.reason}
    text = f"{admission.TURNED_AWAY} (the latest: {{client}})"
    log.warning("clients_turned_away", text, **full)
    assert [stream.getvalue()] == [block.text for block in shown]


# -- nobody reads it -------------------------------------------------------------------------------


def test_lines_that_nobody_reads_are_lost_and_counted() -> None:
    reading, writing = os.pipe()
    with open(reading, "rb") as reader, open(writing, "w") as writer:
        configure("info", "json", 0, writer)
        for _ in range(2000):  # far more than a pipe holds: one of these would wait for ever
            log.info("stopped", "x" * 900)
        os.set_blocking(reading, False)
        before = (reader.read() or b"").splitlines()
        log.info("stopped", "again")
        after = (reader.read() or b"").splitlines()
        told, last = (json.loads(line) for line in after)
        assert told["event"] == "log_lines_lost"
        assert told["count"] == 2000 - len(before)
        text = f"lines of the log lost: {told['count']}; standard error was full"
        assert told["message"] == text
        assert last["message"] == "again"


@pytest.mark.parametrize("form", ["json", "text"])
@pytest.mark.parametrize("char", ["x", "\u6f22", "\U0001f600", "\x1b", "\udc80"])
def test_no_line_is_longer_than_what_a_pipe_takes(form: str, char: str) -> None:
    """The values, also many of them, and the traceback are cut; the beginning is there."""
    stream = made(form)
    many = {f"value_{number}": char * 2000 for number in range(9)}
    log.warning(*CANNOT, address="h", reason=char * 9999, listen=[char * 99] * 99, **many)
    try:
        raise ValueError(char * 9999)
    except ValueError:
        log.critical("unexpected_error", "unexpected error", exc_info=True)
    text = stream.getvalue()
    begin = r'^(?={"timestamp)' if form == "json" else r"^(?=\d{4}-)"
    events = re.split(begin, text, flags=re.MULTILINE)[1:]
    assert len(events) == 2
    assert all(len(line.encode()) <= 4096 for line in events)
    assert "cannot reach Redis at h: " in events[0] and " ..." in events[0]
    assert "unexpected error" in events[1] and "..." in events[1]
