"""The service's log: one line per event, for people on a terminal, JSON elsewhere. Needs structlog.

All records of the standard library's loggers, ours and others', go the same way. Secrets are masked: see `secrets`.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterable, MutableMapping
from contextlib import suppress
from typing import Any, Final, Literal, TextIO, get_args

import structlog
from structlog.stdlib import ProcessorFormatter

from headgate.masking import Masking

Format = Literal["auto", "console", "json"]
LEVELS: Final = ("debug", "info", "warning", "error", "critical")
LOGGERS: Final = ("headgate", "uvicorn", "uvicorn.error", "uvicorn.access", "grpc", "sqlalchemy", "alembic")
# They log little of use below a warning. watchfiles logs every file that changes beside ours, such as a log file.
QUIET: Final = ("sqlalchemy", "alembic", "grpc", "asyncio", "opentelemetry", "watchfiles")

Event = MutableMapping[str, Any]

_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # a terminal might act on them


class _Handler(logging.StreamHandler[TextIO]):
    """Writes lines. If writing one fails, shows only its logger and the error's type: its text is not masked."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the standard library's name
        problem = sys.exception()
        with suppress(OSError, ValueError):  # standard error is closed
            sys.stderr.write(f"a line of logger {record.name} could not be logged: {type(problem).__name__}\n")


def configure_logging(
    format: Format = "auto",  # noqa: A002 - the setting's name
    level: str = "info",
    *,
    secrets: Iterable[str] = (),
    stream: TextIO | None = None,
) -> None:
    """Log everything from `level` on (`debug`, `info`, `warning` … `critical`) to `stream`, by default stderr.

    `auto` is `console` on a terminal and `json` elsewhere. `secrets` are masked wherever they appear, as is anything
    that looks like a secret. Call it again to change settings. Raises `ValueError` for an unknown format or level.
    """
    if format not in get_args(Format):
        raise ValueError(f"log format: must be one of {', '.join(get_args(Format))}, got {format!r}")
    if level.lower() not in LEVELS:
        raise ValueError(f"log level: must be one of {', '.join(LEVELS)}, got {level!r}")
    stream = stream or sys.stderr
    console = format == "console" or (format == "auto" and stream.isatty())
    masking = Masking(secrets)

    def mask(_logger: object, _method: str, event: Event) -> Event:
        if console:
            event["event"] = _CONTROL.sub(lambda found: repr(found[0])[1:-1], str(event.get("event", "")))
        return {masking.text(name): masking.field(name, value) for name, value in event.items()}

    known: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,  # as text, for masking: a traceback may contain secrets
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.PositionalArgumentsFormatter(),
            *known,
            ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,  # so that it can be configured again
    )
    renderer: structlog.typing.Processor = structlog.processors.JSONRenderer()
    if console:
        renderer = structlog.dev.ConsoleRenderer(colors=stream.isatty(), pad_event_to=0)
    handler = _Handler(stream)
    handler.setFormatter(
        ProcessorFormatter(
            foreign_pre_chain=[*known, structlog.stdlib.ExtraAdder(), _without_echoes],
            processors=[ProcessorFormatter.remove_processors_meta, mask, _order, renderer],
        )
    )
    _take_over(handler, level.upper())


def _without_echoes(_logger: object, _method: str, event: Event) -> Event:
    """Remove the copies of the event that other handlers and uvicorn leave in the record."""
    for name in ("message", "asctime", "color_message"):
        event.pop(name, None)
    return event


def _order(_logger: object, _method: str, event: Event) -> Event:
    """Put timestamp, level and event first, for readers of JSON lines."""
    return {**{name: event[name] for name in ("timestamp", "level", "event") if name in event}, **event}


def _take_over(handler: logging.Handler, level: str) -> None:
    root = logging.getLogger()
    for old in root.handlers[:]:
        if isinstance(old.formatter, ProcessorFormatter):  # an earlier one of ours
            root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level)
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(logging.NOTSET)
    for name in QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLevelNamesMapping()[level]))
