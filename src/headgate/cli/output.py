"""Output of commands: tables on terminals, plain text in pipes, JSON for programs; faults as one line on stderr.

Output may contain text from any client. It is never interpreted as markup, and its control characters do not reach the
terminal.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import typer
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from headgate.cli import FAULT, INTERRUPTED, REFUSED, complain
from headgate.errors import HeadgateError, InvalidRule

STYLES: Final = {
    "allowed": "green",
    "refused": "bold red",
    "shadow": "yellow",
    "annotate": "yellow",
    "warning": "yellow",
}
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))

Cell = str | int | float | bool | None
T = TypeVar("T")


class CommandFault(HeadgateError):
    """A fault that ends a command, described in lines for people. The process exits with `code`."""

    def __init__(self, *lines: str, code: int = FAULT) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines
        self.code = code


@contextmanager
def report_faults() -> Iterator[None]:
    """Print faults on stderr without a traceback, and exit with their code."""
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:  # the reader has closed the pipe, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the final flush does not fail
        raise typer.Exit from None
    except ImportError as error:
        if error.name is None or error.name.startswith("headgate"):
            raise
        complain(f"this needs {error.name}: pip install 'headgate[service]'")
        raise typer.Exit(FAULT) from None
    except (HeadgateError, OSError) as error:
        complain("\n".join(printable(line) for line in str(error).split("\n")))
        code = error.code if isinstance(error, CommandFault) else REFUSED if isinstance(error, InvalidRule) else FAULT
        raise typer.Exit(code) from None


def emit(data: Any) -> None:
    """Print data as JSON."""
    typer.echo(json.dumps(data, indent=2, default=str))  # JSON has no times, TOML does


def emit_lines(records: Iterable[Any]) -> None:
    """Print records as JSON, one per line."""
    for record in records:
        typer.echo(json.dumps(record))


def emit_or_say(data: Any, line: str, *, as_json: bool) -> None:
    """Print data as JSON, or a line of text in its place."""
    if as_json:
        emit(data)
    else:
        say(line)


def show_list(
    entries: Iterable[T],
    columns: Sequence[str],
    row: Callable[[T], Sequence[Cell]],
    empty: str,
    *,
    as_json: bool = False,
) -> None:
    """Print entries as JSON or as a table; without entries, the line `empty` in place of a table."""
    found = list(entries)
    if found and not as_json:
        show_table(columns, map(row, found))
    else:
        emit_or_say(found, empty, as_json=as_json)


def say(line: str, style: str = "") -> None:
    """Print a line of text."""
    console = Console(highlight=False)
    if console.is_terminal:
        console.print(Text(printable(line), style))
    else:
        typer.echo(printable(line))


def show_table(columns: Sequence[str], rows: Iterable[Sequence[Cell]], *, title: str = "") -> None:
    """Print a table. Numbers are right-aligned, and known words are coloured."""
    console = Console(highlight=False)
    if console.is_terminal:
        console.print(table(columns, rows, title=title))
        return
    if title:
        typer.echo(title)
    for line in plain_table(columns, rows):
        typer.echo(line)


def table(columns: Sequence[str], rows: Iterable[Sequence[Cell]], *, title: str = "") -> RenderableType:
    """Return a table for a terminal."""
    rows = list(rows)
    made = Table(box=SIMPLE_HEAD, title=title or None, title_justify="left", title_style="bold", pad_edge=False)
    for index, column in enumerate(columns):
        made.add_column(column, justify="right" if _is_numeric(rows, index) else "left", overflow="fold")
    for row in rows:
        made.add_row(*(Text(text, STYLES.get(text, "")) for text in map(cell, row)))
    return made


def plain_table(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> Iterator[str]:
    """Yield a table as plain lines, as wide as needed."""
    rows = list(rows)
    lines = [[column.upper() for column in columns], *([cell(value) or "-" for value in row] for row in rows)]
    widths = [max(cell_len(line[index]) for line in lines) for index in range(len(columns))]
    numeric = [_is_numeric(rows, index) for index in range(len(columns))]
    for line in lines:
        padded = []
        for text, width, is_numeric in zip(line, widths, numeric, strict=True):
            padding = " " * (width - cell_len(text))
            padded.append(padding + text if is_numeric else text + padding)
        yield "  ".join(padded).rstrip()


def cell(value: Cell) -> str:
    """Return a value as text."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return printable(value)


def printable(text: str) -> str:
    """Return text with control characters escaped, as `\\x1b`, so that a terminal does not act on them."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def printable_lines(text: str) -> str:
    """Return text with control characters escaped, except line ends."""
    return "\n".join(printable(line.removesuffix("\r")) for line in text.split("\n"))


def duration(seconds: float | None) -> str:
    """Format seconds in at most two units: `17 s`, `2 h 5 min`. None is `never`."""
    if seconds is None:
        return "never"
    if seconds < 10:
        return f"{round(seconds, 2):g} s"
    left = round(seconds)
    largest = next(index for index, (size, _) in enumerate(_UNITS) if left >= size)
    parts: list[str] = []
    for size, unit in _UNITS[largest : largest + 2]:
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count:,} {unit}")
    return " ".join(parts)


def local_time(text: str | None) -> str:
    """Format a time from the API in the local zone: `2027-01-01 00:00:00`. Return anything else unchanged."""
    if text is None:
        return ""
    try:
        return datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:
        return text


def on_terminal() -> bool:
    """Return whether a user can answer questions: stdin and stdout are terminals."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def read_file(path: Path) -> bytes:
    """Return a file's content. Raises `CommandFault`."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise CommandFault(f"{path}: cannot be read: {error.strerror}") from error


def write_file(path: Path, text: str) -> None:
    """Write a file. Raises `CommandFault`."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandFault(f"{path}: cannot be written: {error.strerror}") from error


def _is_numeric(rows: Sequence[Sequence[Cell]], index: int) -> bool:
    values = [row[index] for row in rows if row[index] is not None]
    return bool(values) and all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
