"""Watch the calls to an embedded server, and restart the server after a failure."""

from __future__ import annotations

from typing import Literal

from headgate.errors import StoreError
from headgate.stores.breaker import State
from headgate.stores.embedded.server_handle import ServerHandle
from headgate.stores.protocol import StoreObserver


class RestartingObserver:
    """An observer that restarts the server when a call fails, and forwards everything to another observer."""

    def __init__(self, handle: ServerHandle, observer: StoreObserver | None) -> None:
        self._handle = handle
        self._observer = observer

    def called(self, seconds: float, groups: int) -> None:
        if self._observer is not None:
            self._observer.called(seconds, groups)

    def failed(self, error: StoreError, seconds: float, groups: int) -> None:
        self._handle.mend()
        if self._observer is not None:
            self._observer.failed(error, seconds, groups)

    def breaker(self, node: str, state: State | Literal["gone"]) -> None:
        if self._observer is not None:
            self._observer.breaker(node, state)
