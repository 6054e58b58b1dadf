"""Renewal: renews slots in the background while their blocks run, a few times per time to live."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from threading import Condition, Thread
from time import monotonic
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from headgate.core.fork import renew_in_children
from headgate.errors import StoreError
from headgate.limiter.slot_records import SlotState

if TYPE_CHECKING:
    from headgate.limiter.async_slots import AsyncSlot
    from headgate.limiter.slots import Slot

TIMES: Final = 3  # renewals per time to live: two may fail
QUIET_SECONDS: Final = 5.0  # seconds after which an idle thread ends

S = TypeVar("S", bound=SlotState)

log = logging.getLogger("headgate")


class _Due(Generic[S]):
    """Slots by the time of their next renewal. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._by_ttl: dict[float, dict[S, float]] = {}  # by time to live, each sorted by due time

    def put(self, slot: S) -> bool:
        """Add a slot. Returns whether it is the only one with its time to live, so that it may be the first due."""
        ttl = slot.ttl or 0.0
        slots = self._by_ttl.setdefault(ttl, {})
        slots[slot] = monotonic() + ttl / TIMES
        return len(slots) == 1

    def remove(self, slot: S) -> None:
        """Remove a slot, if it is there."""
        ttl = slot.ttl or 0.0
        slots = self._by_ttl.get(ttl)
        if slots is not None:
            slots.pop(slot, None)
            if not slots:
                del self._by_ttl[ttl]

    def next(self) -> float | None:
        """Return the time until the next slot is due; None if there are no slots."""
        firsts = [next(iter(slots.values())) for slots in self._by_ttl.values()]
        return max(0.0, min(firsts) - monotonic()) if firsts else None

    def pop(self) -> list[S]:
        """Remove and return the slots that are due."""
        now, found = monotonic(), []
        for slots in list(self._by_ttl.values()):
            while slots:
                slot = next(iter(slots))
                if slots[slot] > now:
                    break
                found.append(slot)
                self.remove(slot)
        return found


class Renewal:
    """Renews the slots of one `Limiter` in a thread that runs while there is something to renew."""

    def __init__(self) -> None:
        self.reset_after_fork()
        renew_in_children(self)

    def reset_after_fork(self) -> None:
        """Reset in a forked child: the slots are the parent's."""
        self._due: _Due[Slot] = _Due()
        self._changed = Condition()
        self._thread: Thread | None = None
        self._closed = False

    def add(self, slot: Slot) -> None:
        """Renew a slot until it is released."""
        with self._changed:
            is_first = self._due.put(slot)
            if self._thread is None and not self._closed:
                self._thread = Thread(target=self._run, name="headgate-renewal", daemon=True)
                self._thread.start()
            elif is_first:
                self._changed.notify()

    def remove(self, slot: Slot) -> None:
        """Stop renewing a slot."""
        with self._changed:
            self._due.remove(slot)

    def close(self) -> None:
        """Stop renewing all slots."""
        with self._changed:
            self._closed, thread = True, self._thread
            self._changed.notify()
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                seconds = self._due.next()
                if seconds is None or seconds > 0:
                    notified = self._changed.wait(QUIET_SECONDS if seconds is None else seconds)
                    if self._closed or (seconds is None and not notified):
                        self._thread = None
                        return
                slots = self._due.pop()
            for slot in slots:
                try:
                    slot.renew()
                except StoreError as error:
                    log_failed_renewal(error)
                with self._changed:
                    if slot.is_held:
                        self._due.put(slot)
                if slot.is_lost:
                    log_lost_slot(slot)


class AsyncRenewal:
    """Renews the slots of one `AsyncLimiter` in a task that runs while there is something to renew."""

    def __init__(self) -> None:
        self._due: _Due[AsyncSlot] = _Due()
        self._changed: asyncio.Event | None = None
        self._task: asyncio.Task[None] | None = None

    def add(self, slot: AsyncSlot) -> None:
        """Renew a slot until it is released."""
        is_first = self._due.put(slot)
        if self._task is None or self._task.done():
            self._changed = asyncio.Event()
            self._task = asyncio.get_running_loop().create_task(self._run(self._changed))
        elif is_first and self._changed is not None:
            self._changed.set()

    def remove(self, slot: AsyncSlot) -> None:
        """Stop renewing a slot."""
        self._due.remove(slot)

    async def close(self) -> None:
        """Stop renewing all slots."""
        task, self._task = self._task, None
        if task is not None and not task.get_loop().is_closed():
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _run(self, changed: asyncio.Event) -> None:
        while True:
            seconds = self._due.next()
            changed.clear()
            try:
                await asyncio.wait_for(changed.wait(), QUIET_SECONDS if seconds is None else seconds)
            except TimeoutError:
                if seconds is None:
                    return
            slots = self._due.pop()
            await asyncio.gather(*[self._renew(slot) for slot in slots])

    async def _renew(self, slot: AsyncSlot) -> None:
        try:
            await slot.renew()
        except StoreError as error:
            log_failed_renewal(error)
        if slot.is_held:
            self._due.put(slot)
        if slot.is_lost:
            log_lost_slot(slot)


def log_lost_slot(slot: SlotState) -> None:
    """Log that a slot expired while its block was running."""
    log.warning("a slot expired before it was renewed: more requests may run at once than the rule allows (%r)", slot)


def log_failed_renewal(error: StoreError) -> None:
    """Log that the store could not be reached. The next renewal may still be in time."""
    log.warning("could not renew a slot, trying again (%s)", error)
