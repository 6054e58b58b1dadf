"""Calls a method periodically in the background: from a thread, or from tasks of an event loop.

Neither keeps the method's object alive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from threading import Event, Lock, Thread
from typing import Any
from weakref import ReferenceType, WeakMethod, ref

from headgate.core.fork import renew_in_children


class Periodic:
    """A thread that calls the bound `method` every `seconds`, the first time at once."""

    def __init__(self, method: Callable[[], None], seconds: float, name: str) -> None:
        self._method: WeakMethod[Callable[[], None]] = WeakMethod(method)
        self._seconds = seconds
        self._name = name
        self._closed = False
        self.reset_after_fork()
        renew_in_children(self)

    def reset_after_fork(self) -> None:
        """Reset in a forked child: the thread is the parent's."""
        self._thread: Thread | None = None
        self._lock = Lock()
        self._wake = Event()

    def begin(self) -> None:
        """Start, unless it has started or is closed."""
        if self._thread is None:
            with self._lock:
                if self._thread is None and not self._closed:
                    self._thread = Thread(target=_call_on, args=(ref(self),), name=self._name, daemon=True)
                    self._thread.start()

    def wake(self) -> None:
        """Call the method now."""
        self._wake.set()

    def close(self) -> bool:
        """Stop, after any call in progress. Returns whether it had started."""
        with self._lock:
            self._closed = True
            thread = self._thread
        if thread is None:
            return False
        self._wake.set()
        thread.join()
        return True

    def call(self) -> tuple[Event, float] | None:
        """Call the method once. Returns the event that ends the next pause, and its seconds; None if closed."""
        wake = self._wake
        wake.clear()
        method = self._method()
        if self._closed or method is None:
            return None
        method()
        return wake, self._seconds


def _call_on(periodic_ref: ReferenceType[Periodic]) -> None:
    while True:
        periodic = periodic_ref()
        pause = None if periodic is None else periodic.call()
        del periodic
        if pause is None:
            return
        wake, seconds = pause
        wake.wait(seconds)


class AsyncPeriodic:
    """A timer of the running event loop, and a task while the method runs. It restarts in another loop."""

    def __init__(self, method: Callable[[], Coroutine[Any, Any, None]], seconds: float, name: str) -> None:
        self._method: WeakMethod[Callable[[], Coroutine[Any, Any, None]]] = WeakMethod(method)
        self._seconds = seconds
        self._name = name
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Start, unless it has started in this event loop or is closed."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop and not self._closed:
            self._loop = loop
            self._start(loop)

    def wake(self) -> None:
        """Call the method now, unless a call is in progress."""
        loop = asyncio.get_running_loop()
        if self._timer is not None and self._loop is loop:
            self._timer.cancel()
            self._start(loop)

    async def close(self) -> bool:
        """Stop, after any call in progress. Returns whether it had started in this event loop."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._loop is not asyncio.get_running_loop():
            return False
        if self._task is not None:
            await asyncio.wait((self._task,))
        return True

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start a task. Its context is empty, because it is not part of the request that started it."""
        method = self._method()
        if method is not None:
            self._timer = None
            self._task = loop.create_task(self._call(method, loop), name=self._name, context=Context())

    async def _call(self, method: Callable[[], Coroutine[Any, Any, None]], loop: asyncio.AbstractEventLoop) -> None:
        try:
            await method()
        finally:
            if not self._closed:
                self._timer = loop.call_later(self._seconds, _call_again, ref(self), loop)


def _call_again(periodic_ref: ReferenceType[AsyncPeriodic], loop: asyncio.AbstractEventLoop) -> None:
    periodic = periodic_ref()
    if periodic is not None:
        periodic._start(loop)
