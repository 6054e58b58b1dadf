"""Fetches and tends leases in the background: in a thread, or in tasks of an event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from contextvars import Context
from threading import Event, Lock, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from headgate.features.leases.leases import TICK_US

if TYPE_CHECKING:
    from headgate.features.leases.async_leasing import AsyncLeasing
    from headgate.features.leases.leasing import Leasing

TICK_SECONDS: Final = TICK_US / 1_000_000
QUIET_TICKS: Final = 20  # after which an idle thread ends

log = logging.getLogger("headgate")


class LeaseWorker:
    """A thread that ends when it is idle. Without `ticking`, there is no thread, and slices are fetched at once."""

    def __init__(self, work: Leasing, *, ticking: bool) -> None:
        self._work = work
        self._ticking = ticking
        self._closed = False
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Reset in a forked child: the thread is the parent's."""
        self._lock, self._wake = Lock(), Event()
        self._thread: Thread | None = None

    def notify(self) -> None:
        """Fetch slices in the background."""
        if not self._ticking:
            self._work.fetch()
            return
        if self._closed:
            return
        self._wake.set()
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = Thread(target=self._run, name="headgate-leases", daemon=True)
                    self._thread.start()

    def close(self) -> None:
        """Stop, after any work in progress."""
        self._closed = True
        self._wake.set()
        thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        quiet, due = 0, monotonic() + TICK_SECONDS
        while not self._closed:
            self._wake.wait(max(0.0, due - monotonic()))
            self._wake.clear()
            try:
                self._work.fetch()
                if monotonic() < due:
                    continue
                due = monotonic() + TICK_SECONDS
                self._work.tend()
            except Exception:  # otherwise the thread would end unnoticed, and leases would never be returned
                log.exception("leases: unexpected error in the background")
            quiet = 0 if self._work.busy else quiet + 1
            if quiet > QUIET_TICKS:
                with self._lock:
                    if not self._work.busy and not self._wake.is_set():
                        self._thread = None
                        return


class AsyncLeaseWorker:
    """Tasks: one for each call of `notify`, and one that tends leases while there are any, if `ticking`.

    Cancelling a caller cancels none of them.
    """

    def __init__(self, work: AsyncLeasing, *, ticking: bool) -> None:
        self._work = work
        self._ticking = ticking
        self._closed = False
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Reset in a forked child: the tasks are the parent's."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._ticker: asyncio.Task[None] | None = None

    @property
    def idle(self) -> bool:
        """Whether nothing is being fetched, even because the event loop of the fetch has ended."""
        return not self._tasks

    def notify(self) -> None:
        """Fetch slices in the background."""
        if not self._closed:
            self._start(self._fetch())

    async def close(self) -> None:
        """Stop, after any work in progress."""
        self._closed = True
        if self._ticker is not None:
            self._ticker.cancel()
            with suppress(asyncio.CancelledError):
                await self._ticker
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task that `close` waits for. Its context is empty: it is not part of the request that started it."""
        task = asyncio.get_running_loop().create_task(work, context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _fetch(self) -> None:
        await self._work.fetch()
        ticker, loop = self._ticker, asyncio.get_running_loop()
        if self._ticking and not self._closed and (ticker is None or ticker.done() or ticker.get_loop() is not loop):
            self._ticker = loop.create_task(self._tick(), context=Context())

    async def _tick(self) -> None:
        while self._work.busy:
            await asyncio.sleep(TICK_SECONDS)
            await asyncio.shield(self._start(self._work.tend()))
