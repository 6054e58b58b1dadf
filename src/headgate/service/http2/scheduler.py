"""Scheduler: shares the event loop between connections. None works longer than a turn while others wait.

A connection processes most input at once. If it has more work than fits into one turn, it continues later. So do all
connections whose input arrives when a round is over, as the loop must handle its other events first. They wait in three
queues, served in rotation: known clients, strangers, and connections that have used up a turn. So no connection delays
those in the other queues by more than a turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Final, Protocol

TURN: Final = 0.003  # seconds that a connection may work for
ROUND: Final = 0.010  # seconds that all may work for before the loop handles other events
NOTICED: Final = 0.001  # seconds of work after which we ask the loop to report the round's end


class ScheduledConnection(Protocol):
    """A connection as the scheduler sees it."""

    known: bool  # whether its client has made an authorized call

    def work(self, until: float) -> bool:
        """Work until the time `until`, by `monotonic`. Returns whether there is more to do."""
        ...


class Scheduler:
    """Gives connections turns. Belongs to one event loop. `call_soon` runs a function after the loop's other events."""

    def __init__(
        self, call_soon: Callable[[Callable[[], None]], object], clock: Callable[[], float] = monotonic
    ) -> None:
        self._call_soon = call_soon
        self._clock = clock
        self._worked = 0.0  # seconds, in this round
        self._is_marked = False  # whether `_begin_round` will be called
        self._waiting: set[ScheduledConnection] = set()
        self._known: deque[ScheduledConnection] = deque()
        self._strangers: deque[ScheduledConnection] = deque()
        self._busy: deque[ScheduledConnection] = deque()  # connections that have used up a turn
        self._next = deque((self._known, self._strangers, self._busy))
        self._scheduled = False

    def work(self, worker: ScheduledConnection) -> None:
        """Let a connection work, now or in its turn."""
        if worker in self._waiting:
            return
        if self._worked > ROUND:
            self._enqueue(worker, self._known if worker.known else self._strangers)
        else:
            self._give_turn(worker)

    def work_later(self, worker: ScheduledConnection) -> None:
        """Let a connection work after those with less to do."""
        if worker not in self._waiting:
            self._enqueue(worker, self._busy)

    def forget(self, worker: ScheduledConnection) -> None:
        """Remove a closed connection."""
        self._waiting.discard(worker)

    def _give_turn(self, worker: ScheduledConnection) -> None:
        now = self._clock()
        has_more = worker.work(now + TURN)
        self._worked += self._clock() - now
        if self._worked > NOTICED and not self._is_marked:
            self._is_marked = True
            self._call_soon(self._begin_round)
        if has_more:
            self._enqueue(worker, self._busy)

    def _begin_round(self) -> None:
        self._is_marked = False
        self._worked = 0.0

    def _enqueue(self, worker: ScheduledConnection, queue: deque[ScheduledConnection]) -> None:
        self._waiting.add(worker)
        queue.append(worker)
        self._schedule()

    def _run(self) -> None:
        """Run a round of work for the waiting connections."""
        self._scheduled = False
        self._worked = 0.0
        while self._waiting:
            if self._worked > ROUND:
                self._schedule()
                return
            self._next.rotate(-1)
            queue = self._next[0]
            if queue:
                worker = queue.popleft()
                if worker in self._waiting:
                    self._waiting.discard(worker)
                    self._give_turn(worker)
        for queue in self._next:
            queue.clear()  # left-overs of closed connections

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._call_soon(self._run)
