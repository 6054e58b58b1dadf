"""What a limiter with rules of failure mode `local` does in the background: it says that it is alive, so that all nodes
know how many they are; and when the store is back, it tells what was spent meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextvars import Context
from itertools import groupby
from threading import Event, Lock, Thread
from time import monotonic
from typing import Any
from weakref import ReferenceType, WeakSet, ref

from headgate.core.check import Check
from headgate.core.fork import renew_in_children
from headgate.errors import StoreError, StoreUnavailable
from headgate.limiter.engine import Engine
from headgate.limiter.shares import BEAT_SECONDS, LIVES_SECONDS
from headgate.stores.protocol import (
    AsyncBeatingStore,
    AsyncReservingStore,
    AsyncStore,
    BeatingStore,
    ReservingStore,
    Store,
)

LIVES_US = round(LIVES_SECONDS * 1_000_000)

log = logging.getLogger("headgate")


class _Pulse:
    """What both kinds have in common."""

    def __init__(self, engine: Engine, *, merges: bool) -> None:
        self._engine = engine
        self._shares = engine.fallback.shares
        self._shares.merges = merges
        self._closed = False
        self.siblings: WeakSet[Any] = WeakSet()  # of limiters on the same store, which end with this one

    def _owed(self) -> Iterator[list[Check]]:
        """What the store is to be charged: of one subject at a time, so that it is charged all of it or nothing."""
        owed = sorted(self._shares.owed(self._engine.fallback.local), key=_subject)
        if owed:
            log.info("the store is charged what was admitted without it, of %s limits", len(owed))
        for _, checks in groupby(owed, key=_subject):
            yield list(checks)

    def _unpaid(self, checks: list[Check], error: StoreError) -> None:
        if isinstance(error, StoreUnavailable) and not error.sent:
            self._shares.unpaid(checks)
        else:  # it may have been charged, and is not charged twice
            log.warning("the store may not know what was admitted without it (%s)", error)


class Pulse(_Pulse):
    """For threads: one of its own, which does not keep the limiter alive."""

    def __init__(self, store: Store, engine: Engine) -> None:
        super().__init__(engine, merges=isinstance(store, ReservingStore))
        self._store = store
        self.forked()
        renew_in_children(self)

    def attend(self) -> None:
        """Begin, if it is time to."""
        if self._thread is None and self._engine.has_local:
            self._begin()

    def attended(self, way: Any) -> Any:
        """The program of a plan with a limit of failure mode local."""

        def check(*request: Any) -> Any:
            if self._thread is None:
                self._begin()
            return way(*request)

        return check

    def wake(self) -> None:
        """The store is back."""
        self._wake.set()

    def close(self) -> None:
        for sibling in list(self.siblings):
            sibling.close()
        with self._lock:
            self._closed = True
            thread = self._thread
        if thread is None:
            return
        self._wake.set()
        thread.join()
        if isinstance(self._store, BeatingStore) and not self._engine.failing:
            try:
                self._store.beat(self._engine.name, self._shares.node, 0)
            except StoreError as error:
                log.debug("the other nodes were not told that this one leaves (%s)", error)

    def forked(self) -> None:
        """In a forked child: the thread is the parent's."""
        self._thread: Thread | None = None
        self._lock = Lock()
        self._wake = Event()

    def _begin(self) -> None:
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = Thread(target=_keep, args=(ref(self),), name="headgate-pulse", daemon=True)
                self._thread.start()

    def work(self) -> Event | None:
        """One round. Returns what ends the pause after it; None when it is over."""
        wake = self._wake
        wake.clear()
        if self._closed:
            return None
        if self._engine.has_local:
            try:
                if isinstance(self._store, BeatingStore):
                    shares = self._shares
                    shares.told(self._store.beat(self._engine.name, shares.node, LIVES_US), monotonic())
                    self._merge()
                elif not self._engine.failing:
                    self._merge()
            except StoreError as error:
                log.debug("no beat (%s)", error)
        return wake

    def _merge(self) -> None:
        if not isinstance(self._store, ReservingStore):
            return
        for checks in self._owed():
            try:
                self._store.adjust((), checks)
            except StoreError as error:
                self._unpaid(checks, error)


def _keep(pulse_ref: ReferenceType[Pulse]) -> None:
    while True:
        pulse = pulse_ref()
        wake = None if pulse is None else pulse.work()
        del pulse
        if wake is None:
            return
        wake.wait(BEAT_SECONDS)


class AsyncPulse(_Pulse):
    """For asyncio: by a timer of the event loop, and a task for as long as the store is asked."""

    def __init__(self, store: AsyncStore, engine: Engine) -> None:
        super().__init__(engine, merges=isinstance(store, AsyncReservingStore))
        self._store = store
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def attend(self) -> None:
        """Begin, if it is time to."""
        if self._loop is not asyncio.get_running_loop() and self._engine.has_local:
            self._begin()

    def attended(self, way: Callable[..., Any]) -> Callable[..., Any]:
        """The program of a plan with a limit of failure mode local."""
        running = asyncio.get_running_loop

        def check(*request: Any) -> Any:
            if self._loop is not running():
                self._begin()
            return way(*request)

        return check

    def wake(self) -> None:
        """The store is back."""
        if self._timer is not None and self._loop is asyncio.get_running_loop():
            self._timer.cancel()
            self._start()

    async def close(self) -> None:
        for sibling in list(self.siblings):
            await sibling.close()
        self._closed = True
        loop, task = asyncio.get_running_loop(), self._task
        if self._timer is not None:
            self._timer.cancel()
        if self._loop is not loop:
            return
        if task is not None:
            await asyncio.wait((task,))
        if isinstance(self._store, AsyncBeatingStore) and not self._engine.failing:
            try:
                await self._store.beat(self._engine.name, self._shares.node, 0)
            except StoreError as error:
                log.debug("the other nodes were not told that this one leaves (%s)", error)

    def _begin(self) -> None:
        if not self._closed:
            self._loop = asyncio.get_running_loop()
            self._start()

    def _start(self) -> None:
        self._timer = None
        assert self._loop is not None
        # It is not part of what its first caller is about.
        self._task = self._loop.create_task(self._work(), context=Context())

    async def _work(self) -> None:
        try:
            if self._engine.has_local:
                if isinstance(self._store, AsyncBeatingStore):
                    shares = self._shares
                    shares.told(await self._store.beat(self._engine.name, shares.node, LIVES_US), monotonic())
                    await self._merge()
                elif not self._engine.failing:
                    await self._merge()
        except StoreError as error:
            log.debug("no beat (%s)", error)
        finally:
            if not self._closed:
                assert self._loop is not None
                self._timer = self._loop.call_later(BEAT_SECONDS, _tick, ref(self))

    async def _merge(self) -> None:
        if not isinstance(self._store, AsyncReservingStore):
            return
        for checks in self._owed():
            try:
                await self._store.adjust((), checks)
            except StoreError as error:
                self._unpaid(checks, error)


def _tick(pulse_ref: ReferenceType[AsyncPulse]) -> None:
    pulse = pulse_ref()
    if pulse is not None:
        pulse._start()


def _subject(check: Check) -> str:
    return check.subject
