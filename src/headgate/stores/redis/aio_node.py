"""One server, for asyncio: what is asked of it in one turn of the event loop travels together, as one call.

The first leaves at the end of the turn that it was asked in. While `max_in_flight` calls are under way, others
gather; each call takes up to `max_batch` of them. Connections belong to the calls, not to the callers: a caller that
is cancelled, or whose time is up, leaves its call and everybody else's answer undisturbed. A late reply is read, and
goes to nobody; but it tells that the server is alive. A call is no task: its replies are handed out as they come in.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from functools import partial
from math import inf
from typing import Any, Final

from redis.exceptions import NoScriptError
from redis.exceptions import TimeoutError as RedisTimeout

from headgate.core.check import Group, Result
from headgate.errors import IdempotencyConflict, StoreError, StoreTimeout, StoreUnavailable
from headgate.stores.breaker import GRACE_SECONDS, SILENCE
from headgate.stores.observer import StoreObserver
from headgate.stores.redis import script
from headgate.stores.redis.aio_connections import AsyncConnections
from headgate.stores.redis.aio_wire import AsyncWire, Done
from headgate.stores.redis.departures import GATHER_SECONDS, Departures
from headgate.stores.redis.faults import FAULTS, fault
from headgate.stores.redis.health import breaker_of, left_alone, replaced, tell
from headgate.stores.redis.loads import NO_SLOT, Batch, Load, Waiting, loads_of
from headgate.stores.redis.options import Options, Way
from headgate.stores.redis.parcel import Parcel
from headgate.stores.redis.template import FIGURES, CommandTemplate

Results = list[Result | IdempotencyConflict]
Figures = tuple[int, Sequence[int]]  # of one request: when it was decided, and of each limit what `Outcome` has

OWED: Final = 16_384  # checks that are to be charged though nobody waits for them


class _Call:
    """A batch on its way to the server and back."""

    __slots__ = ("began", "context", "expected", "loads", "parcels", "sent", "size", "until", "waiting", "wire")

    def __init__(
        self, batch: Batch, loads: list[Load], wire: AsyncWire, sent: float, began: float, expected: float
    ) -> None:
        self.waiting, self.size = batch.waiting, batch.size
        self.loads = loads
        self.parcels: list[Parcel] = []
        self.wire = wire
        self.sent, self.expected = sent, expected  # by the event loop's clock
        self.began = began  # by the process clock
        self.until = 0.0  # the same: nobody's time is up before
        self.context = Context()  # of the first who goes with it, for whoever traces calls

    def within(self, told: Callable[[_Call, list[Any] | Exception], None]) -> Done:
        """Tells `told` of what came of it, in its context."""
        run = self.context.run
        return lambda replies: run(told, self, replies)


class AsyncNode:
    """A server, for the tasks of one event loop. `now_us` is the time to send along, or None: the server's own.

    `departures` are those of all servers of the store.
    """

    def __init__(
        self,
        way: Way,
        options: Options,
        observer: StoreObserver | None,
        now_us: Callable[[], int | None],
        departures: Departures,
    ) -> None:
        self.name = way.name
        self.host: str = way.arguments.get("host", "localhost")
        self.breaker = breaker_of(way.name, options, observer)
        self._options = options
        self._now_us = now_us
        self._observer = observer
        self._loop: asyncio.AbstractEventLoop | None = None
        self.waiting: deque[Waiting] = deque()
        self.owed: deque[Waiting] = deque(maxlen=OWED)  # nobody waits for these: they are to be charged all the same
        self.calls: set[_Call] = set()  # under way
        self.held_since = 0.0  # see departures
        self._departures = departures
        self._first = Context()  # of the first who is waiting
        self._usual = 0.0  # seconds that the last call took
        self._connections = AsyncConnections(way, options.patience, self._opened)
        self._ended: asyncio.Event | None = None  # set when no call is under way, for those who close
        self._enough_until = 0.0  # until then, no more connections are opened beside those in use
        self._due = 0.0  # nobody's time is up before, by the process clock
        self.is_closed = False

    def join(
        self,
        groups: Sequence[Group],
        command: script.Command | None = None,
        deadline: float | None = None,
        slot: int = NO_SLOT,
        size: int = 0,
        *,
        asking: bool = False,
        alone: bool = False,
    ) -> asyncio.Future[Any]:
        """Have groups decided, or a command executed, by the next call. On a cluster, all are of one slot.

        `size` is how many groups the command decides, if it does. Without a deadline, it is the usual time from now.
        Raises `StoreError`, or the answer does.
        """
        answer = self._queue()
        since, until = self._departures.since, deadline or self._departures.deadline
        self._due = min(self._due, until)
        self.waiting.append(Waiting(groups, command, answer, until, since, slot, size, asking=asking, alone=alone))
        return answer

    def check(
        self, template: CommandTemplate, keys: tuple[str, ...], costs: tuple[int, ...], slot: int = NO_SLOT
    ) -> asyncio.Future[Figures]:
        """Have a request decided by the next call, with all others that have its template. Raises `StoreError`."""
        answer = self._queue()
        departures = self._departures
        until, since = departures.deadline, departures.since
        self.waiting.append(Waiting((), None, answer, until, since, slot, 1, template, keys, costs))
        return answer

    def _queue(self) -> asyncio.Future[Any]:
        """Return a future for the reply to what is about to be appended. Raises `StoreError`."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._enter(loop)
        if self.is_closed:
            raise StoreUnavailable("the store was closed", sent=False)
        departures = self._departures
        if self.breaker.state != "closed" and not self._may_wait(departures.now()):
            raise left_alone(self.name, self.breaker.why)
        if not departures.woken:
            departures.wake(loop.time())
        if not self.waiting:
            departures.waited_for[self] = None
            self._first = copy_context()
            if self not in departures.attended:
                departures.attend(self)
        return loop.create_future()

    def _may_wait(self, now: float) -> bool:
        """Begin a probe if one is due. Return whether callers may wait for its answer."""
        if self.breaker.begin_probe(now):
            self._connections.open(now)
            self._departures.attend(self)
        return self.breaker.may_wait(now)

    async def close(self) -> None:
        """Let calls under way end, and give back connections. Who waits, or comes now, is refused."""
        self.is_closed = True
        self._departures.waited_for.pop(self, None)
        self._refuse_waiting(StoreUnavailable("the store was closed", sent=False))
        if self._loop is not asyncio.get_running_loop():
            return
        self._leave_late()
        if self.calls:
            self._ended = self._ended or asyncio.Event()
            await self._ended.wait()
        await self._connections.close()

    def retire(self) -> None:
        """Refuse those who have not been sent yet: another server is the master now."""
        self.owed.clear()
        self._departures.waited_for.pop(self, None)
        self._refuse_waiting(replaced(self.name))

    def reopen(self) -> None:
        """Once it was closed: whoever comes is served again, in whatever event loop."""
        self.is_closed = False
        if not self.calls:  # else, whoever was closing it was cancelled
            self._loop = None

    def _enter(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is not None and not self._loop.is_closed():
            raise RuntimeError("this store belongs to another event loop: make one for each loop")
        self._loop = loop
        self._connections.forget()  # those of a loop that is gone
        self.waiting.clear()
        self.owed.clear()
        self.calls.clear()
        self._ended = None
        self._departures.enter(loop)

    def depart(self) -> None:
        """Send off what is waiting, as far as calls are free."""
        assert self._loop is not None
        self.held_since = 0.0
        context, at, now = self._first, self._loop.time(), self._departures.now()
        free = self._options.max_in_flight
        while (self.waiting or self.owed) and len(self.calls) < free and self.breaker.state == "closed":
            wire = self._connections.take()
            if wire is None:
                if not self.calls or at >= self._enough_until:
                    self.breaker.ask(now)
                    self._connections.open(now)
                break
            batch = self._batch(now)
            if batch.waiting:
                self._leave(batch, wire, at, now, context)
            else:
                self._connections.give_back(wire)
            context = Context()  # who is first of the next has asked in another
        if self.waiting or self.owed:
            self._first = context
        else:
            self._departures.waited_for.pop(self, None)

    def _batch(self, now: float) -> Batch:
        """Those who go with the next call; not those who were cancelled meanwhile, or whose time is up."""
        batch: list[Waiting] = []
        count = size = 0
        first = (self.waiting or self.owed)[0]
        shared = first.template if first.slot == NO_SLOT else None  # of all, if they go as one command
        while self.waiting:
            waiting = self.waiting[0]
            groups, _, answer, deadline, _, _, decided, template, _, _, _, _ = waiting
            count += len(groups) or decided or 1
            if count > self._options.max_batch and batch:
                break
            self.waiting.popleft()
            if deadline <= now:
                self._expire(waiting, sent=False)
            elif not answer.done():
                batch.append(waiting)
                size += len(groups) or decided
                if template is not shared:
                    shared = None
        while self.owed and count < self._options.max_batch:
            owed = self.owed.popleft()
            if now < owed.deadline + GRACE_SECONDS:  # later, it would be charged to another time
                batch.append(owed)
                count += len(owed.groups) or owed.size
                size += len(owed.groups) or owed.size
                if owed.template is not shared:
                    shared = None
        return Batch(batch, size, shared)

    # Time

    def tick(self, now: float) -> bool:
        """Look after those whose time is up. Return whether anything is left to look after."""
        if now >= self._due:
            self._due = inf
            self._listen(now)
            self._expire_waiting(now)
            for call in tuple(self.calls):
                self._expire_call(call, now)
            self._connections.tick(now)
            if self.is_closed:
                self._leave_late()
            self._due = min(self._due, now + self._options.timeout)  # of whoever comes from now on
        return bool(self.waiting or self.calls or self._connections.opening_since is not None)

    def _listen(self, now: float) -> None:
        """Open the breaker if nothing was heard for the whole timeout, while something was under way."""
        timeout, since = self._options.timeout, self._connections.opening_since
        under_way = [call.began for call in self.calls]
        if since is not None:
            under_way.append(since)
        if under_way and self.breaker.state == "closed" and self.breaker.is_silent(now, min(under_way), timeout):
            self.breaker.open(now, str(fault(TimeoutError(), timeout)))
            self._connections.doubt(min((call.sent for call in self.calls), default=inf))
            self._may_wait(now)

    def _expire_waiting(self, now: float) -> None:
        """Refuse those in the queue whose time is up; all, if there is no probe that they may wait for."""
        if self.breaker.state != "closed":
            if not self._may_wait(now):
                self._turn_away()
            self._due = now  # this may change any time
        if any(one.deadline <= now for one in self.waiting):
            late = [one for one in self.waiting if one.deadline <= now]
            self.waiting = deque(one for one in self.waiting if one.deadline > now)
            for one in late:
                self._expire(one, sent=False)
        if self.waiting:
            self._due = min(self._due, *(one.deadline for one in self.waiting))

    def _extend_waiting(self, now: float) -> None:
        """Have the time of those in the queue begin now: nothing of theirs was under way without a connection."""
        until = now + self._options.timeout
        self.waiting = deque(one._replace(deadline=max(one.deadline, until), since=now) for one in self.waiting)

    def _expire_call(self, call: _Call, now: float) -> None:
        """Refuse those of a call whose time is up. The call goes on: a late reply is a sign of life."""
        for one in call.waiting:
            if not one.answer.done():
                until = max(one.deadline + call.began - one.since, call.until)  # the queue has a time of its own
                if until <= now:
                    self._expire(one)
                else:
                    self._due = min(self._due, until)
        end = call.began + self._options.patience
        if now >= end:
            call.wire.close()
            self._refuse_all(call, fault(TimeoutError(), self._options.timeout))
            self._end(call)
        else:
            self._due = min(self._due, end)
            silent = call.began + SILENCE * self._options.timeout
            if silent > now:
                self._due = min(self._due, silent)

    def _expire(self, one: Waiting, *, sent: bool = True) -> None:
        if not one.answer.done():
            known = fault(TimeoutError(), self._options.timeout)
            if not sent and isinstance(known, StoreTimeout) and (one.groups or one.size):
                known.charge_later = partial(self._owe, one)
            one.answer.set_exception(known)
            if self._observer is not None:
                self._observer.failed(known, self._options.timeout, len(one.groups) or one.size)

    def _owe(self, one: Waiting) -> None:
        """Have a check charged whose caller does not wait any more, with the next call that has room for it."""
        if self._loop is not None and one not in self.owed:
            self.owed.append(one)
            self._departures.waited_for[self] = None
            if not self._departures.woken:
                self._departures.wake(self._loop.time())

    def _leave_late(self) -> None:
        """End calls that nobody waits for any more."""
        for call in tuple(self.calls):
            if all(one.answer.done() for one in call.waiting):
                call.wire.close()
                self._end(call)

    def _turn_away(self) -> None:
        self._refuse_waiting(left_alone(self.name, self.breaker.why))

    def _refuse_waiting(self, error: StoreError) -> None:
        now = self._departures.now()
        while self.waiting:
            one = self.waiting.popleft()
            if not one.answer.done():
                one.answer.set_exception(error)
                if self._observer is not None and not self.is_closed:
                    waited = now - (one.deadline - self._options.timeout)
                    self._observer.failed(error, max(0.0, waited), len(one.groups) or one.size)

    # Calls

    def _leave(self, batch: Batch, wire: AsyncWire, at: float, now: float, context: Context) -> None:
        """Send a batch off."""
        loads = loads_of(batch)
        call = _Call(batch, loads, wire, at, now, at + self._usual + GATHER_SECONDS)
        call.context = context
        self.calls.add(call)
        self._departures.calls.add(call)
        self.breaker.ask(now)
        try:
            now_us = self._now_us()
            call.parcels = [load.parcel(now_us, self._options.prefix) for load in call.loads]
            commands, count = _packed(call.parcels)
            wire.ask(commands, count, call.within(self._arrived))
        except BaseException as error:
            self._failed(call, error)
            raise

    def _opened(self, error: Exception | None) -> None:
        """There is one more connection, or why there is not."""
        assert self._loop is not None
        departures, at = self._departures, self._loop.time()
        now = departures.now()
        if error is None:
            if not self.calls:
                self._extend_waiting(now)
            self.breaker.hear(now)
            if self.breaker.state != "closed":
                self.breaker.close(now)
                for call in tuple(self.calls):  # what was asked before, and is not answered yet, never will be
                    if now - call.began >= self._options.timeout:
                        call.wire.close()
                        self._failed(call, RedisTimeout("the connection fell silent"))
        else:
            known = fault(error, self._options.timeout, sent=False)
            self._note_failure(now, inf, at, known)
            self._enough_until = at + self._options.probe_every
            if self.breaker.state == "closed":
                if not self.calls:
                    self._refuse_waiting(known)
            elif not self._may_wait(now):
                self._turn_away()
        if self.waiting or self.owed:
            departures.wake(at)

    def _note_failure(self, now: float, began: float, sent: float, known: StoreError) -> None:
        """Tell the breaker; if it is news, doubt other connections as well."""
        if self.breaker.fail(now, began, str(known)):
            self._connections.doubt(sent)

    def _arrived(self, call: _Call, replies: list[Any] | Exception) -> None:
        """What the server has replied; or why it has not."""
        if isinstance(replies, Exception):
            self._failed(call, replies)
            return
        replies = _without_asking(call.parcels, replies)
        if NoScriptError in map(type, replies):  # it does not know a script yet, or no more: nothing was executed
            now = self._departures.now()
            self.breaker.hear(now)
            call.until = now + self._options.timeout  # loading it has a time of its own
            again = [parcel for parcel, reply in zip(call.parcels, replies, strict=True) if _is_unknown(reply)]
            commands, count = _packed(again, whole=True)
            done = call.within(partial(self._arrived_again, before=replies, again=again))
            call.wire.ask(commands, count, done)
            return
        self._answered(call, replies)

    def _arrived_again(
        self, call: _Call, replies: list[Any] | Exception, *, before: list[Any], again: list[Parcel]
    ) -> None:
        """The replies to those parcels that went once more, with the whole text of the script."""
        if isinstance(replies, Exception):
            self._failed(call, replies)
            return
        late = iter(_without_asking(again, replies))
        self._answered(call, [next(late) if _is_unknown(reply) else reply for reply in before])

    def _answered(self, call: _Call, replies: list[Any]) -> None:
        wire = call.wire
        if self.is_closed:
            wire.close()
        else:
            self._connections.give_back(wire)
        self._usual = seconds = wire.used - call.sent
        self.breaker.hear(self._departures.now())
        if self._observer is not None:
            tell(self._observer, replies, seconds, call.size, self._options.timeout)
        try:
            for load, reply in zip(call.loads, replies, strict=True):
                self._hand_out(load, reply)
        except (LookupError, TypeError, ValueError) as error:  # a reply that makes no sense
            wire.close()
            self._refuse_all(call, fault(error, self._options.timeout))
        self._end(call)
        self._departures.wake(wire.used)

    def _failed(self, call: _Call, error: BaseException) -> None:
        """There is no reply, and the connection is closed."""
        assert self._loop is not None
        at, now = self._loop.time(), self._departures.now()
        if isinstance(error, FAULTS):
            known = fault(error, self._options.timeout)
        else:
            known = StoreUnavailable("the call to Redis broke off")
        self._note_failure(now, call.began, call.sent, known)
        if self._observer is not None and not all(one.answer.done() for one in call.waiting):
            self._observer.failed(known, at - call.sent, call.size)
        self._refuse_all(call, known)
        self._end(call)
        if self.breaker.state != "closed" and not self._may_wait(now):
            self._turn_away()
        if self._departures.waited_for:
            self._departures.wake(at)

    def _refuse_all(self, call: _Call, error: StoreError) -> None:
        for one in call.waiting:
            if not one.answer.done():
                one.answer.set_exception(error)

    def _end(self, call: _Call) -> None:
        self.calls.discard(call)
        self._departures.calls.discard(call)
        if self._ended is not None and not self.calls:
            self._ended.set()

    def _hand_out(self, load: Load, reply: Any) -> None:
        """The reply to one command, to those who wait for it."""
        waiting = load.waiting
        if isinstance(reply, Exception):
            self._refuse(load, reply)
            return
        if waiting[0].command is not None:
            if not waiting[0].answer.done():
                waiting[0].answer.set_result(reply)  # whatever it is
            return
        if load.template is not None:
            self._hand_out_figures(load, load.template, reply)
            return
        results = script.decode(load.groups, reply)
        at = 0
        for one in waiting:
            some, at = results[at : at + len(one.groups)], at + len(one.groups)
            if not one.answer.done():
                one.answer.set_result(some)

    def _hand_out_figures(self, load: Load, template: CommandTemplate, reply: list[int]) -> None:
        """The reply to requests that have a template."""
        now_us, step = reply[0], FIGURES * template.size
        if len(reply) != 1 + step * len(load.waiting):
            raise ValueError(f"expected {step} figures for each of {len(load.waiting)} requests, got {len(reply) - 1}")
        at = 1
        for one in load.waiting:
            if not one.answer.done():
                one.answer.set_result((now_us, reply[at : at + step]))
            at += step

    def _refuse(self, load: Load, error: Exception) -> None:
        """Give those who wait an error instead of a reply."""
        for one in load.waiting:
            if not one.answer.done():
                one.answer.set_exception(fault(error, self._options.timeout))


def _packed(parcels: list[Parcel], *, whole: bool = False) -> tuple[bytes, int]:
    """Parcels as they go over the wire, and how many replies there will be."""
    if len(parcels) == 1:
        return parcels[0].bytes(whole=whole), 1 + parcels[0].asking
    return b"".join(parcel.bytes(whole=whole) for parcel in parcels), sum(1 + parcel.asking for parcel in parcels)


def _without_asking(parcels: list[Parcel], replies: list[Any]) -> list[Any]:
    """The replies to parcels, without those that only say that they may be asked."""
    if len(replies) == len(parcels):
        return replies
    rest = iter(replies)
    return [next(rest) if not parcel.asking else (next(rest), next(rest))[1] for parcel in parcels]


def _is_unknown(reply: Any) -> bool:
    return isinstance(reply, NoScriptError)
