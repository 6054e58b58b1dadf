"""The Redis store for asyncio: checks that are made in one tick of the event loop travel as one script call.

The first check leaves at the end of the tick that it was made in. While `max_in_flight` calls are under way, others
gather; each call takes up to `max_batch` of them. Connections belong to the calls, not to the callers: a caller
that is cancelled leaves its call, and everybody else's answer, undisturbed. A connection on which a call failed or
ran out of time is closed, so that a late reply has nowhere to go.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextvars import Context
from typing import Any, NamedTuple, cast

from redis.asyncio.connection import Connection, parse_url
from redis.exceptions import NoScriptError

from headgate.core.check import Charge, Check, Client, Group, Result
from headgate.core.clock import Clock
from headgate.core.decision import Decision, States, single
from headgate.core.reservation import Claim, Expired
from headgate.errors import IdempotencyConflict, StoreError, StoreUnavailable
from headgate.stores.observer import StoreObserver
from headgate.stores.protocol import AsyncSingle
from headgate.stores.redis import reservations, script
from headgate.stores.redis.options import FAULTS, fault, read_url

Results = list[Result | IdempotencyConflict]


class _Waiting(NamedTuple):
    """Groups that wait for a call to take them along; or a command, which is a call of its own."""

    groups: Sequence[Group]
    command: script.Command | None
    answer: asyncio.Future[Results]
    deadline: float  # on the event loop's clock


class AsyncRedisStore:
    """Keeps state in Redis or Valkey, for the tasks of one event loop.

    `clock` is for tests: given one, its time is sent along instead of using the server's. `observer` is told of
    every call.
    """

    def __init__(self, url: str, *, clock: Clock | None = None, observer: StoreObserver | None = None) -> None:
        self._options, kind, self._arguments = read_url(url)
        self._connection_class: Any = parse_url(url).get("connection_class", Connection) if kind else Connection
        self._clock = clock
        self._observer = observer
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[_Waiting] = deque()
        self._woken = False  # whether _depart is about to run
        self._deadline = 0.0
        self._calls: set[asyncio.Task[None]] = set()
        self._nobody = Context()  # of calls that leave when another has returned: it is not that one's callers'
        self._idle: list[Any] = []
        self._closed = False

    async def check(self, groups: Sequence[Group]) -> Results:
        size = self._options.max_batch
        if len(groups) <= size:
            return await self._join(groups)
        results: Results = []
        for start in range(0, len(groups), size):  # one after the other: none may overtake the one before
            results += await self._join(groups[start : start + size])
        return results

    def single(self, template: Check, states: States | None = None) -> AsyncSingle:
        """The short way: nothing to plan, and the decision as soon as the answer is there."""
        rule, space, _, quota, *_ = template
        templates, join = (template,), self._join

        async def check(subject: str, cost: int) -> Decision:
            (result,) = await join((Group((Check(rule, space, subject, quota, cost),)),))
            now_us, (outcome,), _ = cast("Result", result)
            return single(templates, outcome, now_us, cost, states, subject)

        return check

    async def refund(self, charges: Sequence[Charge]) -> None:
        if charges:
            await self._join((), script.encode_refund(charges, self._now_us()))

    async def reset(self, checks: Sequence[Check], clients: Sequence[Client] = ()) -> None:
        if checks or clients:
            await self._join((), script.encode_reset(checks, clients))

    async def hold(self, reservation_id: str, record: str, ttl_us: int) -> None:
        await self._join((), reservations.encode_hold(reservation_id, record, ttl_us, self._now_us()))

    async def claim(self, reservation_id: str) -> Claim | None:
        reply: Any = await self._join((), reservations.encode_claim(reservation_id, self._now_us()))
        return reservations.decode_claim(reply)

    async def expire(self) -> Expired:
        reply: Any = await self._join((), reservations.encode_expire(self._now_us()))
        return reservations.decode_expire(reply)

    async def adjust(self, refunds: Sequence[Charge], surcharges: Sequence[Check] = ()) -> None:
        if refunds or surcharges:
            await self._join((), reservations.encode_adjust(refunds, surcharges, self._now_us()))

    async def close(self) -> None:
        self._closed = True
        while self._waiting:
            answer = self._waiting.popleft().answer
            if not answer.done():
                answer.set_exception(StoreUnavailable("the store was closed"))
        if self._calls:
            await asyncio.wait(self._calls)
        await self._disconnect_idle()

    async def _disconnect_idle(self) -> None:
        while self._idle:
            await self._idle.pop().disconnect()

    def _join(self, groups: Sequence[Group], command: script.Command | None = None) -> asyncio.Future[Results]:
        """Have groups decided, or a command executed, by the next call."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._enter(loop)
        if self._closed:
            raise StoreUnavailable("the store was closed")
        answer: asyncio.Future[Results] = loop.create_future()
        if not self._woken:
            self._woken = True
            self._deadline = loop.time() + self._options.timeout  # of all that join in this tick
            loop.call_soon(self._depart)
        self._waiting.append(_Waiting(groups, command, answer, self._deadline))
        return answer

    def _enter(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is not None and not self._loop.is_closed():
            raise RuntimeError("this store belongs to another event loop: make one for each loop")
        self._loop = loop
        self._idle.clear()  # connections of a loop that is gone
        self._waiting.clear()
        self._calls.clear()
        self._woken = False

    def _depart(self) -> None:
        """Send off what is waiting, as far as calls are free."""
        self._woken = False
        while self._waiting and len(self._calls) < self._options.max_in_flight:
            batch = self._batch()
            if batch:
                assert self._loop is not None
                call = self._loop.create_task(self._call(batch))
                self._calls.add(call)
                call.add_done_callback(self._returned, context=self._nobody)

    def _batch(self) -> list[_Waiting]:
        """Those who go with the next call; not those who were cancelled meanwhile, or whose time is up."""
        assert self._loop is not None
        now = self._loop.time()
        batch: list[_Waiting] = []
        count = 0
        while self._waiting:
            waiting = self._waiting[0]
            count += len(waiting.groups)
            if count > self._options.max_batch or (waiting.command is not None and batch):
                break
            self._waiting.popleft()
            if waiting.deadline <= now:
                self._expire(waiting.answer)
            elif not waiting.answer.done():
                batch.append(waiting)
                if waiting.command is not None:
                    break
        return batch

    def _expire(self, answer: asyncio.Future[Results]) -> None:
        if not answer.done():
            known = fault(TimeoutError(), self._options.timeout)
            answer.set_exception(known)
            if self._observer is not None:
                self._observer.failed(known, self._options.timeout, 1)

    def _returned(self, call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        if self._waiting and not self._woken:
            self._depart()

    async def _call(self, batch: list[_Waiting]) -> None:
        """One call, and its answers to those who wait for them."""
        groups = [group for waiting in batch for group in waiting.groups]
        command, deadline = batch[0].command, batch[-1].deadline
        observer = self._observer
        assert self._loop is not None
        began = 0.0 if observer is None else self._loop.time()
        for waiting in batch:
            if waiting.deadline < deadline:  # it joined in an earlier tick, while all calls were under way
                self._loop.call_at(waiting.deadline, self._expire, waiting.answer)
        try:
            if command is None:
                reply = await self._run(script.encode(groups, self._now_us()), deadline)
                results = script.decode(groups, reply)
            else:
                results = await self._run(command, deadline)  # whatever it replies
        except BaseException as error:
            known = error if isinstance(error, StoreError) else StoreUnavailable("the call to Redis broke off")
            for waiting in batch:
                if not waiting.answer.done():
                    waiting.answer.set_exception(known)
            if observer is not None:
                observer.failed(known, self._loop.time() - began, len(groups))
            if known is not error:
                raise
            return
        if observer is not None:
            observer.called(self._loop.time() - began, len(groups))
        at = 0
        for waiting in batch:
            count = len(waiting.groups)
            if not waiting.answer.done():
                waiting.answer.set_result(results[at : at + count] if command is None else results)
            at += count

    def _now_us(self) -> int | None:
        return None if self._clock is None else self._clock.now_us()

    async def _run(self, command: script.Command, deadline: float) -> Any:
        connection = await self._take()
        try:
            async with asyncio.timeout_at(deadline):
                await connection.send_packed_command([script.packed(command)], check_health=False)
                try:
                    reply = await connection.read_response(disable_decoding=True)
                except NoScriptError:  # the server does not know the script yet, or no more: nothing was executed
                    await connection.send_packed_command([script.packed(script.whole(command))], check_health=False)
                    reply = await connection.read_response(disable_decoding=True)
        except FAULTS as error:
            await connection.disconnect(nowait=True)
            known = fault(error, self._options.timeout)
            if isinstance(known, StoreUnavailable):
                await self._disconnect_idle()  # they may well be as dead as this one was
            raise known from error
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        self._idle.append(connection)
        return reply

    async def _take(self) -> Any:
        while self._idle:
            connection = self._idle.pop()
            if not connection._reader.at_eof():
                return connection
            await connection.disconnect(nowait=True)  # the server has closed it
        return self._connection_class(**self._arguments, socket_timeout=None)
