"""The state of serving processes, as operators see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from headgate.audit.usage import Second


class NodeStatus(NamedTuple):
    """The state of a serving process."""

    id: str  # host and process
    version: str  # of Headgate
    started_us: int
    seen_us: int  # time of its last report
    missing: bool  # its last report is too old
    rules: str | None  # the version of its current rules
    draining: bool
    faults: Mapping[str, tuple[str, int]]  # by part: what fails, and since when


class Fleet(Protocol):
    """All serving processes: `headgate.service.fleet`."""

    def nodes(self) -> Sequence[NodeStatus]:
        """Return the state of all processes, by id."""

    def seconds(self, since: int = 0) -> Sequence[Second]:
        """Return the decisions of all processes in each second after `since`."""

    def is_draining(self) -> bool:
        """Return whether this process is stopping."""
