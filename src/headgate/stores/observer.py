"""The interface through which a store reports its calls to a server, for metrics and traces."""

from __future__ import annotations

from typing import Literal, Protocol

from headgate.errors import StoreError
from headgate.stores.breaker import State


class StoreObserver(Protocol):
    """Receives the end of each call. Its methods never block and never raise. Several threads may call at once."""

    def called(self, seconds: float, groups: int) -> None:
        """A call was answered. It carried so many groups of checks; 0: it was a reset, a refund or the like."""

    def failed(self, error: StoreError, seconds: float, groups: int) -> None:
        """A call failed, or a group waited for one until its time was up."""

    def breaker(self, node: str, state: State | Literal["gone"]) -> None:
        """The breaker of a server (`host:port`, or the path of a socket) has this state; gone: it is no more used."""
