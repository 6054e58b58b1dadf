"""Detect that a file was changed or replaced."""

from __future__ import annotations

from pathlib import Path

FileFingerprint = tuple[int, ...]


def fingerprint_of(path: Path) -> FileFingerprint | None:
    """Return a fingerprint that changes when the file is changed or replaced; None if there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_size, status.st_ino, status.st_dev)
