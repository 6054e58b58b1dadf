"""How the service tells of decisions that are to be kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from headgate.core.cost import Cost
from headgate.core.decision import Decision


class Recorder(Protocol):
    """Records events in the background: it never blocks and never raises."""

    def record(self, facts: Mapping[str, str], cost: Cost, decision: Decision) -> None:
        """A request was refused, or would have been by a shadow rule."""


class Forgetful:
    """Keeps nothing."""

    def record(self, facts: Mapping[str, str], cost: Cost, decision: Decision) -> None:
        """Does nothing."""
