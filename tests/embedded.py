"""What is known, from outside, of an embedded server: its processes and its sockets. Linux alone."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from tests.waiting import until

LATEST = 20.0  # seconds, on a busy machine


def server_pid(directory: Path) -> int:
    """Of the directory's server, as soon as it has written it down."""
    file = directory / "server.pid"
    until(lambda: file.exists() and file.read_text().strip() != "")
    return int(file.read_text())


def keeper_pid(directory: Path) -> int:
    """Of the keeper of the directory's server. One that was killed has no more to do with what it left behind."""

    def keeper() -> int | None:
        stat = _stat(server_pid(directory))
        return None if stat is None or stat[1] == "1" else int(stat[1])

    found: int = until(keeper)
    return found


def lives(pid: int) -> bool:
    """Whether there is such a process, other than one that has ended and is only yet to be put away."""
    stat = _stat(pid)
    return stat is not None and stat[0] not in ("Z", "X")


def _stat(pid: int) -> list[str] | None:
    """What the system says of a process, from its state on, and its parent; None: there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):  # the latter if it ends while it is read
        return None


def tcp_sockets(pid: int) -> set[str]:
    """Those that a process has, by their inodes."""
    of_process = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since it was listed
            of_process.add(str(entry.readlink()))
    lines = [line for name in ("tcp", "tcp6") for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]]
    return {inode for inode in (line.split()[9] for line in lines) if f"socket:[{inode}]" in of_process}
