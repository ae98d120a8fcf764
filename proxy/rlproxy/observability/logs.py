"""The log: events with named fields, written as sentences on a terminal and as one JSON object a
line elsewhere. It formats the records of all packages, Python's warnings and tracebacks.

Every place that logs names its event and a sentence for it, in the form of str.format():
`log.info("stopped", "stopped; it served for {seconds:.1f} s", seconds=served_s)`. A test compares
these places with the table in docs/logging.md.
"""

from __future__ import annotations

import json
import logging
import os
import select
import sys
import threading
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, TextIO, cast

import structlog
from structlog.stdlib import BoundLogger, ExtraAdder, LoggerFactory, ProcessorFormatter
from structlog.typing import EventDict, ProcessorReturnValue, WrappedLogger

AUTO: Final = "auto"
JSON: Final = "json"
PLAIN: Final = "plain"  # field: lines that replace the sentence in the plain format
MAX_TEXT: Final = 1_000  # longest value, characters; the rest is cut
MAX_TRACE: Final = 3  # longest traceback, times the longest value; its beginning is cut
MIN_MESSAGE: Final = 250  # part of a message that is kept in any case, characters
MAX_LINE: Final = 4_096  # longest line, bytes: what a pipe that poll() reports as writable takes

OTHER: Final = "other"  # event of lines of other packages
UNEXPECTED: Final = "unexpected_error"
PYTHON_WARNING: Final = "python_warning"
_LINES_LOST: Final = "log_lines_lost"
_LINE_BROKEN: Final = "log_line_broken"

_COLOURS: Final = {"warning": "\x1b[33m", "error": "\x1b[31m", "critical": "\x1b[1;31m"}
_NO_COLOUR: Final = "\x1b[0m"
_NO_FIELDS: Final = (  # internal keys of structlog, uvicorn and asyncio
    *("_record", "_from_structlog", "positional_args", "exc_info", "stack_info"),
    *("color_message", "taskName"),
)
_WHOLE: Final = ("timestamp", "level", "event")  # never cut
_LEADING: Final = (*_WHOLE, "message", "logger", "worker")


class _Fields(dict[str, object]):
    """The fields of an event, as the message of a record; as text, the sentence."""

    def __str__(self) -> str:
        (text,) = cast(tuple[str, ...], self.get("positional_args", ("{event}",)))
        return text.format_map({name: _joined(value) for name, value in self.items()})


def _wrapped(logger: WrappedLogger, name: str, found: EventDict) -> ProcessorReturnValue:
    return ProcessorFormatter.wrap_for_formatter(logger, name, _Fields(found))


log: Final[BoundLogger] = structlog.wrap_logger(
    LoggerFactory()("rlproxy"),
    processors=[structlog.stdlib.filter_by_level, _wrapped],
    wrapper_class=BoundLogger,
    context_class=dict,
).bind()


def configure(level: str, form: str, worker: int = 0, stream: TextIO | None = None) -> None:
    """Set up the log of this process, and log uncaught exceptions and warnings.

    level: lowest level to log (--log-level).
    form: AUTO, JSON, or another value for sentences (--log-format).
    worker: number of the worker, 0 if there is only one process.
    stream: destination; default stderr.
    """
    stream = sys.stderr if stream is None else stream
    terminal = stream is not None and stream.isatty()
    human = terminal if form == AUTO else form != JSON
    coloured = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    handler = _Handler(stream)
    handler.setFormatter(
        ProcessorFormatter(
            foreign_pre_chain=[ExtraAdder(), _foreign],
            processors=[
                structlog.processors.format_exc_info,  # shows no values of variables
                _Line(worker, human, coloured),
            ],
        )
    )
    root = logging.getLogger()
    for old in list(root.handlers):
        if isinstance(old, _Handler):
            root.removeHandler(old)
    root.addHandler(handler)
    set_level(level)
    logging.captureWarnings(True)
    sys.excepthook = _uncaught
    sys.unraisablehook = threading.excepthook = _unraisable


def set_level(level: str) -> None:
    """Set the lowest level to log (--log-level)."""
    logging.getLogger().setLevel(level.upper())


def lower_level(level: str) -> None:
    """Set the lowest level to log, unless the present one is lower."""
    root = logging.getLogger()
    root.setLevel(min(root.level, logging.getLevelNamesMapping()[level.upper()]))


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    log.critical("unexpected_error", "unexpected error", exc_info=(kind, error, trace))


def _unraisable(found: Any) -> None:
    _uncaught(found.exc_type, found.exc_value or found.exc_type(), found.exc_traceback)


class _Handler(logging.StreamHandler[TextIO]):
    """The handler that writes whole lines, and drops those that have no room in the stream.

    Dropped lines are counted. Clients must not wait for the reader of the log. A line that cannot
    be formatted is replaced with an error line without a traceback.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._lost = 0
        self._poll = select.poll()
        try:
            self._poll.register(stream, select.POLLOUT)
            self._can_wait = True
        except (AttributeError, TypeError, ValueError, OSError):  # not a file of the system
            self._can_wait = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write `record`, after the number of dropped lines; drop it if the stream is full."""
        if self._lost and not self._full():
            lost, self._lost = self._lost, 0
            text = "{count} line(s) of the log were lost: standard error was full"
            super().emit(_made(logging.WARNING, _LINES_LOST, text, count=lost))
        if self._full():
            self._lost += 1
        else:
            super().emit(record)

    def _full(self) -> bool:
        # poll() reports a pipe as writable if it has room for MAX_LINE bytes.
        return self._can_wait and not self._poll.poll(0)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Log the failure of emit() as a line; called by the logging module."""
        error = sys.exc_info()[1]
        if isinstance(error, OSError) or getattr(record, "_name", "") == _LINE_BROKEN:
            return  # there is no place to report it
        text = "a line of the log could not be written: {reason}, {file} line {line}"
        reason = f"{type(error).__name__}: {error}"
        at = {"file": record.filename, "line": record.lineno}
        super().emit(_made(logging.ERROR, _LINE_BROKEN, text, reason=reason, **at))


def _made(level: int, event: str, text: str, **fields: object) -> logging.LogRecord:
    """Return a record of the handler's own; `log` could drop it for its level."""
    found = _Fields(event=event, positional_args=(text,), **fields)
    record = logging.LogRecord("rlproxy", level, "", 0, "", None, None)
    record.__dict__.update(msg=found, _logger=None, _name=event)
    return record


def _foreign(_: WrappedLogger, __: str, found: EventDict) -> EventDict:
    """Name the event of a record that another package has logged."""
    record: logging.LogRecord = found["_record"]
    found["message"] = found["event"].rstrip("\r\n")
    found["logger"] = record.name
    raised = record.name == "asyncio" or "exc_info" in found
    if record.name == "py.warnings":
        found["event"] = PYTHON_WARNING
    else:
        found["event"] = UNEXPECTED if raised and record.levelno >= logging.ERROR else OTHER
    return found


class _Line:
    """The last processor: the sentence, the common fields first, then the format."""

    def __init__(self, worker: int, human: bool, coloured: bool) -> None:
        self._worker = worker
        self._who = f"worker {worker}: " if worker else ""
        self._human = human
        self._coloured = coloured

    def __call__(self, _: WrappedLogger, __: str, found: EventDict) -> str:
        """Return the line without its end; values are cut until it has at most MAX_LINE bytes."""
        record: logging.LogRecord = found["_record"]
        if found["_from_structlog"]:
            found["message"] = str(record.msg)
        at = datetime.fromtimestamp(record.created, UTC)
        found["timestamp"] = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        found["level"] = record.levelname.lower()
        if self._worker:
            found.setdefault("worker", self._worker)
        for name in (*_NO_FIELDS, *(() if self._human else (PLAIN,))):
            found.pop(name, None)
        ordered = {name: found.pop(name) for name in _LEADING if name in found}
        ordered.update(found)
        longest = MAX_TEXT
        while True:
            cut = {name: _value(name, value, longest) for name, value in ordered.items()}
            line = self._sentence(cut, at) if self._human else json.dumps(cut)
            # (no encoding takes more bytes than this one)
            if not longest or len(line.encode("ascii", "backslashreplace")) < MAX_LINE:
                return line
            longest //= 2

    def _sentence(self, found: EventDict, at: datetime) -> str:
        lines = [printable(line) for line in found.get(PLAIN, ())]
        if not lines:
            level = found["level"]
            head = level.upper()
            if self._coloured and level in _COLOURS:
                head = f"{_COLOURS[level]}{head}{_NO_COLOUR}"
            here = at.astimezone()
            when = f"{here:%Y-%m-%d %H:%M:%S}.{here.microsecond // 1000:03}"
            lines.append(f"{when} {head} {printable(self._who + found['message'])}")
        # The traceback is indented so that no part of it looks like a separate log line.
        trace = found.get("exception", "").splitlines()
        return "\n".join([*lines, *(f"  {printable(line)}" for line in trace)])


def _joined(value: object) -> object:
    return ", ".join(map(str, value)) if isinstance(value, list) else value


def _value(name: str, value: object, longest: int) -> object:
    """Return a value as JSON can have it, texts with at most `longest` characters."""
    if name in _WHOLE or value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return [_value(name, each, longest) for each in value[:longest]]
    text = str(value)
    if name == "message":
        longest = max(longest, MIN_MESSAGE)
    if name == "exception":
        kept = MAX_TRACE * longest
        return text if len(text) <= kept else f"... {text[len(text) - kept :]}"
    return text if len(text) <= longest else f"{text[:longest]} ..."


def printable(text: str) -> str:
    """Return `text` with line ends, terminal controls and other unprintable characters escaped."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )
