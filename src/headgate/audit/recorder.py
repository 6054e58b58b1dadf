"""The interface through which the service records decisions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from headgate.core.cost import Cost
from headgate.core.decision import Decision


class Recorder(Protocol):
    """Records events in the background: it never blocks and never raises."""

    def record(self, facts: Mapping[str, str], cost: Cost, decision: Decision) -> None:
        """Record a request that was refused, or that a shadow rule would have refused."""


class Forgetful:
    """A recorder that records nothing."""

    def record(self, facts: Mapping[str, str], cost: Cost, decision: Decision) -> None:
        """Do nothing."""
