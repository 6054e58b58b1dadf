"""What a process that serves and one that only starts others both know. Nothing that takes long to import."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from headgate.settings_fields import Address

AT_ONCE: Final = 1  # exit code of a process that a second signal ended


class ListenAddresses(NamedTuple):
    """Where a service listens, with the ports that it really has."""

    http: Address
    grpc: Address
    admin: Address | None = None  # None: HTTP's


class WorkerNumber(NamedTuple):
    """Which of several processes this is that share their ports."""

    number: int
    sockets: Path  # the directory of those by which they tell one another their metrics
