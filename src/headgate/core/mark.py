"""Whether a file is still what it was."""

from __future__ import annotations

from pathlib import Path

Mark = tuple[int, ...]


def mark_of(path: Path) -> Mark | None:
    """What differs when a file was changed or replaced. None: it is not there."""
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_size, status.st_ino, status.st_dev)
