"""What is known, from outside, of an embedded server: its processes and its sockets. Linux alone."""

from __future__ import annotations

from pathlib import Path

from tests.waiting import until

LATEST = 20.0  # seconds, on a busy machine


def server_pid(directory: Path) -> int:
    """Of the directory's server, as soon as it has written it down."""
    file = directory / "server.pid"
    until(lambda: file.exists() and file.read_text().strip() != "")
    return int(file.read_text())


def keeper_pid(directory: Path) -> int:
    """Of the keeper of the directory's server."""
    return int(Path(f"/proc/{server_pid(directory)}/stat").read_text().rpartition(")")[2].split()[1])


def lives(pid: int) -> bool:
    """Whether there is such a process, other than one that has ended and is only yet to be put away."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        return False


def tcp_sockets(pid: int) -> set[str]:
    """Those that a process has, by their inodes."""
    of_process = {str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    lines = [line for name in ("tcp", "tcp6") for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]]
    return {inode for inode in (line.split()[9] for line in lines) if f"socket:[{inode}]" in of_process}
