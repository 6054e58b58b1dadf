"""Counts what the service does, cheaply enough to be told of every check."""

from __future__ import annotations

from headgate.core.decision import Decision


class Meter:
    """Told by the service's planes; read by `/metrics`. Its methods never block and never raise."""

    def decided(self, decision: Decision) -> None:
        """A request was decided."""

    def took(self, protocol: str, seconds: float, checks: int = 1) -> None:
        """A call to the data plane was answered: by `http`, `grpc`, `envoy` or `authorize`."""

    def skewed(self, seconds: float) -> None:
        """A caller's clock was so much ahead of the store's (negative: behind)."""
