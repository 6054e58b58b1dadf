"""The interface through which a store reports its calls to a server, for metrics and traces."""

from __future__ import annotations

from typing import Literal, Protocol

from headgate.errors import StoreError
from headgate.stores.breaker import State


class StoreObserver(Protocol):
    """Receives the result of each call. Its methods never block or raise. Several threads may call it at once."""

    def called(self, seconds: float, groups: int) -> None:
        """Record that a call was answered. It carried this many groups of checks; 0 for a reset or a refund."""

    def failed(self, error: StoreError, seconds: float, groups: int) -> None:
        """Record that a call failed, or that a group waited for a call until its deadline."""

    def breaker(self, node: str, state: State | Literal["gone"]) -> None:
        """Record the state of the breaker of a server (`host:port`, or a socket's path); gone: it is no longer used."""
