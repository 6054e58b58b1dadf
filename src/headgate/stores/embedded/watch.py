"""Watch the calls to an embedded server, and restart the server after a failure."""

from __future__ import annotations

from typing import Literal

from headgate.errors import StoreError
from headgate.stores.breaker import State
from headgate.stores.embedded.hold import Hold
from headgate.stores.observer import StoreObserver


class Watch:
    """An observer that mends the server when a call fails, and passes everything on to another observer."""

    def __init__(self, hold: Hold, observer: StoreObserver | None) -> None:
        self._hold = hold
        self._observer = observer

    def called(self, seconds: float, groups: int) -> None:
        if self._observer is not None:
            self._observer.called(seconds, groups)

    def failed(self, error: StoreError, seconds: float, groups: int) -> None:
        self._hold.mend()
        if self._observer is not None:
            self._observer.failed(error, seconds, groups)

    def breaker(self, node: str, state: State | Literal["gone"]) -> None:
        if self._observer is not None:
            self._observer.breaker(node, state)
