"""Opens logs: plain, gzip and zstd, detected by content; and standard input."""

from __future__ import annotations

import io
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from gzip import BadGzipFile, GzipFile
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Final, cast
from zlib import error as DeflateError  # noqa: N812

from headgate.replay.errors import InvalidLog

STDIN: Final = "-"
_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_BUFFER: Final = 1 << 18


class LogFile:
    """One log. `path` is `-` for standard input, which can be read once.

    `position` is the number of bytes read, of `size` bytes on disk; `size` is None if unknown.
    """

    def __init__(self, path: str, stdin: BinaryIO | None = None) -> None:
        self.path = path
        self.is_stdin = path == STDIN
        self.name = "standard input" if self.is_stdin else path
        self.size: int | None = None if self.is_stdin else _size(path)
        self._stdin = stdin
        self._raw: BinaryIO | None = None

    @property
    def position(self) -> int:
        try:
            return 0 if self._raw is None or self.size is None else self._raw.tell()
        except (ValueError, OSError):  # closed after reading all of it, or a pipe
            return self.size or 0

    @contextmanager
    def lines(self) -> Iterator[Iterator[str]]:
        """Open the log, and yield its lines. Raises `InvalidLog`."""
        if self.is_stdin:
            raw: BinaryIO = self._stdin or sys.stdin.buffer
        else:
            try:
                raw = Path(self.path).open("rb")  # noqa: SIM115
            except OSError as error:
                raise InvalidLog(f"{self.path}: cannot be read: {error.strerror}") from error
        self._raw = raw
        lines = self._readable_lines(raw)
        try:
            yield lines
        finally:
            lines.close()  # Ctrl-C may have left it half read: at exit, standard input would be closed
            if not self.is_stdin:
                raw.close()

    def _readable_lines(self, raw: BinaryIO) -> Generator[str, None, None]:
        """Yield the lines. Invalid UTF-8 is replaced."""
        try:
            buffered: Any = raw if isinstance(raw, io.BufferedReader) else io.BufferedReader(cast("io.RawIOBase", raw))
            start = buffered.peek(4)[:4]
            unpacked: Any = buffered
            if start.startswith(_GZIP):
                unpacked = io.BufferedReader(GzipFile(fileobj=buffered), _BUFFER)
            elif start == _ZSTD:
                unpacked = io.BufferedReader(_open_zstd(buffered), _BUFFER)
            text = io.TextIOWrapper(unpacked, encoding="utf-8", errors="replace", newline="\n")
            try:
                yield from chain(text)  # chain has no close: closing the lines must not close the text
            finally:
                if self.is_stdin:
                    text.detach()  # not ours to close
                else:
                    text.close()
        except (EOFError, BadGzipFile, DeflateError, OSError) as error:
            raise InvalidLog(f"{self.name}: cannot be read to its end: {error}") from error


def _size(path: str) -> int | None:
    """Return the size of a file; None for a pipe and the like."""
    file = Path(path)
    try:
        if file.is_dir():
            raise InvalidLog(f"{path}: is a directory: pass the files in it")
        return file.stat().st_size if file.is_file() else None
    except OSError as error:
        raise InvalidLog(f"{path}: cannot be read: {error.strerror}") from error


def _open_zstd(raw: BinaryIO) -> Any:
    """Return a file that decompresses zstd: with the standard library from Python 3.14 on, else with its backport."""
    name = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    try:
        zstd = import_module(name)
    except ImportError:
        raise InvalidLog("logs packed with zstd need backports.zstd: pip install 'headgate[service]'") from None
    return zstd.ZstdFile(raw)
