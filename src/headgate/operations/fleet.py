"""What operators see of the processes that serve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from headgate.audit.usage import Second


class NodeStatus(NamedTuple):
    """One process that serves."""

    id: str  # host and process
    version: str  # of Headgate
    started_us: int
    seen_us: int  # when it last said how it is doing
    missing: bool  # that was too long ago
    rules: str | None  # the version of the rules that it has in force
    draining: bool
    faults: Mapping[str, tuple[str, int]]  # what is degraded: why, and since when


class Fleet(Protocol):
    """All processes that serve: `headgate.service.fleet`."""

    def nodes(self) -> Sequence[NodeStatus]:
        """All processes, by id."""

    def seconds(self, since: int = 0) -> Sequence[Second]:
        """What all of them decided in each second after this one."""

    def is_draining(self) -> bool:
        """Whether this process is about to stop."""
