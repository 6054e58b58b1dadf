"""The queue of one server, for asyncio: waiting callers, and checks to charge that no caller waits for. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from math import inf
from typing import Final

from headgate.errors import StoreError, StoreTimeout
from headgate.stores.breaker import GRACE_SECONDS
from headgate.stores.protocol import StoreObserver
from headgate.stores.redis.batcher import NO_SLOT, CallerBatch, Waiting
from headgate.stores.redis.faults import fault
from headgate.stores.redis.options import RedisOptions

MAX_CHARGED_LATER: Final = 16_384  # checks to charge that no caller waits for


class CallerQueue:
    """The queue of a server. `charge_later` is called with each check to charge later."""

    def __init__(
        self, options: RedisOptions, observer: StoreObserver | None, charge_later: Callable[[Waiting], None]
    ) -> None:
        self.waiting: deque[Waiting] = deque()  # never replaced, like `owed`
        # No caller waits for these, but they must be charged.
        self.owed: deque[Waiting] = deque(maxlen=MAX_CHARGED_LATER)
        self._options = options
        self._observer = observer
        self._charge_later = charge_later

    def take_batch(self, now: float) -> CallerBatch:
        """Take out the callers for the next call, except those that were cancelled or timed out."""
        queue, max_batch = self.waiting, self._options.max_batch
        batch: list[Waiting] = []
        count = size = 0
        first = (queue or self.owed)[0]
        shared = first.template if first.slot == NO_SLOT else None  # of all, if they go as one command
        while queue:
            waiting = queue[0]
            requests = len(waiting.requests)
            count += requests or 1
            if count > max_batch and batch and not waiting.ordered:
                break
            queue.popleft()
            if waiting.deadline <= now:
                self.expire_one(waiting, sent=False)
            elif not waiting.answer.done():
                batch.append(waiting)
                size += requests
                if waiting.template is not shared or waiting.ordered or waiting.alone:
                    shared = None
        while self.owed and count < max_batch:
            owed = self.owed.popleft()
            if now < owed.deadline + GRACE_SECONDS:  # later, it would be charged to another period
                batch.append(owed)
                count += len(owed.requests)
                size += len(owed.requests)
                if owed.template is not shared:
                    shared = None
        return CallerBatch(batch, size, shared)

    def expire(self, now: float) -> float:
        """Refuse callers that timed out. Return the first deadline of the others."""
        if any(one.deadline <= now for one in self.waiting):
            late = [one for one in self.waiting if one.deadline <= now]
            self._replace([one for one in self.waiting if one.deadline > now])
            for one in late:
                self.expire_one(one, sent=False)
        return min((one.deadline for one in self.waiting), default=inf)

    def expire_one(self, one: Waiting, *, sent: bool = True) -> None:
        """Refuse a caller that timed out. If its check was not `sent`, it can be charged later."""
        if not one.answer.done():
            known = fault(TimeoutError(), self._options.timeout)
            if not sent and isinstance(known, StoreTimeout) and one.requests:
                known.charge_later = partial(self._charge_later, one)
            one.fail(known)
            if self._observer is not None:
                self._observer.failed(known, self._options.timeout, len(one.requests))

    def extend(self, now: float) -> None:
        """Restart the timeouts of queued callers now: without a connection, none of their requests was in progress."""
        until = now + self._options.timeout
        for one in self.waiting:
            one.deadline, one.since = max(one.deadline, until), now

    def refuse(self, error: StoreError, now: float, *, is_observed: bool) -> None:
        """Refuse all waiting callers. The observer receives each refusal if `is_observed`."""
        while self.waiting:
            one = self.waiting.popleft()
            if not one.answer.done():
                one.fail(error)
                if self._observer is not None and is_observed:
                    waited = now - (one.deadline - self._options.timeout)
                    self._observer.failed(error, max(0.0, waited), len(one.requests))

    def _replace(self, waiting: Iterable[Waiting]) -> None:
        self.waiting.clear()
        self.waiting.extend(waiting)
