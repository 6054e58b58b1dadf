"""One server, for asyncio: all requests of one tick of the event loop go to it as one call.

A call leaves at the end of the tick of its first request, or earlier if the server is idle and many requests wait. If
`max_in_flight` calls are in progress, further requests queue; each call takes up to `max_batch` of them. Connections
belong to calls, not to callers: a caller that is cancelled or times out does not disturb its call or the others'
answers. A late reply is read and dropped, but shows that the server is alive. A call is not a task: its replies are
passed on as they arrive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context, copy_context
from functools import partial
from math import inf
from typing import Any

from redis.exceptions import NoScriptError
from redis.exceptions import TimeoutError as RedisTimeout

from headgate.errors import StoreError, StoreUnavailable
from headgate.stores.breaker import SILENCE
from headgate.stores.protocol import StoreObserver
from headgate.stores.redis.aio_call import BatchCall, count_replies, hand_out, is_unknown, without_asking
from headgate.stores.redis.aio_connection import AsyncConnection
from headgate.stores.redis.aio_pool import AsyncPool
from headgate.stores.redis.aio_queue import CallerQueue
from headgate.stores.redis.batcher import EARLY, GATHER_SECONDS, Batcher, CallerBatch, Waiting, WaitingStep
from headgate.stores.redis.faults import (
    FAULTS,
    breaker_of,
    circuit_open_error,
    fault,
    replaced_master_error,
    report_call,
)
from headgate.stores.redis.options import ConnectionParams, RedisOptions
from headgate.stores.redis.script import EncodedCommand, pack


class AsyncNode:
    """A server, for the tasks of one event loop. `now_us` returns the time to send; None means the server's own time.

    `batcher` is shared by all servers of the store.
    """

    def __init__(
        self,
        params: ConnectionParams,
        options: RedisOptions,
        observer: StoreObserver | None,
        now_us: Callable[[], int | None],
        batcher: Batcher,
    ) -> None:
        self.name = params.name
        self.host: str = params.arguments.get("host", "localhost")
        self.breaker = breaker_of(params.name, options.probe_every, observer)
        self._options = options
        self._now_us = now_us
        self._observer = observer
        self._loop: asyncio.AbstractEventLoop | None = None
        self._callers = CallerQueue(options, observer, self._charge_later)
        self.waiting, self.owed = self._callers.waiting, self._callers.owed
        self.calls: set[BatchCall] = set()  # in progress
        self.held_since = 0.0  # see batcher
        self._batcher = batcher
        self._first = Context()  # of the first waiting request
        self._last_seconds = 0.0  # seconds that the last call took
        self._connections = AsyncPool(params, options.patience, self._on_connection)
        self._ended: asyncio.Event | None = None  # set when no call is in progress, for `close`
        self._enough_until = 0.0  # until then, no more connections are opened besides those in use
        self._due = 0.0  # no caller times out before this, by the process clock
        self.is_closed = False

    def take(self, step: WaitingStep, deadline: float | None = None) -> asyncio.Future[Any]:
        """Take a step with the next call, together with all others of its template. Raises `StoreError`.

        The answer is the reply to its command, or the time, and the figures of all requests.
        """
        answer = self.queue(step)
        if deadline is not None:
            step.deadline = deadline
            self._due = min(self._due, deadline)
        return answer

    def decide(self, check: Waiting) -> asyncio.Future[Any]:
        """Decide one check with the next call, and return a future for its answer. Raises `StoreError`.

        A large batch leaves at once if the server is idle, and later ones can leave before its reply. Steps never do:
        some must share a call with the next ones.
        """
        answer = self.queue(check)
        if len(self.waiting) == EARLY and not self.calls and not self._batcher.gathers:
            if self._connections.idle > 1:
                self.send_waiting()
            elif self._options.max_in_flight > 1:
                self._open_another()
        return answer

    def queue(self, waiting: Waiting) -> asyncio.Future[Any]:
        """Queue a caller for the next call, and return the future for its answer. Raises `StoreError`."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._enter(loop)
        if self.is_closed:
            raise StoreUnavailable("the store was closed", sent=False)
        batcher = self._batcher
        if self.breaker.state != "closed" and not self._may_wait(batcher.now()):
            raise circuit_open_error(self.name, self.breaker.why)
        if not batcher.woken:
            batcher.wake(loop.time())
        if not self.waiting:
            batcher.waited_for[self] = None
            self._first = copy_context()
            if self not in batcher.watched:
                batcher.watch(self)
        waiting.deadline, waiting.since = batcher.deadline, batcher.since
        waiting.answer = answer = loop.create_future()
        self.waiting.append(waiting)
        return answer

    def _may_wait(self, now: float) -> bool:
        """Start a probe if one is due. Return whether callers may wait for its answer."""
        if self.breaker.begin_probe(now):
            self._connections.open(now)
            self._batcher.watch(self)
        return self.breaker.may_wait(now)

    async def close(self) -> None:
        """Wait for calls in progress, and close connections. Queued and new requests are refused."""
        self.is_closed = True
        self._batcher.waited_for.pop(self, None)
        self._refuse_waiting(StoreUnavailable("the store was closed", sent=False))
        if self._loop is not asyncio.get_running_loop():
            return
        self._leave_late()
        if self.calls:
            self._ended = self._ended or asyncio.Event()
            await self._ended.wait()
        await self._connections.close()

    def retire(self) -> None:
        """Refuse requests that have not been sent yet: another server is now the master."""
        self.owed.clear()
        self._batcher.waited_for.pop(self, None)
        self._refuse_waiting(replaced_master_error(self.name))

    def reopen(self) -> None:
        """Allow use after close, in any event loop."""
        self.is_closed = False
        if not self.calls:  # else its closing was cancelled
            self._loop = None

    def _enter(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is not None and not self._loop.is_closed():
            raise RuntimeError("this store belongs to another event loop: create one per loop")
        self._loop = loop
        self._connections.forget()  # those of an event loop that has ended
        self.waiting.clear()
        self.owed.clear()
        self.calls.clear()
        self._ended = None
        self._batcher.enter(loop)

    def send_waiting(self) -> None:
        """Send waiting requests, as far as calls are free."""
        assert self._loop is not None
        self.held_since = 0.0
        context, at, now = self._first, self._loop.time(), self._batcher.now()
        free = self._options.max_in_flight
        while (self.waiting or self.owed) and len(self.calls) < free and self.breaker.state == "closed":
            connection = self._connections.take()
            if connection is None:
                self._open_another()
                break
            batch = self._callers.take_batch(now)
            if batch.waiting:
                self._leave(batch, connection, at, now, context)
            else:
                self._connections.give_back(connection)
            context = Context()  # the first request of the next call has another context
        if self.waiting or self.owed:
            self._first = context
        else:
            self._batcher.waited_for.pop(self, None)

    def _open_another(self) -> None:
        """Open one more connection in the background, unless there are some and the last attempt failed lately."""
        assert self._loop is not None
        has_any = self.calls or self._connections.idle
        if not has_any or self._loop.time() >= self._enough_until:
            now = self._batcher.now()
            self.breaker.ask(now)
            self._connections.open(now)

    # Deadlines

    def tick(self, now: float) -> bool:
        """Handle expired deadlines. Return whether there is anything left to watch."""
        if now >= self._due:
            self._due = inf
            self._listen(now)
            self._expire_waiting(now)
            for call in tuple(self.calls):
                self._expire_call(call, now)
            self._connections.tick(now)
            if self.is_closed:
                self._leave_late()
            self._due = min(self._due, now + self._options.timeout)  # for later callers
        return bool(self.waiting or self.calls or self._connections.opening_since is not None)

    def _listen(self, now: float) -> None:
        """Open the breaker if nothing was heard for the whole timeout while a call was in progress."""
        timeout, since = self._options.timeout, self._connections.opening_since
        under_way = [call.began for call in self.calls]
        if since is not None:
            under_way.append(since)
        if under_way and self.breaker.state == "closed" and self.breaker.is_silent(now, min(under_way), timeout):
            self.breaker.open(now, str(fault(TimeoutError(), timeout)))
            self._connections.doubt(min((call.sent for call in self.calls), default=inf))
            self._may_wait(now)

    def _expire_waiting(self, now: float) -> None:
        """Refuse queued callers that timed out; all of them, if there is no probe that they may wait for."""
        if self.breaker.state != "closed":
            if not self._may_wait(now):
                self._turn_away()
            self._due = now  # this may change at any time
        self._due = min(self._due, self._callers.expire(now))

    def _expire_call(self, call: BatchCall, now: float) -> None:
        """Refuse the callers of a call that timed out. The call continues: a late reply is a sign of life."""
        for one in call.waiting:
            if not one.answer.done():
                until = max(one.deadline + call.began - one.since, call.until)  # time in the queue is separate
                if until <= now:
                    self._callers.expire_one(one)
                else:
                    self._due = min(self._due, until)
        end = call.began + self._options.patience
        if now >= end:
            call.connection.close()
            call.refuse(fault(TimeoutError(), self._options.timeout))
            self._end(call)
        else:
            self._due = min(self._due, end)
            silent = call.began + SILENCE * self._options.timeout
            if silent > now:
                self._due = min(self._due, silent)

    def _charge_later(self, one: Waiting) -> None:
        """Charge a check whose caller no longer waits, with the next call that has room for it."""
        if self._loop is not None and one not in self.owed:
            self.owed.append(one)
            self._batcher.waited_for[self] = None
            if not self._batcher.woken:
                self._batcher.wake(self._loop.time())

    def _leave_late(self) -> None:
        """End calls that no caller waits for."""
        for call in tuple(self.calls):
            if all(one.answer.done() for one in call.waiting):
                call.connection.close()
                self._end(call)

    def _turn_away(self) -> None:
        self._refuse_waiting(circuit_open_error(self.name, self.breaker.why))

    def _refuse_waiting(self, error: StoreError) -> None:
        self._callers.refuse(error, self._batcher.now(), is_observed=not self.is_closed)

    # Calls

    def _leave(self, batch: CallerBatch, connection: AsyncConnection, at: float, now: float, context: Context) -> None:
        """Send a batch."""
        call = BatchCall(batch, connection, at, now, at + self._last_seconds + GATHER_SECONDS)
        call.context = context
        self.calls.add(call)
        self._batcher.calls.add(call)
        self.breaker.ask(now)
        try:
            now_us = self._now_us()
            call.encoded = [command.encode(now_us) for command in call.commands]
            connection.ask(
                pack(call.encoded, connection.scripts), count_replies(call.encoded), call.within(self._on_replies)
            )
        except BaseException as error:
            self._on_failure(call, error)
            raise

    def _on_connection(self, error: Exception | None) -> None:
        """Take a new connection into use, or handle the error if it could not be opened."""
        assert self._loop is not None
        batcher, at = self._batcher, self._loop.time()
        now = batcher.now()
        if error is None:
            if not self.calls:
                self._callers.extend(now)
            self.breaker.hear(now)
            if self.breaker.state != "closed":
                self.breaker.close(now)
                for call in tuple(self.calls):  # calls from before the outage will never be answered
                    if now - call.began >= self._options.timeout:
                        call.connection.close()
                        self._on_failure(call, RedisTimeout("the connection fell silent"))
        else:
            known = fault(error, self._options.timeout, sent=False)
            self._note_failure(now, inf, self._connections.began, known)
            self._enough_until = at + self._options.probe_every
            if self.breaker.state == "closed":
                if not (self.calls or self._connections.idle):  # else the next call decides those that wait
                    self._refuse_waiting(known)
            elif not self._may_wait(now):
                self._turn_away()
        if self.waiting or self.owed:
            batcher.wake(at)

    def _note_failure(self, now: float, began: float, sent: float, known: StoreError) -> None:
        """Report a failure to the breaker. If it is new evidence, suspect other connections too."""
        if self.breaker.fail(now, began, str(known)):
            self._connections.doubt(sent)

    def _on_replies(self, call: BatchCall, replies: list[Any] | Exception) -> None:
        """Handle the server's replies, or the failure of the call."""
        if isinstance(replies, Exception):
            self._on_failure(call, replies)
            return
        replies = without_asking(call.encoded, replies)
        if NoScriptError in map(type, replies):  # it does not know a script (any more): nothing was executed
            self._ask_again(call, replies)
            return
        self._deliver(call, replies)

    def _ask_again(self, call: BatchCall, replies: list[Any]) -> None:
        """Send again the commands whose scripts the server does not know: the first one with its text."""
        now = self._batcher.now()
        self.breaker.hear(now)
        call.until = now + self._options.timeout  # loading it gets its own timeout
        again = [command for command, reply in zip(call.encoded, replies, strict=True) if is_unknown(reply)]
        done = call.within(partial(self._on_retry_replies, before=replies, again=again))
        call.connection.ask(pack(again, set()), count_replies(again), done)

    def _on_retry_replies(
        self, call: BatchCall, replies: list[Any] | Exception, *, before: list[Any], again: list[EncodedCommand]
    ) -> None:
        """Handle the replies to commands that were sent again. The server may have lost the script in the meantime."""
        if isinstance(replies, Exception):
            self._on_failure(call, replies)
            return
        late = iter(without_asking(again, replies))
        merged = [next(late) if is_unknown(reply) else reply for reply in before]
        if 0 < sum(map(is_unknown, merged)) < len(again):
            self._ask_again(call, merged)
        else:
            self._deliver(call, merged)

    def _deliver(self, call: BatchCall, replies: list[Any]) -> None:
        connection = call.connection
        if self.is_closed:
            connection.close()
        else:
            self._connections.give_back(connection)
        self._last_seconds = seconds = connection.used - call.sent
        self.breaker.hear(self._batcher.now())
        if self._observer is not None:
            report_call(self._observer, replies, seconds, call.size, self._options.timeout)
        try:
            for command, reply in zip(call.commands, replies, strict=True):
                hand_out(command, reply, self._options.timeout)
        except (LookupError, TypeError, ValueError) as error:  # an invalid reply
            connection.close()
            call.refuse(fault(error, self._options.timeout))
        self._end(call)
        self._batcher.wake(connection.used)

    def _on_failure(self, call: BatchCall, error: BaseException) -> None:
        """Handle a call without a reply. Its connection is closed."""
        assert self._loop is not None
        at, now = self._loop.time(), self._batcher.now()
        if isinstance(error, FAULTS):
            known = fault(error, self._options.timeout)
        else:
            known = StoreUnavailable("the call to Redis broke off")
        self._note_failure(now, call.began, call.sent, known)
        if self._observer is not None and not all(one.answer.done() for one in call.waiting):
            self._observer.failed(known, at - call.sent, call.size)
        call.refuse(known)
        self._end(call)
        if self.breaker.state != "closed" and not self._may_wait(now):
            self._turn_away()
        if self._batcher.waited_for:
            self._batcher.wake(at)

    def _end(self, call: BatchCall) -> None:
        self.calls.discard(call)
        self._batcher.calls.discard(call)
        if self._ended is not None and not self.calls:
            self._ended.set()
