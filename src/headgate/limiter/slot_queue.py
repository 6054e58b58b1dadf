"""Queues: callers that wait for the same slots get them in order of arrival."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable
from threading import Event, Lock
from weakref import WeakValueDictionary

from headgate.core.fork import renew_in_children


class Queue:
    """Lets threads through one by one, in order of arrival."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._is_busy = False
        self._waiting: deque[Event] = deque()

    def enter(self, seconds: float | None) -> bool:
        """Wait for this caller's turn, for at most `seconds`. Returns whether it came; then call `leave` to end it."""
        with self._lock:
            if not self._is_busy:
                self._is_busy = True
                return True
            turn = Event()
            self._waiting.append(turn)
        if turn.wait(seconds):
            return True
        with self._lock:
            if turn.is_set():  # the turn came just now
                return True
            self._waiting.remove(turn)
            return False

    def leave(self) -> None:
        """Let the next caller through."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._is_busy = False


class Queues:
    """The queues of one limiter, by the slots that callers wait for. A queue exists while a caller is in it."""

    def __init__(self) -> None:
        self.reset_after_fork()
        renew_in_children(self)

    def reset_after_fork(self) -> None:
        """Reset in a forked child: the waiting callers are the parent's."""
        self._lock = Lock()
        self._known: WeakValueDictionary[Hashable, Queue] = WeakValueDictionary()

    def of(self, key: Hashable) -> Queue:
        with self._lock:
            return self._known.setdefault(key, Queue())


class AsyncQueue:
    """Lets tasks through one by one, in order of arrival."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()  # asyncio grants it in the order of the calls
        self.leave = self._lock.release

    async def enter(self, seconds: float | None) -> bool:
        """Wait for this task's turn, for at most `seconds`. Returns whether it came; then call `leave` to end it."""
        try:
            async with asyncio.timeout(seconds):
                await self._lock.acquire()
        except TimeoutError:
            return False
        return True


class AsyncQueues:
    """The queues of one limiter, by the slots that tasks wait for. A queue exists while a task is in it."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[Hashable, AsyncQueue] = WeakValueDictionary()

    def of(self, key: Hashable) -> AsyncQueue:
        return self._known.setdefault(key, AsyncQueue())
