"""Batches calls to servers: when they leave, and which waiting requests go in one command. No I/O.

A store's calls leave at the end of a tick of the event loop, for all of its servers. A caller that gets a reply and
sends its next request does so in the tick after the reply: waiting requests leave at the end of that tick, not one tick
later. So a reply wakes the batcher as well as the callers, and the first request wakes it if nothing else has. A large
batch for an idle server leaves before the end of the tick: the server decides it while the other callers of the tick
still make their requests.

On a cluster, replies of several servers arrive one after the other. Each wakes some callers, whose next requests go to
all servers: calls would become small and many. So a small batch waits for a moment: for a call in progress to its own
server, or for large calls to others, whose callers will join it. It does not wait for a call that takes longer than the
last one did: a slow server does not delay the callers of others.

While any request waits, the batcher also ticks: it drives the clock for deadlines, and each server handles its expired
deadlines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence, Sized
from contextvars import Context
from time import monotonic
from typing import Any, Final, NamedTuple, Protocol

from headgate.errors import StoreError
from headgate.stores.process_clock import SLACK_SECONDS, TICK_SECONDS, ProcessClock
from headgate.stores.redis import script
from headgate.stores.redis.encoding import CommandTemplate, RequestParts
from headgate.stores.redis.script import EncodedCommand

GATHER_SECONDS: Final = 0.002  # how long a small batch waits for others, at most, while a call is in progress
ENOUGH: Final = 64  # a batch of this size does not wait
EARLY: Final = 32  # a batch of this size leaves before the end of the tick if its server is idle
MANY: Final = 8  # this many requests in progress to other servers are worth waiting for
NO_SLOT: Final = -1  # slots do not matter
CLOCK_SECONDS: Final = 0.0001  # how early a timer may fire


class UnderWay(Protocol):
    """A call in progress to a server."""

    size: int  # number of groups
    expected: float  # when its reply is expected at the latest, by the event loop's clock


class BatchedServer(Protocol):
    """A server with waiting requests."""

    held_since: float  # when the first waiting request began to wait for others; 0: none does

    @property
    def waiting(self) -> Sized: ...

    @property
    def calls(self) -> Sized:
        """The calls in progress."""

    def send_waiting(self) -> None:
        """Send waiting requests, as far as calls are free."""

    def tick(self, now: float) -> bool:
        """Handle expired deadlines, by the process clock. Return whether there is anything left to watch."""
        ...


class Batcher:
    """Sends the calls of one store, in one event loop. `gathers`: there are several servers."""

    def __init__(self, timeout: float, *, gathers: bool = False) -> None:
        self.woken = False  # whether waiting requests are about to leave
        self.since = self.deadline = 0.0  # of all requests of this tick, by the process clock
        self.watched: dict[BatchedServer, None] = {}  # servers that tick
        self.waited_for: dict[BatchedServer, None] = {}  # servers, in order of their first waiting request
        self.calls: set[UnderWay] = set()  # to all servers
        self._clock = ProcessClock()
        self._timeout = timeout
        self.gathers = gathers
        self._turns = 0  # turns of the event loop still to wait for
        self._no_context = Context()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None  # keeps running when no request waits any more

    def enter(self, loop: asyncio.AbstractEventLoop) -> None:
        """Switch to this event loop."""
        if loop is not self._loop:
            self._loop = loop
            self.waited_for.clear()
            self.calls.clear()
            self.watched.clear()
            self._clock = ProcessClock()
            self.woken, self._turns, self._timer = False, 0, None

    def now(self) -> float:
        """Return the time by the process clock, which deadlines use."""
        return self._clock.now(monotonic() if self._loop is None else self._loop.time())

    def watch(self, node: BatchedServer) -> None:
        """Tick a server until it has nothing left to watch."""
        assert self._loop is not None
        if not self.watched:
            self._schedule_tick(self._loop.time())
        self.watched[node] = None

    def _schedule_tick(self, now: float) -> None:
        assert self._loop is not None
        self._clock.tick(now, now + TICK_SECONDS + SLACK_SECONDS)
        self._loop.call_at(now + TICK_SECONDS, self._tick, self._loop, context=self._no_context)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        if loop is not self._loop:  # left for another event loop
            return
        at = loop.time()
        now = self._clock.now(at)
        for node in tuple(self.watched):
            if not node.tick(now):
                del self.watched[node]
        if self.watched:
            self._schedule_tick(at)
        else:
            self._clock.tick(at)

    def wake(self, now: float) -> None:
        """Send waiting requests after the callers that were just answered have had their turn."""
        assert self._loop is not None
        self.woken = True
        self.since = self._clock.now(now)
        self.deadline = self.since + self._timeout
        self._turns += 1
        self._loop.call_soon(self._end_turn, context=self._no_context)

    def _end_turn(self) -> None:
        self._turns -= 1
        if self._turns:  # others were answered in the same tick, and get their turn after this
            return
        self.woken = False
        if self.gathers and self.calls:
            self._send_batches()
        else:
            for node in tuple(self.waited_for):
                node.send_waiting()

    def _send_batches(self) -> None:
        assert self._loop is not None
        now = self._loop.time()
        many = sum([call.size for call in self.calls if now < call.expected]) >= MANY
        for node in tuple(self.waited_for):
            if len(node.waiting) >= ENOUGH or not (many or node.calls):
                node.send_waiting()
                continue
            if not node.held_since:
                node.held_since = now
            if now >= node.held_since + GATHER_SECONDS:
                node.send_waiting()
            elif self._timer is None:
                self._timer = self._loop.call_at(now + GATHER_SECONDS, self._send_late, context=self._no_context)

    def _send_late(self) -> None:
        """Send batches that have waited for others long enough."""
        assert self._loop is not None
        self._timer = None
        now = self._loop.time() + CLOCK_SECONDS
        for node in tuple(self.waited_for):
            if node.held_since and now >= node.held_since + GATHER_SECONDS:
                node.send_waiting()
        held = [node.held_since for node in self.waited_for if node.held_since]
        if held:
            self._timer = self._loop.call_at(min(held) + GATHER_SECONDS, self._send_late, context=self._no_context)


class Waiting:
    """A caller that waits for the reply to its requests, all of one template. The server's queue sets the last three.

    The answer is the time and the figures of all requests, unless a subclass makes something else of them.
    """

    __slots__ = ("answer", "deadline", "requests", "since", "template")

    template: CommandTemplate | None  # None: a command
    requests: Sequence[RequestParts]
    answer: asyncio.Future[Any]
    deadline: float  # by the process clock
    since: float  # start of the wait, by the same clock
    slot = NO_SLOT  # on a cluster
    command: script.Command | None = None
    asking = False  # the server is importing the slot
    alone = False  # must not share a command with others
    ordered = False  # must follow all earlier requests in the same call

    def resolve(self, now_us: int, figures: Sequence[Any]) -> None:
        """Answer the caller, if it still waits."""
        if not self.answer.done():
            self.answer.set_result((now_us, figures))

    def fail(self, error: StoreError) -> None:
        """Refuse the caller, if it still waits."""
        if not self.answer.done():
            self.answer.set_exception(error)


class WaitingStep(Waiting):
    """A caller that waits for a step of an operation: requests of one template, or a command."""

    __slots__ = ("alone", "asking", "command", "ordered", "slot")

    def __init__(
        self,
        template: CommandTemplate | None,
        requests: Sequence[RequestParts] = (),
        slot: int = NO_SLOT,
        command: script.Command | None = None,
        *,
        asking: bool = False,
        alone: bool = False,
        ordered: bool = False,
    ) -> None:
        self.template = template
        self.requests = requests
        self.slot = slot
        self.command = command
        self.asking = asking
        self.alone = alone
        self.ordered = ordered


class CallerBatch(NamedTuple):
    """Callers that share one call."""

    waiting: list[Waiting]
    size: int  # number of requests
    template: CommandTemplate | None  # of all, if they go as one command; None: they cannot


class BatchedCommand(NamedTuple):
    """Callers that share one command. On a cluster, all belong to one slot: a script touches declared keys only."""

    waiting: list[Waiting]
    template: CommandTemplate | None  # None: a caller's own command

    def encode(self, now_us: int | None) -> EncodedCommand:
        first = self.waiting[0]
        if self.template is None:
            assert first.command is not None
            return EncodedCommand(first.command, first.asking)
        requests = [request for one in self.waiting for request in one.requests]
        return EncodedCommand(self.template.command(requests, now_us), first.asking)


def commands_of(batch: CallerBatch) -> list[BatchedCommand]:
    """Return the commands of a call: requests of one slot and template share a command."""
    if batch.template is not None:
        return [BatchedCommand(batch.waiting, batch.template)]
    return [BatchedCommand(waiting, waiting[0].template) for waiting in _together(batch.waiting)]


def _together(batch: list[Waiting]) -> Iterator[list[Waiting]]:
    """Group requests into commands. Never merge them across an intervening command."""
    merged: dict[tuple[int, bool, CommandTemplate], list[Waiting]] = {}
    for waiting in batch:
        if waiting.template is None or waiting.alone:
            yield from merged.values()
            merged = {}
            yield [waiting]
            continue
        if waiting.ordered:
            yield from merged.values()
            merged = {}
        merged.setdefault((waiting.slot, waiting.asking, waiting.template), []).append(waiting)
    yield from merged.values()
