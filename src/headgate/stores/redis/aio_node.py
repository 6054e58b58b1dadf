"""One server, for asyncio: what is asked of it in one tick of the event loop travels together, as one call.

The first leaves at the end of the tick that it was asked in. While `max_in_flight` calls are under way, others
gather; each call takes up to `max_batch` of them. Connections belong to the calls, not to the callers: a caller
that is cancelled leaves its call, and everybody else's answer, undisturbed. A connection on which a call failed or
ran out of time is closed, so that a late reply has nowhere to go.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextvars import Context
from functools import lru_cache
from typing import Any, Final, NamedTuple

import redis.asyncio.connection as connections
from redis.exceptions import (
    AskError,
    BusyLoadingError,
    ClusterDownError,
    NoScriptError,
    RedisError,
    TryAgainError,
)

from headgate.core.check import Group, Result
from headgate.errors import IdempotencyConflict, StoreError, StoreUnavailable
from headgate.stores.observer import StoreObserver
from headgate.stores.redis import script
from headgate.stores.redis.faults import FAULTS, fault
from headgate.stores.redis.node import Parcel, breaker_of, left_alone, tell
from headgate.stores.redis.options import Options, Way
from headgate.stores.redis.slots import slot_of_key

Results = list[Result | IdempotencyConflict]

GATHER_SECONDS: Final = 0.002  # for which a few wait for others, at most, while a call is under way
ENOUGH: Final = 32  # waiting are not a few
APART_SECONDS: Final = 1.0  # for which each slot goes by itself, after a server did not have one


class Route(NamedTuple):
    """On a cluster: the slot of what is asked, and how."""

    slot: int
    asking: bool = False  # the server is about to take the slot over
    alone: bool = False  # not to be in one command with others


@lru_cache(maxsize=8_192)
def route_of(key: str) -> Route:
    """That of a key."""
    return Route(slot_of_key(key))


class _Waiting(NamedTuple):
    """Groups that wait for a call to take them along; or a command."""

    groups: Sequence[Group]
    command: script.Command | None
    answer: asyncio.Future[Any]
    deadline: float  # on the event loop's clock
    route: Route | None = None
    size: int = 0  # groups that the command decides


class _Batch(NamedTuple):
    """Those who go with one call."""

    waiting: list[_Waiting]
    size: int  # groups
    deadline: float  # the latest of theirs
    hurried: bool  # somebody's is earlier
    plain: bool  # groups that go together as one command


class _Load(NamedTuple):
    """Those who go together, as one command."""

    waiting: list[_Waiting]
    mixed: bool = False  # they are of several slots

    @property
    def groups(self) -> list[Group]:
        return [group for one in self.waiting for group in one.groups]

    def parcel(self, now_us: int | None) -> Parcel:
        first = self.waiting[0]
        if first.command is not None:
            return Parcel(first.command, bool(first.route and first.route.asking))
        if self.mixed:
            return Parcel(script.encode_mixed(self.groups, now_us))
        return Parcel(script.encode(self.groups, now_us), bool(first.route and first.route.asking))


class AsyncNode:
    """A server, for the tasks of one event loop. `now_us` is the time to send along, or None: the server's own.

    `gathers`: there are other servers. Each wakes some callers when it answers, who would then go off to all of them in
    ever smaller groups; so a few who come while a call is under way wait for it to return, for a moment.
    """

    def __init__(
        self,
        way: Way,
        options: Options,
        observer: StoreObserver | None,
        now_us: Callable[[], int | None],
        *,
        gathers: bool = False,
    ) -> None:
        self.name = way.name
        self.host: str = way.arguments.get("host", "localhost")
        self.breaker = breaker_of(way.name, options, observer)
        self._options = options
        self._connection_class: Any = getattr(connections, "Connection" if way.kind is None else way.kind.__name__)
        self._arguments = way.arguments
        self._now_us = now_us
        self._observer = observer
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[_Waiting] = deque()
        self._woken = False  # whether _depart is about to run
        self._deadline = 0.0
        self._calls: set[asyncio.Task[None]] = set()
        self._nobody = Context()  # of calls that leave when another has returned: it is not that one's callers'
        self._idle: list[tuple[Any, float]] = []  # connections, and when each was last used
        self._gathers = gathers
        self._gathering: asyncio.TimerHandle | None = None
        self._apart_until = 0.0  # until then, each slot goes by itself
        self._closed = False

    def join(
        self,
        groups: Sequence[Group],
        command: script.Command | None = None,
        deadline: float | None = None,
        route: Route | None = None,
        size: int = 0,
    ) -> asyncio.Future[Any]:
        """Have groups decided, or a command executed, by the next call. On a cluster, all are of one slot.

        `size` is how many groups the command decides, if it does. Without a deadline, it is the usual time from now.
        Raises `StoreError`, or the answer does.
        """
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._enter(loop)
        if self._closed:
            raise StoreUnavailable("the store was closed", sent=False)
        if self.breaker.state != "closed" and not self.breaker.admits(loop.time()):
            raise left_alone(self.name)
        answer: asyncio.Future[Any] = loop.create_future()
        if not self._woken:
            self._woken = True
            self._deadline = loop.time() + self._options.timeout  # of all that join in this tick
            loop.call_soon(self._depart)
        self._waiting.append(_Waiting(groups, command, answer, deadline or self._deadline, route, size))
        return answer

    async def close(self) -> None:
        """Let calls under way end, and give back connections."""
        self._closed = True
        while self._waiting:
            answer = self._waiting.popleft().answer
            if not answer.done():
                answer.set_exception(StoreUnavailable("the store was closed", sent=False))
        if self._calls:
            await asyncio.wait(self._calls)
        while self._idle:
            await self._idle.pop()[0].disconnect()

    def _enter(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is not None and not self._loop.is_closed():
            raise RuntimeError("this store belongs to another event loop: make one for each loop")
        self._loop = loop
        self._idle.clear()  # connections of a loop that is gone
        self._waiting.clear()
        self._calls.clear()
        self._woken = False
        self._gathering = None

    def _depart(self, *, late: bool = False) -> None:
        """Send off what is waiting, as far as calls are free. A few wait until one returns, or they are `late`."""
        assert self._loop is not None
        self._woken = False
        if self._gathers and self._calls and len(self._waiting) < ENOUGH and not late:
            if self._gathering is None:
                self._gathering = self._loop.call_later(GATHER_SECONDS, self._gathered)
            return
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        while self._waiting and len(self._calls) < self._options.max_in_flight:
            batch = self._batch()
            if batch.waiting:
                call = self._loop.create_task(self._call(batch))
                self._calls.add(call)
                call.add_done_callback(self._returned, context=self._nobody)

    def _gathered(self) -> None:
        self._gathering = None
        self._depart(late=True)

    def _batch(self) -> _Batch:
        """Those who go with the next call; not those who were cancelled meanwhile, or whose time is up."""
        assert self._loop is not None
        now = self._loop.time()
        batch: list[_Waiting] = []
        count = size = 0
        latest, hurried, plain = 0.0, False, True
        while self._waiting:
            waiting = self._waiting[0]
            groups, command, answer, deadline, route, decided = waiting
            count += len(groups) or decided or 1
            if count > self._options.max_batch and batch:
                break
            self._waiting.popleft()
            if deadline <= now:
                self._expire(answer)
            elif not answer.done():
                batch.append(waiting)
                size += len(groups) or decided
                if command is not None or route is not None:
                    plain = False
                if deadline != latest:
                    hurried = hurried or latest != 0.0
                    latest = max(latest, deadline)
        return _Batch(batch, size, latest, hurried, plain)

    def _expire(self, answer: asyncio.Future[Any]) -> None:
        if not answer.done():
            known = fault(TimeoutError(), self._options.timeout)
            answer.set_exception(known)
            if self._observer is not None:
                self._observer.failed(known, self._options.timeout, 1)

    def _returned(self, call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        if self._waiting and not self._woken:
            self._depart()

    async def _call(self, batch: _Batch) -> None:
        """One call, and its answers to those who wait for them."""
        assert self._loop is not None
        began = self._loop.time()
        waiting, size, deadline, hurried, plain = batch
        if hurried:  # somebody joined in an earlier tick, while all calls were under way
            for one in waiting:
                if one.deadline < deadline - GATHER_SECONDS:  # others go by the same clock as the last
                    self._loop.call_at(one.deadline, self._expire, one.answer)
        loads = [_Load(waiting)] if plain else list(_loads(waiting, mix=began >= self._apart_until))
        try:
            now_us = self._now_us()
            replies = await self._run([load.parcel(now_us) for load in loads], deadline)
        except BaseException as error:
            known = error if isinstance(error, StoreError) else StoreUnavailable("the call to Redis broke off")
            now = self._loop.time()
            if isinstance(known.__cause__, BusyLoadingError):
                self.breaker.answered(now, now - began)  # redis-py takes it for a broken connection
            elif self.breaker.failed(now, now - began):
                await self._doubt(began)
            for one in waiting:
                if not one.answer.done():
                    one.answer.set_exception(known)
            if self._observer is not None:
                self._observer.failed(known, now - began, size)
            if known is not error:
                raise
            return
        now = self._loop.time()
        self.breaker.answered(now, now - began)
        if self._observer is not None:
            tell(self._observer, replies, now - began, size, self._options.timeout)
        for load, reply in zip(loads, replies, strict=True):
            self._hand_out(load, reply)

    def _hand_out(self, load: _Load, reply: Any) -> None:
        """The reply to one command, to those who wait for it."""
        waiting = load.waiting
        if isinstance(reply, Exception):
            self._refuse(load, reply)
            return
        if waiting[0].command is not None:
            if not waiting[0].answer.done():
                waiting[0].answer.set_result(reply)  # whatever it is
            return
        results = script.decode(load.groups, reply)
        some_elsewhere = load.mixed and script.ELSEWHERE in reply
        at = 0
        for one in waiting:
            count = len(one.groups)
            some, at = results[at : at + count], at + count
            if some_elsewhere and _is_elsewhere(some[0]):
                self._set_apart(one)
            elif not one.answer.done():
                one.answer.set_result(some)

    def _refuse(self, load: _Load, error: Exception) -> None:
        """An error instead of a reply. If it is about the slot that the command names, only those of that get it."""
        timeout = self._options.timeout
        first = load.waiting[0].route
        only_first = load.mixed and isinstance(error, AskError | TryAgainError | ClusterDownError)
        for one in load.waiting:
            if only_first and one.route != first:
                self._set_apart(one)
            elif not one.answer.done():
                one.answer.set_exception(fault(error, timeout))

    def _set_apart(self, one: _Waiting) -> None:
        """Nothing was executed of what somebody wants, who went with others: now it goes by itself.

        Slots are about to move, most likely; so do all others for a while.
        """
        assert self._loop is not None
        self._apart_until = self._loop.time() + APART_SECONDS
        if not one.answer.done():
            one.answer.set_exception(fault(TryAgainError("this key is elsewhere"), self._options.timeout))

    async def _run(self, parcels: list[Parcel], deadline: float) -> list[Any]:
        """The replies to parcels, which may be exceptions of redis-py. Raises `StoreError` when there is none."""
        connection = await self._take()
        sent = False
        try:
            async with asyncio.timeout_at(deadline):
                if connection._reader is None:
                    await connection.connect_check_health(check_health=False)
                sent = True
                replies = await _exchange(connection, parcels)
                unknown = [place for place, reply in enumerate(replies) if reply.__class__ is NoScriptError]
                if unknown:  # the server does not know the script yet, or no more: nothing was executed
                    again = [parcels[place] for place in unknown]
                    for place, reply in zip(unknown, await _exchange(connection, again, whole=True), strict=True):
                        replies[place] = reply
        except FAULTS as error:
            await connection.disconnect(nowait=True)
            raise fault(error, self._options.timeout, sent=sent) from error
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        if self._closed:
            await connection.disconnect(nowait=True)
        else:
            self._idle.append((connection, asyncio.get_running_loop().time()))
        return replies

    async def _doubt(self, began: float) -> None:
        """End idle connections that may well be as dead as one on which a call failed: not those used since then."""
        doubtful = [connection for connection, used in self._idle if used < began]
        self._idle = [(connection, used) for connection, used in self._idle if used >= began]
        for connection in doubtful:
            await connection.disconnect(nowait=True)

    async def _take(self) -> Any:
        while self._idle:
            connection, _ = self._idle.pop()
            if not connection._reader.at_eof():
                return connection
            await connection.disconnect(nowait=True)  # the server has closed it
        return self._connection_class(**self._arguments, socket_timeout=None)


def _loads(batch: list[_Waiting], *, mix: bool) -> Iterator[_Load]:
    """Who goes together: those of one slot; and with `mix` those of one quota, if nothing is special about them.

    Not those between whom a command of somebody's goes.
    """
    loads: dict[Route | int | None, list[_Waiting]] = {}
    for waiting in batch:
        groups, command, route = waiting.groups, waiting.command, waiting.route
        name: Route | int | None = route
        if command is not None or (route is not None and route.alone):
            yield from map(_load, loads.values())
            loads = {}
            yield _Load([waiting])
            continue
        if mix and len(groups) == 1 and route is not None and not route.asking:
            quota = script.mixable(groups[0])
            if quota is not None:
                name = id(quota)
        load = loads.get(name)
        if load is None:
            loads[name] = [waiting]
        else:
            load.append(waiting)
    yield from map(_load, loads.values())


def _load(waiting: list[_Waiting]) -> _Load:
    first = waiting[0].route
    return _Load(waiting, any(one.route is not first and one.route != first for one in waiting))


def _is_elsewhere(result: Result | IdempotencyConflict) -> bool:
    return isinstance(result, Result) and result.outcomes[0].wait_us == script.ELSEWHERE


async def _exchange(connection: Any, parcels: list[Parcel], *, whole: bool = False) -> list[Any]:
    """Send parcels, and read the reply to each; an error reply as the exception that it stands for."""
    await connection.send_packed_command([parcel.bytes(whole=whole) for parcel in parcels], check_health=False)
    replies = []
    for parcel in parcels:
        try:
            if parcel.asking:
                await connection.read_response(disable_decoding=True)
            replies.append(await connection.read_response(disable_decoding=True))
        except RedisError as error:
            if not connection.is_connected:  # it is no reply, but the end of the connection
                raise
            replies.append(error)
    return replies
