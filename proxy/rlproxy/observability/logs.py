"""The format of the log: sentences on a terminal, one JSON object a line elsewhere. It formats the
records of all packages, Python's warnings and tracebacks.

Modules log with `logging.getLogger("rlproxy")`. The names of their lines are in `log_events`.
"""

from __future__ import annotations

import logging
import os
import select
import sys
import threading
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Final, TextIO

from rlproxy.observability import log_events

if TYPE_CHECKING:  # the import takes 12 ms, and --version needs no log
    from structlog.typing import EventDict, ProcessorReturnValue, WrappedLogger

AUTO: Final = "auto"
JSON: Final = "json"
PLAIN: Final = "plain"  # key in `extra`: lines that replace the sentence in the plain format
MAX_TEXT: Final = 1_000  # longest value, characters; the rest is cut
MAX_TRACE: Final = 3_000  # longest traceback, characters; its beginning is cut

_COLOURS: Final = {"warning": "\x1b[33m", "error": "\x1b[31m", "critical": "\x1b[1;31m"}
_NO_COLOUR: Final = "\x1b[0m"
_NO_FIELDS: Final = (  # internal keys of structlog, uvicorn and asyncio
    *("_record", "_from_structlog", "positional_args", "exc_info", "stack_info"),
    *("color_message", "taskName"),
)
_LEADING: Final = ("timestamp", "level", "event", "message", "logger", "worker")

log = logging.getLogger("rlproxy")


def configure(level: str, form: str, worker: int = 0, stream: TextIO | None = None) -> None:
    """Set up the log of this process, and log uncaught exceptions and warnings.

    level: lowest level to log (--log-level).
    form: AUTO, JSON, or another value for sentences (--log-format).
    worker: number of the worker, 0 if there is only one process.
    stream: destination; default stderr.
    """
    import structlog
    from structlog.stdlib import ExtraAdder, ProcessorFormatter

    stream = sys.stderr if stream is None else stream
    terminal = stream is not None and stream.isatty()
    human = terminal if form == AUTO else form != JSON
    coloured = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    sentences = _Sentences(f"worker {worker}: " if worker else "", coloured)
    handler = _Handler(stream)
    handler.setFormatter(
        ProcessorFormatter(
            foreign_pre_chain=[ExtraAdder(), _named],
            processors=[
                structlog.processors.format_exc_info,  # shows no values of variables
                _Fields(worker, human),
                sentences if human else structlog.processors.JSONRenderer(),
            ],
            pass_foreign_args=True,
        )
    )
    root = logging.getLogger()
    for old in list(root.handlers):
        if isinstance(old, _Handler):
            root.removeHandler(old)
    root.addHandler(handler)
    set_level(level)
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    logging.captureWarnings(True)
    sys.excepthook = _uncaught
    sys.unraisablehook = lambda found: _uncaught(
        found.exc_type, found.exc_value or found.exc_type(), found.exc_traceback
    )
    threading.excepthook = lambda found: _uncaught(
        found.exc_type, found.exc_value or found.exc_type(), found.exc_traceback
    )


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
    log.critical("unexpected error", exc_info=(kind, error, trace))


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
        if self._full():
            self._lost += 1
            return
        if self._lost:
            lost, self._lost = self._lost, 0
            text = "%d line(s) of the log were lost: nobody read them"
            super().emit(_made(logging.WARNING, text, lost))
        super().emit(record)

    def _full(self) -> bool:
        # poll() reports a pipe as writable if it has room for 4 KB; a longer line can block.
        return self._can_wait and not self._poll.poll(0)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Log the failure of emit() as a line; called by the logging module."""
        error = sys.exc_info()[1]
        if isinstance(error, OSError):  # the stream itself is broken: no place to report it
            return
        text = "a line of the log could not be written: %s, %s line %d"
        args = (f"{type(error).__name__}: {error}", record.filename, record.lineno)
        if record.msg != text:
            super().emit(_made(logging.ERROR, text, *args))


def _made(level: int, text: str, *args: object) -> logging.LogRecord:
    return logging.LogRecord(log.name, level, "", 0, text, args, None)


def _named(_: WrappedLogger, __: str, found: EventDict) -> ProcessorReturnValue:
    """Add the event name to a line, and its values under their names."""
    record: logging.LogRecord = found["_record"]
    args = found.pop("positional_args", ())
    found["message"] = found["event"].rstrip("\r\n")
    kind = found.pop("kind", None)
    event: log_events.Event | None = None
    values: tuple[object, ...] = ()
    if record.name != log.name:
        found["logger"] = record.name
    elif kind is not None:
        event, values = log_events.of_kind(kind) or (None, ())
    else:
        event, values = log_events.of_text(str(record.msg)), args
    if event is not None:
        found["event"] = event.name
        named = zip(event.fields, values, strict=False)
        found.update({name: value for name, value in named if name and name not in found})
    elif record.name == "py.warnings":
        found["event"] = log_events.PYTHON_WARNING
    else:
        raised = record.name == "asyncio" or "exc_info" in found
        serious = raised and record.levelno >= logging.ERROR
        found["event"] = log_events.UNEXPECTED if serious else log_events.OTHER
    return found


class _Fields:
    """The processor that puts the common fields first: time, level, event, message, worker."""

    def __init__(self, worker: int, human: bool) -> None:
        self._worker = worker
        self._left_out = (*_NO_FIELDS, *(() if human else (PLAIN,)))

    def __call__(self, _: WrappedLogger, __: str, found: EventDict) -> ProcessorReturnValue:
        record: logging.LogRecord = found["_record"]
        at = datetime.fromtimestamp(record.created, UTC)
        found["timestamp"] = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        found["level"] = record.levelname.lower()
        if self._worker and "worker" not in found:
            found["worker"] = self._worker
        for name in self._left_out:
            found.pop(name, None)
        made = {name: found.pop(name) for name in _LEADING if name in found}
        return {name: _value(name, value) for name, value in {**made, **found}.items()}


def _value(name: str, value: object) -> object:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return [_value(name, each) for each in value]
    text = str(value)
    if name == "exception":
        return text if len(text) <= MAX_TRACE else f"... {text[-MAX_TRACE:]}"
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]} ..."


class _Sentences:
    """The renderer of the plain format: local time, level, worker and the message."""

    def __init__(self, who: str, coloured: bool) -> None:
        self._who = who
        self._coloured = coloured

    def __call__(self, _: WrappedLogger, __: str, found: EventDict) -> str:
        """Return the lines, without the last line end."""
        lines = [printable(line) for line in found.get(PLAIN, ())]
        if not lines:
            at = datetime.fromisoformat(found["timestamp"]).astimezone()
            level = found["level"]
            head = level.upper()
            if self._coloured and level in _COLOURS:
                head = f"{_COLOURS[level]}{head}{_NO_COLOUR}"
            when = f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03}"
            lines.append(f"{when} {head} {printable(self._who + _said(found))}")
        # The traceback is indented so that no part of it looks like a separate log line.
        trace = found.get("exception", "").splitlines()
        return "\n".join([*lines, *(f"  {printable(line)}" for line in trace)])


def _said(found: EventDict) -> str:
    if "message" in found:
        return str(found["message"])
    rest = [name for name in found if name not in (*_LEADING, "exception")]
    return " ".join([str(found["event"]), *(f"{name}={found[name]}" for name in rest)])


def printable(text: str) -> str:
    """Return `text` with line ends, terminal controls and other unprintable characters escaped."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )
