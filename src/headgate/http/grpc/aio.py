"""Limits on calls to `grpc.aio` servers."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import aclosing
from contextvars import Context, copy_context
from functools import wraps
from typing import Any, TypeVar

import grpc

from headgate.http.grpc.call import (
    CURRENT,
    Behaviour,
    CallWaiter,
    GrpcRequest,
    GrpcResponse,
    Handler,
    behaviour_of,
    metadata_of,
    replace_behaviour,
    status_of,
)
from headgate.http.limits import Limits
from headgate.http.request_limiter import AsyncRequestLimiter, resolve
from headgate.http.route import Ask, RouteLimit, charge_async
from headgate.limiter.async_limiter import AsyncLimiter

T = TypeVar("T")


class AsyncCalls:
    """Limits calls with an `AsyncLimiter`."""

    def __init__(self, request_limiter: AsyncRequestLimiter) -> None:
        self._request_limiter = request_limiter
        self.options = request_limiter.options

    def limit_handler(self, handler: Handler, path: str) -> Handler:
        """Wrap a method's handler to handle only allowed calls. Call it in the task that handles the call.

        The wrapper has the handler's kind, by which grpc decides how to call it: a coroutine function, an async
        generator, or a function for threads.
        """
        behaviour = behaviour_of(handler)
        one = not handler.request_streaming

        async def enter(message: Any, context: Any) -> Any:
            """Check a call, and return the context for its handler. Aborts if the call is refused."""
            outer = CURRENT.get()
            limits = await self._admit(GrpcRequest(path, context, message if one else None), outer)
            CURRENT.set(limits)  # this call's only: it has its own task
            limited = LimitsContext(context, limits) if outer is None else context
            if not limits.charged[-1].decision.allowed:
                await _release(limited, context)
                await limited.abort(*status_of(limits))
            return limited

        if inspect.iscoroutinefunction(behaviour):

            @wraps(behaviour)
            async def call(message: Any, context: Any) -> Any:
                limited = await enter(message, context)
                try:
                    response = await behaviour(message, limited)
                except BaseException as error:
                    await _end(limited, context, error)
                    raise
                await _end(limited, context)
                return response

            return replace_behaviour(handler, call)

        if inspect.isasyncgenfunction(behaviour):

            @wraps(behaviour)
            async def stream(message: Any, context: Any) -> AsyncIterator[Any]:
                limited = await enter(message, context)
                try:
                    async with aclosing(behaviour(message, limited)) as responses:
                        async for response in responses:
                            yield response
                except BaseException as error:
                    await _end(limited, context, error)
                    raise
                await _end(limited, context)

            return replace_behaviour(handler, stream)

        return replace_behaviour(handler, self._in_thread(handler, behaviour, path))

    def _in_thread(self, handler: Handler, behaviour: Behaviour, path: str) -> Behaviour:
        """Wrap a handler that grpc runs in a thread. Awaitables run on the server's loop."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        one = not handler.request_streaming

        def run(work: Coroutine[Any, Any, T]) -> T:
            return asyncio.run_coroutine_threadsafe(work, loop).result()

        def enter(message: Any, context: Any) -> tuple[Any, Context]:
            """Check a call, and return the context for its handler and the context variables to run it with."""
            outer = CURRENT.get()
            request = GrpcRequest(path, context, message if one else None)
            limits = run(_during(task, self._admit(request, outer)))
            variables = copy_context()
            variables.run(CURRENT.set, limits)
            limited = ThreadLimitsContext(context, limits, run) if outer is None else context
            if not limits.charged[-1].decision.allowed:
                run(_release(limited, context))
                limited.abort(*status_of(limits))
            return limited, variables

        if not handler.response_streaming:

            @wraps(behaviour)
            def call(message: Any, context: Any) -> Any:
                limited, variables = enter(message, context)
                try:
                    response = variables.run(behaviour, message, limited)
                except BaseException as error:
                    run(_end(limited, context, error))
                    raise
                run(_end(limited, context))
                return response

            return call

        @wraps(behaviour)
        def stream(message: Any, context: Any) -> Iterator[Any]:  # grpc calls it on its loop, and runs it in a thread
            limited, variables = enter(message, context)
            try:
                responses = iter(variables.run(behaviour, message, limited))
                while (response := variables.run(next, responses, _END)) is not _END:
                    yield response
            except GeneratorExit as error:  # do not wait: this may be the loop's own thread
                asyncio.run_coroutine_threadsafe(_end(limited, context, error), loop)
                raise
            except BaseException as error:
                run(_end(limited, context, error))
                raise
            run(_end(limited, context))

        return stream

    async def _admit(self, request: GrpcRequest, outer: Limits[AsyncLimiter] | None) -> Limits[AsyncLimiter]:
        """Check a call, and return its limits with the decision last."""
        checked = await resolve(self._request_limiter.check(request))
        facts, cost, decision = checked
        if not decision.allowed or decision.hold:
            held = _AsyncWaiter(request.context, self._request_limiter.limiter.clock)
            standing = await self._request_limiter.hold(checked, held)
            decision = decision if standing is None else standing
        limits = self._request_limiter.limits(facts) if outer is None else outer
        limits.add(decision, cost, self._request_limiter.limiter)
        if not decision.allowed:
            await limits.refuse_async()
            return limits
        options = self._request_limiter.options
        if options.deduct_when is not None:
            limits.charge_only_when(options.deduct_when)
        if options.defaults is not None and not limits.is_exempt(self._request_limiter.limiter):
            try:
                await self._meet_defaults(options.defaults, limits, request)
            except BaseException:  # raised by the app's function, or the client has left
                await limits.release_async()
                raise
        return limits

    async def _meet_defaults(self, defaults: RouteLimit, limits: Limits[AsyncLimiter], request: GrpcRequest) -> None:
        """Charge a call to its client's default quota on its method."""
        ask = await Ask.of_async(defaults, lambda function: resolve(function(request)))
        if ask is not None:
            await charge_async(defaults, limits, self._request_limiter.limiter, request.path, ask)


class _AsyncWaiter(CallWaiter):
    """Makes a call wait. If its client leaves, grpc cancels the task."""

    async def sleep(self, seconds: float) -> bool:
        await self.clock.sleep_async(seconds)
        return True


class LimitsContext:
    """The context of a call, with the limits' metadata added to whatever the handler sets or aborts with.

    A method is awaitable if the context's method is.
    """

    def __init__(self, context: Any, limits: Limits[AsyncLimiter]) -> None:
        self._context = context
        self._limits = limits
        self._own: tuple[Any, ...] = ()
        self._code: grpc.StatusCode | None = None  # set by the handler: a thread's context cannot read it back
        self._details: str | None = None

    def set_code(self, code: grpc.StatusCode) -> None:
        self._context.set_code(code)
        self._code = code

    def set_details(self, details: str) -> None:
        self._context.set_details(details)
        self._details = details

    def set_trailing_metadata(self, trailing_metadata: Any) -> None:
        self._context.set_trailing_metadata(trailing_metadata)  # raises if it is not metadata
        self._own = tuple(trailing_metadata)

    def trailing_metadata(self) -> tuple[Any, ...]:
        return self._own

    def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> Any:
        return self._abort(code, details, tuple(trailing_metadata or ()) or self._own)

    async def _abort(self, code: grpc.StatusCode, details: str, own: tuple[Any, ...]) -> None:
        await self._limits.conclude_async(GrpcResponse(code, details, None))
        await self._context.abort(code, details, (*own, *metadata_of(self._limits)))

    def abort_with_status(self, status: grpc.Status) -> Any:
        return self.abort(status.code, status.details, status.trailing_metadata)

    async def release(self) -> None:
        """Release the call's slots."""
        await self._limits.release_async()

    async def end(self, error: BaseException | None) -> None:
        """Refund what `deduct_when` says is not charged, add the limits' trailing metadata, and release the slots."""
        try:
            if self._limits.conditions:
                await self._limits.conclude_async(GrpcResponse(self._code, self._details, error))
            self._context.set_trailing_metadata((*self._own, *metadata_of(self._limits)))
        finally:
            await self.release()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


class ThreadLimitsContext(LimitsContext):
    """`LimitsContext` for a handler in a thread. `run` runs a coroutine on the server's loop, and waits for it."""

    def __init__(self, context: Any, limits: Limits[AsyncLimiter], run: Callable[[Coroutine[Any, Any, None]], None]):
        super().__init__(context, limits)
        self._run = run

    def _abort(self, code: grpc.StatusCode, details: str, own: tuple[Any, ...]) -> Any:
        self._run(self._limits.conclude_async(GrpcResponse(code, details, None)))
        self._context.abort(code, details, (*own, *metadata_of(self._limits)))


_END = object()


async def _end(limited: Any, context: Any, error: BaseException | None = None) -> None:
    """End a call, unless an outer interceptor does."""
    if limited is not context:
        await limited.end(error)


async def _release(limited: Any, context: Any) -> None:
    """Release the call's slots, unless an outer interceptor does."""
    if limited is not context:
        await limited.release()


async def _during(task: asyncio.Task[Any] | None, work: Awaitable[T]) -> T:
    """Await `work`; cancel it when `task` ends first."""
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
