"""Calls to servers of asyncio."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import aclosing
from contextvars import Context, copy_context
from functools import wraps
from typing import Any, TypeVar

import grpc

from headgate.core.decision import Decision, turned_away
from headgate.http.gate import Facts, Gate, Patience
from headgate.http.grpc.answer import CURRENT, metadata_of, status_of
from headgate.http.grpc.handler import Behaviour, Handler, behaviour_of, replaced
from headgate.http.grpc.request import GrpcRequest
from headgate.http.headers import Charged
from headgate.http.limits import Limits
from headgate.limiter.aio import AsyncLimiter

T = TypeVar("T")


class AsyncCalls:
    """Limits calls by an `AsyncLimiter`."""

    def __init__(self, limiter: AsyncLimiter, gate: Gate) -> None:
        self._limiter = limiter
        self._gate = gate

    def limited(self, handler: Handler, path: str) -> Handler:
        """The handler of a method, that handles what is admitted. To be called in the task that handles the call.

        It is of the same kind as the one that is given, by which grpc knows how to call it: a coroutine function, an
        async generator, or a function for threads.
        """
        behaviour = behaviour_of(handler)
        one = not handler.request_streaming

        async def enter(message: Any, context: Any) -> Any:
            """The context for the handler, once the call is admitted."""
            outer = CURRENT.get()
            limits = await self._admit(GrpcRequest(path, context, message if one else None), outer)
            CURRENT.set(limits)  # the call's alone: it is handled in a task of its own
            told = ToldContext(context, limits) if outer is None else context
            if not limits.charged[-1].decision.allowed:
                await told.abort(*status_of(limits))
            return told

        if inspect.iscoroutinefunction(behaviour):

            @wraps(behaviour)
            async def call(message: Any, context: Any) -> Any:
                told = await enter(message, context)
                try:
                    return await behaviour(message, told)
                finally:
                    _tell(told, context)

            return replaced(handler, call)

        if inspect.isasyncgenfunction(behaviour):

            @wraps(behaviour)
            async def stream(message: Any, context: Any) -> AsyncIterator[Any]:
                told = await enter(message, context)
                try:
                    async with aclosing(behaviour(message, told)) as responses:
                        async for response in responses:
                            yield response
                finally:
                    _tell(told, context)

            return replaced(handler, stream)

        return replaced(handler, self._in_thread(handler, behaviour, path))

    def _in_thread(self, handler: Handler, behaviour: Behaviour, path: str) -> Behaviour:
        """The same for a handler that grpc runs in a thread. What is to be awaited is so on the server's loop."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        one = not handler.request_streaming

        def enter(message: Any, context: Any) -> tuple[Any, Context]:
            """The context for the handler, and variables to run it with: other calls use the thread's own."""
            outer = CURRENT.get()
            request = GrpcRequest(path, context, message if one else None)
            limits = asyncio.run_coroutine_threadsafe(_during(task, self._admit(request, outer)), loop).result()
            variables = copy_context()
            variables.run(CURRENT.set, limits)
            told = ToldContext(context, limits) if outer is None else context
            if not limits.charged[-1].decision.allowed:
                told.abort(*status_of(limits))
            return told, variables

        if not handler.response_streaming:

            @wraps(behaviour)
            def call(message: Any, context: Any) -> Any:
                told, variables = enter(message, context)
                try:
                    return variables.run(behaviour, message, told)
                finally:
                    _tell(told, context)

            return call

        @wraps(behaviour)
        def stream(message: Any, context: Any) -> Iterator[Any]:  # which grpc calls on its loop, and runs in a thread
            told, variables = enter(message, context)
            try:
                responses = iter(variables.run(behaviour, message, told))
                while (response := variables.run(next, responses, _END)) is not _END:
                    yield response
            finally:
                _tell(told, context)

        return stream

    async def _admit(self, request: GrpcRequest, outer: Limits[AsyncLimiter] | None) -> Limits[AsyncLimiter]:
        """Decide on a call. The decision is the last of those in what is returned."""
        gate = self._gate
        if gate.identify is None:
            client = await gate.identity.facts_async(request, self._limiter.snapshot)
        else:
            client = gate.stated(await _awaited(gate.identify(request)))
        facts = gate.facts(request, client)
        cost = await _awaited(gate.cost(request)) if callable(gate.cost) else gate.cost
        decision = await self._limiter.check_facts(facts, cost=cost)
        if not decision.allowed or decision.hold:
            decision = await self._hold(decision, request.context, facts, cost)
        limits = Limits(self._limiter, facts) if outer is None else outer
        limits.charged.append(Charged(decision, cost))
        return limits

    async def _hold(self, decision: Decision, context: Any, facts: Facts, cost: int) -> Decision:
        """Hold a call back as its rules want it, unless its client leaves: then grpc cancels the task.

        Returns what is decided in the end.
        """
        patience = Patience(self._limiter.clock)
        while (seconds := patience.seconds(decision)) is not None and self._may_wait(seconds, context):
            with self._gate.place():
                await self._limiter.clock.sleep_async(seconds)
            decision = await self._limiter.check_facts(facts, cost=cost)
        if decision.hold:
            if not self._may_wait(decision.hold, context):
                return turned_away(decision)
            with self._gate.place():
                await self._limiter.clock.sleep_async(decision.hold)
        return decision

    def _may_wait(self, seconds: float, context: Any) -> bool:
        """Whether there is a place to wait in, and the client's deadline is not before the end."""
        remaining = context.time_remaining()
        return not self._gate.full and (remaining is None or seconds < remaining)


class ToldContext:
    """The context of a call, with the limits' metadata added to whatever the handler sets or aborts with.

    For handlers of both kinds: what is to be awaited of the context is so of this.
    """

    def __init__(self, context: Any, limits: Limits[AsyncLimiter]) -> None:
        self._context = context
        self._limits = limits
        self._own: tuple[Any, ...] = ()

    def set_trailing_metadata(self, trailing_metadata: Any) -> None:
        self._context.set_trailing_metadata(trailing_metadata)  # which raises if it is none
        self._own = tuple(trailing_metadata)

    def trailing_metadata(self) -> tuple[Any, ...]:
        return self._own

    def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> Any:
        metadata = (*(tuple(trailing_metadata or ()) or self._own), *metadata_of(self._limits))
        return self._context.abort(code, details, metadata)

    def abort_with_status(self, status: grpc.Status) -> Any:
        return self.abort(status.code, status.details, status.trailing_metadata)

    def tell(self) -> None:
        """Add the metadata to the end of the call."""
        self._context.set_trailing_metadata((*self._own, *metadata_of(self._limits)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


_END = object()


def _tell(told: Any, context: Any) -> None:
    """Tell of the limits, unless an interceptor further out does."""
    if told is not context:
        told.tell()


async def _during(task: asyncio.Task[Any] | None, work: Awaitable[T]) -> T:
    """Await something, until another task is over."""
    own = asyncio.current_task()

    def leave(_: object) -> None:
        if own is not None:
            own.cancel()

    if task is None:
        return await work
    task.add_done_callback(leave)
    try:
        return await work
    finally:
        task.remove_done_callback(leave)


async def _awaited(value: T | Awaitable[T]) -> T:
    return await value if inspect.isawaitable(value) else value
