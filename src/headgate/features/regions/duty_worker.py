"""Does the duties of a region in the background: one thread or task each, which ends when it is idle."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from threading import Event, Lock, Thread
from typing import Any

from headgate.features.regions.link import Duty

PAUSE_SECONDS = 1.0  # after a duty that failed

log = logging.getLogger("headgate")


class DutyWorkers:
    """Threads that do duties. `do` does a duty once."""

    def __init__(self, do: Callable[[Duty], None]) -> None:
        self._do = do
        self._closed = False
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Reset in a forked child: the threads are the parent's."""
        self._lock = Lock()
        self._workers: dict[str, _DutyThread] = {}

    def notify(self, duty: Duty) -> None:
        """Check a duty now, because it may be due sooner."""
        worker = self._workers.get(duty.name)
        if worker is None or not worker.wake():
            with self._lock:
                worker = self._workers.get(duty.name)
                if not self._closed and (worker is None or not worker.wake()):
                    self._workers[duty.name] = _DutyThread(self._do, duty)

    def close(self) -> None:
        """Stop, after any work in progress."""
        with self._lock:
            self._closed = True
            workers = list(self._workers.values())
        for worker in workers:
            worker.end()


class _DutyThread:
    """A thread that does one duty, and ends when there is nothing to do."""

    def __init__(self, do: Callable[[Duty], None], duty: Duty) -> None:
        self._do = do
        self._duty = duty
        self._wake = Event()
        self._lock = Lock()
        self._ended = self._ending = False
        self._thread = Thread(target=self._work, name=f"headgate-{duty.name.replace(' ', '-')}", daemon=True)
        self._thread.start()

    def wake(self) -> bool:
        """Wake the thread. Return False if it has ended."""
        if self._wake.is_set() and not self._ended:
            return True
        with self._lock:
            self._wake.set()
            return not self._ended

    def end(self) -> None:
        self._ending = True
        self._wake.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._ending:
            due_us = self._duty.due_us()
            if due_us is None:
                with self._lock:
                    if not self._wake.is_set():
                        self._ended = True
                        return
            elif due_us:
                self._wake.wait(due_us / 1_000_000)
            self._wake.clear()
            if self._ending or self._duty.due_us() != 0:
                continue
            try:
                self._do(self._duty)
            except Exception:  # otherwise the thread would end unnoticed, and regions would drift apart
                log.exception("regions: unexpected error in the background (%s)", self._duty.name)
                self._wake.wait(PAUSE_SECONDS)


class AsyncDutyWorkers:
    """Tasks of the running event loop that do duties. `do` does a duty once."""

    def __init__(self, do: Callable[[Duty], Coroutine[Any, Any, None]]) -> None:
        self._do = do
        self._closed = False
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Reset in a forked child: the tasks are the parent's."""
        self._workers: dict[str, _AsyncWorker] = {}

    def notify(self, duty: Duty) -> None:
        """Check a duty now, because it may be due sooner."""
        if not self._closed:
            worker, loop = self._workers.get(duty.name), asyncio.get_running_loop()
            if worker is None or not worker.wake(loop):
                self._workers[duty.name] = _AsyncWorker(self._do, duty, loop)

    async def close(self) -> None:
        """Stop, and cancel any work in progress."""
        self._closed = True
        for worker in list(self._workers.values()):
            await worker.end()


class _AsyncWorker:
    """A task that does one duty, and ends when there is nothing to do."""

    def __init__(
        self, do: Callable[[Duty], Coroutine[Any, Any, None]], duty: Duty, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._do = do
        self._duty = duty
        self._loop = loop
        self._wake = asyncio.Event()
        self._task = loop.create_task(self._work(), context=Context())  # not part of the request that started it

    def wake(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Wake the task. Return False if it or its event loop has ended."""
        self._wake.set()
        return not self._task.done() and self._loop is loop

    async def end(self) -> None:
        if self._loop is asyncio.get_running_loop():
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _work(self) -> None:
        while True:
            due_us = self._duty.due_us()
            if due_us is None:
                return
            if due_us:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), due_us / 1_000_000)
            self._wake.clear()
            if self._duty.due_us() != 0:
                continue
            try:
                await self._do(self._duty)
            except Exception:  # otherwise the task would end unnoticed, and regions would drift apart
                log.exception("regions: unexpected error in the background (%s)", self._duty.name)
                await asyncio.sleep(PAUSE_SECONDS)
