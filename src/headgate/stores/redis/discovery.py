"""Finds out, in a separate thread, which servers serve which slots, and notifies the store.

It runs on request, at most every `PAUSE` seconds. Behind Sentinels, it also runs at once when a Sentinel announces a
failover, and every second in any case. Stores for threads and for asyncio share it.

It references its store weakly: when the store is garbage-collected, the thread ends and closes its connections.
"""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable
from contextlib import suppress
from threading import Lock, Thread
from time import monotonic
from typing import Final
from weakref import WeakMethod, finalize

from headgate.core.fork import renew_in_children
from headgate.errors import StoreError
from headgate.stores.redis.faults import Address, Owners
from headgate.stores.redis.finders import ServerFinder, finder_of
from headgate.stores.redis.options import StoreTarget

PAUSE: Final = 0.1  # seconds between the end of a discovery and the next requested one

# Not epoll, whose file list a forked child would share.
_Selector: Final = getattr(selectors, "PollSelector", selectors.SelectSelector)

Found = Owners | StoreError  # the owners of the slots, or why they are unknown


class Discovery:
    """The discovery of one store's servers. It starts with the first request.

    `on_found` is called in its thread with each result, and returns whether to continue. `known` returns the known
    servers of a cluster. Both must be methods, and are referenced weakly."""

    def __init__(
        self, target: StoreTarget, on_found: Callable[[Found], bool], known: Callable[[], list[Address]]
    ) -> None:
        self._target = target
        self._on_found = WeakMethod(on_found)
        self._known = WeakMethod(known)
        self._lock = Lock()
        self._worker: _DiscoveryThread | None = None
        self._stop: finalize[..., Discovery] | None = None  # stops the thread when this is garbage-collected
        renew_in_children(self)

    def ask(self) -> bool:
        """Request a discovery. Return whether it starts now or soon, so that waiting for it is worthwhile."""
        with self._lock:
            worker = self._worker
            if worker is None or worker.has_ended:
                worker = self._begin()
            return worker.ask()

    def close(self) -> None:
        """Stop after the queries in progress, until the next request."""
        with self._lock:
            if self._worker is not None:
                self._worker.stop()
                self._end()

    def reset_after_fork(self) -> None:
        """Reset in a forked child: the thread and the connections are the parent's."""
        self._lock = Lock()
        if self._worker is not None:
            self._worker.abandon()
            self._end()

    def _begin(self) -> _DiscoveryThread:
        self._end()
        worker = self._worker = _DiscoveryThread(finder_of(self._target, self._known_servers()), self._on_found)
        self._stop = finalize(self, worker.stop)
        self._stop.atexit = False
        worker.start()
        return worker

    def _end(self) -> None:
        self._worker = None
        if self._stop is not None:
            self._stop.detach()
            self._stop = None

    def _known_servers(self) -> Callable[[], list[Address]]:
        known = self._known

        def servers() -> list[Address]:
            method = known()
            return method() if method is not None else []

        return servers


class _DiscoveryThread:
    """The thread, and the state that it shares with callers."""

    def __init__(self, finder: ServerFinder, on_found: WeakMethod[Callable[[Found], bool]]) -> None:
        self._finder = finder
        self._on_found = on_found
        self._wanted = False
        self._stopped = False
        self._looking = False
        self._rested = float("-inf")  # the earliest time of the next discovery
        self._look_at = float("inf")  # when the next periodic discovery is due
        self._woken, self._wake = socket.socketpair()
        self._wake.setblocking(False)
        self._woken.setblocking(False)
        self.has_ended = False

    def start(self) -> None:
        Thread(target=self._run, name="headgate-discovery", daemon=True).start()

    def ask(self) -> bool:
        soon = self._looking or monotonic() >= self._rested
        if not self._wanted:
            self._wanted = True
            self._interrupt()
        return soon

    def stop(self) -> None:
        self._stopped = True
        self._interrupt()

    def abandon(self) -> None:
        """Close the child's copies of the parent's connections in a forked child, which does not have the thread."""
        self._finder.close()
        self._woken.close()
        self._wake.close()

    def _interrupt(self) -> None:
        with suppress(OSError):  # it was woken often enough, or has ended
            self._wake.send(b"!")

    def _run(self) -> None:
        try:
            while self._wait():
                self._looking, self._wanted = True, False
                found = self._find()
                self._rested = monotonic() + PAUSE
                self._looking = False
                on_found = self._on_found()
                if self._stopped or on_found is None or not on_found(found):
                    return
                del on_found  # it would keep the store alive
                self._look_at = float("inf") if self._finder.every is None else monotonic() + self._finder.every
        finally:
            self.has_ended = True
            self._finder.close()
            self._wake.close()
            self._woken.close()

    def _find(self) -> Found:
        try:
            return self._finder.find()
        except StoreError as error:
            return error

    def _wait(self) -> bool:
        """Wait until the next discovery is due. Return False if the thread was stopped."""
        while not self._stopped:
            if self._finder.hear():
                return True
            left = min(self._look_at, self._rested if self._wanted else float("inf")) - monotonic()
            if left <= 0:
                return True
            with _Selector() as selector:
                selector.register(self._woken, selectors.EVENT_READ)
                for link in self._finder.listening():
                    selector.register(link, selectors.EVENT_READ)
                selector.select(None if left == float("inf") else left)
            with suppress(BlockingIOError):
                self._woken.recv(64)
        return False
