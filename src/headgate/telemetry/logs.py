"""The service's log: one line per event, for people on a terminal, JSON elsewhere. Needs structlog.

Everything that logs by the standard library, ours and others', goes the same way. Secrets are masked on it: see
`secrets`.
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
# They say little of use below a warning. watchfiles tells of every file that changes beside ours, as a log may do.
QUIET: Final = ("sqlalchemy", "alembic", "grpc", "asyncio", "opentelemetry", "watchfiles")

Event = MutableMapping[str, Any]

_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # what a terminal might obey


class _Handler(logging.StreamHandler[TextIO]):
    """Writes lines. If writing one fails, only its logger and the error's type are shown: its text is not masked."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the standard library's name
        problem = sys.exception()
        with suppress(OSError, ValueError):  # standard error is closed
            sys.stderr.write(f"a line of logger {record.name} could not be logged: {type(problem).__name__}\n")


def configure_logging(
    format: Format = "auto",  # noqa: A002 - as users know it
    level: str = "info",
    *,
    secrets: Iterable[str] = (),
    stream: TextIO | None = None,
) -> None:
    """Have everything logged to `stream`, by default stderr, from `level` on: `debug`, `info`, `warning` … `critical`.

    `auto` is `console` on a terminal and `json` elsewhere. `secrets` are hidden wherever they show, besides what looks
    like one. May be called again, for other settings. Raises `ValueError` for a format or level that there is not.
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
        structlog.processors.format_exc_info,  # as text, for masking: a traceback may hold anything
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
    """Not the event once more, as other handlers and uvicorn leave it in the record."""
    for name in ("message", "asctime", "color_message"):
        event.pop(name, None)
    return event


def _order(_logger: object, _method: str, event: Event) -> Event:
    """The order in which people read JSON lines: when, how bad, what; then the rest."""
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
