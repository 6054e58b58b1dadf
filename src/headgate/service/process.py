"""Types that the supervisor and its workers share. It must import quickly."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from headgate.settings_fields import Address

AT_ONCE: Final = 1  # exit code after a second signal


class ListenAddresses(NamedTuple):
    """The addresses where a service listens, with their actual ports."""

    http: Address
    grpc: Address
    admin: Address | None = None  # None: HTTP's address


class WorkerNumber(NamedTuple):
    """The index of a process among those that share their ports."""

    number: int
    sockets: Path  # the directory of the sockets over which workers exchange metrics
