"""The log: events with named fields, written as sentences on a terminal and as one JSON object a
line elsewhere. It formats the records of all packages, Python's warnings and tracebacks.

Every place that logs names its event and a sentence for it, in the form of str.format():
`log.info("stopped", "stopped; it served for {seconds:.1f} s", seconds=served_s)`. A test compares
these places with the table in docs/logging.md.
"""

from __future__ import annotations

import json
import logging
import select
import sys
import threading
from datetime import UTC, datetime
from functools import partialmethod
from types import TracebackType
from typing import Any, Final, NamedTuple, TextIO

from rlproxy.resp.escape import shown

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

_WHOLE: Final = ("timestamp", "level", "event")  # never cut
_LOGGER: Final = logging.getLogger("rlproxy")


class _Event(NamedTuple):
    """What is logged, as the message of a record; as text, the sentence."""

    name: str
    text: str
    fields: dict[str, object]

    def __str__(self) -> str:
        return self.text.format_map({name: _joined(each) for name, each in self.fields.items()})


class Log:
    """The log: each method logs an event at its level, with a sentence, fields and exception."""

    def _log(
        self, level: int, event: str, text: str, exc_info: Any = None, **fields: object
    ) -> None:
        _LOGGER.log(level, _Event(event, text, fields), exc_info=exc_info, stacklevel=2)

    debug = partialmethod(_log, logging.DEBUG)
    info = partialmethod(_log, logging.INFO)
    warning = partialmethod(_log, logging.WARNING)
    error = partialmethod(_log, logging.ERROR)
    critical = partialmethod(_log, logging.CRITICAL)


log: Final = Log()


def configure(level: str, form: str, worker: int = 0, stream: TextIO | None = None) -> None:
    """Set up the log of this process, and log uncaught exceptions and warnings.

    level: lowest level to log (--log-level).
    form: AUTO, JSON, or another value for sentences (--log-format).
    worker: number of the worker, 0 if there is only one process.
    stream: destination, a file of the system; default stderr.
    """
    stream = sys.stderr if stream is None else stream
    human = stream.isatty() if form == AUTO else form != JSON
    handler = _Handler(stream)
    handler.setFormatter(_Line(worker, human))
    logging.getLogger().handlers[:] = [handler]
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
        self._poll.register(stream, select.POLLOUT)

    def emit(self, record: logging.LogRecord) -> None:
        """Write `record`, after the number of dropped lines; drop it if the stream is full."""
        if self._lost and not self._full():
            lost, self._lost = self._lost, 0
            text = "lines of the log lost: {count}; standard error was full"
            super().emit(_made(logging.WARNING, _LINES_LOST, text, count=lost))
        if self._full():
            self._lost += 1
        else:
            super().emit(record)

    def _full(self) -> bool:
        # poll() reports a pipe as writable if it has room for MAX_LINE bytes.
        return not self._poll.poll(0)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Log the failure of emit() as a line; called by the logging module."""
        error = sys.exc_info()[1]
        if isinstance(error, OSError) or getattr(record.msg, "name", "") == _LINE_BROKEN:
            return  # there is no place to report it
        text = "a line of the log could not be written: {reason}, {file} line {line}"
        reason = f"{type(error).__name__}: {error}"
        at = {"file": record.filename, "line": record.lineno}
        super().emit(_made(logging.ERROR, _LINE_BROKEN, text, reason=reason, **at))


def _made(level: int, event: str, text: str, **fields: object) -> logging.LogRecord:
    """Return a record of the handler's own; `log` could drop it for its level."""
    return logging.LogRecord("rlproxy", level, "", 0, _Event(event, text, fields), None, None)


def _event_of(record: logging.LogRecord) -> str:
    """Return the event's name of a record that another package has logged."""
    if record.name == "py.warnings":
        return PYTHON_WARNING
    raised = record.name == "asyncio" or record.exc_info
    return UNEXPECTED if raised and record.levelno >= logging.ERROR else OTHER


class _Line(logging.Formatter):
    """The format of a line: the common fields come first."""

    def __init__(self, worker: int, human: bool) -> None:
        super().__init__()
        self._worker = {"worker": worker} if worker else {}
        self._who = f"worker {worker}: " if worker else ""
        self._human = human

    def format(self, record: logging.LogRecord) -> str:
        """Return the line without its end; values are cut until it has at most MAX_LINE bytes."""
        at = datetime.fromtimestamp(record.created, UTC)
        own: Any = record.msg if isinstance(record.msg, _Event) else None
        found: dict[str, Any] = {
            "timestamp": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "event": own.name if own else _event_of(record),
            "message": record.getMessage().rstrip("\r\n"),
            **self._worker,
            **(own.fields if own else {"logger": record.name}),
        }
        if record.exc_info:  # a traceback shows no values of variables
            found["exception"] = self.formatException(record.exc_info)
        if not self._human:
            found.pop(PLAIN, None)
        longest = MAX_TEXT
        while True:
            cut = {name: _value(name, value, longest) for name, value in found.items()}
            line = self._sentence(cut, at) if self._human else json.dumps(cut)
            # (no encoding takes more bytes than this one)
            if not longest or len(line.encode("ascii", "backslashreplace")) < MAX_LINE:
                return line
            longest //= 2

    def _sentence(self, found: dict[str, Any], at: datetime) -> str:
        lines = [_printable(line) for line in found.get(PLAIN, ())]
        if not lines:
            here = at.astimezone().replace(tzinfo=None).isoformat(" ", "milliseconds")
            level = found["level"].upper()
            lines.append(f"{here} {level} {_printable(self._who + found['message'])}")
        # The traceback is indented so that no part of it looks like a separate log line.
        trace = found.get("exception", "").splitlines()
        return "\n".join([*lines, *(f"  {_printable(line)}" for line in trace)])


def _joined(value: object) -> object:
    return ", ".join(map(str, value)) if isinstance(value, list) else value


def _value(name: str, value: object, longest: int) -> object:
    """Return a value as JSON can have it, texts with at most `longest` characters."""
    if name in _WHOLE or value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, list | tuple):
        return [_value(name, each, longest) for each in value[:longest]]
    text = str(value)
    if name == "message":
        longest = max(longest, MIN_MESSAGE)
    if name == "exception":
        kept = MAX_TRACE * longest
        return text if len(text) <= kept else f"... {text[len(text) - kept :]}"
    return text if len(text) <= longest else f"{text[:longest]} ..."


def _printable(text: str) -> str:
    """Return `text` with line ends, terminal controls and other unprintable characters escaped."""
    return shown(text.encode(errors="backslashreplace"))
