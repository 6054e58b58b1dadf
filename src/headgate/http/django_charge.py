"""One limit's charge of a Django request, and what it does to the response: fields, refunds and slots."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Final
from weakref import finalize

from asgiref.sync import async_to_sync
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest

from headgate.core.cost import Cost
from headgate.core.decision import Decision
from headgate.http.django_setup import AnyLimits, T, View, current
from headgate.http.headers import Charged
from headgate.http.limits import NAME
from headgate.http.middleware_options import MiddlewareOptions
from headgate.http.request_limiter import resolve
from headgate.http.route import TAKEN, Ask, RouteLimit, subject_of
from headgate.limiter.async_limiter import AsyncLimiter
from headgate.limiter.decorator import rule_name
from headgate.limiter.limiter import Limiter

_RELEASES: Final[set[asyncio.Task[None]]] = set()  # under way


class ViewCharge:
    """One view's limit on one request."""

    def __init__(self, limit: RouteLimit, request: HttpRequest, limits: AnyLimits, name: str, ask: Ask) -> None:
        self._request = request
        self._limits = limits
        self._outer = hasattr(request, NAME)  # whether the middleware, or a limit around this one, adds the headers
        request.headgate = limits
        self._limiter: Limiter | AsyncLimiter = limit.limiter(limits.limiter, name, ask.quota)  # type: ignore[type-var]
        self._subject = subject_of(limits, ask.key)
        self._cost = ask.cost
        self._deduct_when = limit.deduct_when

    @classmethod
    def prepare(cls, limit: RouteLimit, request: HttpRequest, view: View) -> ViewCharge | None:
        """Return the charge to make, or None if the limit does not apply to the request."""
        if not limit.applies(request.method):
            return None
        ask = Ask.of(limit, lambda function: _run_to_end(function(request)))
        if ask is None:
            return None
        limits = getattr(request, NAME, None) or current().limits(request)
        return cls._of(limit, request, limits, view, ask)

    @classmethod
    async def prepare_async(cls, limit: RouteLimit, request: HttpRequest, view: View) -> ViewCharge | None:
        if not limit.applies(request.method):
            return None
        ask = await Ask.of_async(limit, lambda function: resolve(function(request)))
        if ask is None:
            return None
        limits = getattr(request, NAME, None) or await current().limits_async(request)
        return cls._of(limit, request, limits, view, ask)

    @classmethod
    def _of(cls, limit: RouteLimit, request: HttpRequest, limits: AnyLimits, view: View, ask: Ask) -> ViewCharge | None:
        taken: list[str] = request.__dict__.setdefault(TAKEN, [])
        name = limit.name_for(_route(request, view), taken)
        if limits.is_exempt(limits.limiter):
            return None
        return cls(limit, request, limits, name, ask)

    def make(self) -> bool:
        """Charge the request, and return whether it is allowed."""
        return self.decide().allowed

    async def make_async(self) -> bool:
        if not isinstance(self._limiter, AsyncLimiter):  # under WSGI
            return (await asyncio.to_thread(self.decide)).allowed
        decision: Decision = await resolve(self._ask(self._limiter))
        self._add(decision)
        if self._limits.is_over:  # the client left while this view's thread worked
            await self._limits.release_async()
        if not decision.allowed:
            await self._limits.refuse_async()
        return decision.allowed

    def decide(self) -> Decision:
        if isinstance(self._limiter, AsyncLimiter):  # a sync view under ASGI: in a thread, while the event loop runs
            async_to_sync(self.make_async)()
            return self._limits.charged[-1].decision
        decision: Decision = self._ask(self._limiter)
        self._add(decision)
        if not decision.allowed:
            self._limits.refuse()
        return decision

    def _add(self, decision: Decision) -> None:
        self._limits.add(decision, self._cost, self._limiter)
        if self._deduct_when is not None and decision.allowed:
            self._limits.charge_only_when(self._deduct_when)

    def conclude(self, response: Any) -> Any:
        """Refund what the response says is not charged, unless the middleware does, and return the response."""
        if not self._outer and self._limits.conditions:
            if isinstance(self._limits.limiter, AsyncLimiter):
                async_to_sync(self._limits.conclude_async)(response)
            else:
                self._limits.conclude(response)
        return response

    async def conclude_async(self, response: Any) -> Any:
        if not self._outer and self._limits.conditions:
            if isinstance(self._limits.limiter, AsyncLimiter):
                await self._limits.conclude_async(response)
            else:
                await asyncio.to_thread(self._limits.conclude, response)
        return response

    def _ask(self, limiter: Limiter | AsyncLimiter) -> Any:
        """Return the decision or an awaitable for it. A request that is already refused is not charged."""
        if self._limits.refused:
            return limiter.peek(self._subject, cost=self._cost)
        return limiter.decide({"user": self._subject}, cost=self._cost, slots="take")

    def fail(self) -> None:
        """Release the request's slots after the view failed, if there is no middleware to do it."""
        if isinstance(self._limits.limiter, AsyncLimiter):
            async_to_sync(self.fail_async)()
        elif not self._outer:
            self._limits.release()

    async def fail_async(self) -> None:
        if self._outer:
            return
        if isinstance(self._limits.limiter, AsyncLimiter):
            await self._limits.release_async()
        else:
            await asyncio.to_thread(self._limits.release)

    def refuse(self) -> Any:
        return current().refuse(self._request, self._limits)

    def add_fields(self, response: Any) -> Any:
        """Return the response, with the limits' fields unless the middleware adds them."""
        if self._outer:
            return response
        return with_release(self._limits, self._request, with_fields(self._limits, response))


def _route(request: HttpRequest, view: View) -> str:
    """Return the route, as `/users/<int:id>/`; the view's name when no URL was resolved, as in a test."""
    match = request.resolver_match
    return rule_name(view) if match is None else f"/{match.route}"


def charge_from(options: MiddlewareOptions, charged: Charged, response: Any) -> Cost | None:
    """Remove the charge header from a response, and return the cost that it reports."""
    header = options.charge_header
    if header is None or header not in response.headers:
        return None
    value = response.headers[header]
    del response.headers[header]
    return options.reported_cost(charged, [value])


def with_fields(limits: AnyLimits, response: Any) -> Any:
    """Add the limits' fields to a response, and return it."""
    for name, value in limits.fields:
        response.headers[name] = value
    return response


def with_release(limits: AnyLimits, request: HttpRequest, response: Any) -> Any:
    """Make a response release the request's slots when it is closed: at its end, or when the client leaves.

    Django's ASGI handler does not close a response whose stream fails, or that it drops because the client has left:
    then the slots are released when the stream fails, or when the response is freed.
    """
    if not limits.slots:
        return response
    if not isinstance(request, ASGIRequest):
        response._resource_closers.append(limits.release)
        return response
    loop = _loop()
    release = partial(_release_soon, limits, loop)
    response._resource_closers.append(release if isinstance(limits.limiter, AsyncLimiter) else limits.release)
    finalize(response, _release_soon, limits, loop).atexit = False
    if response.streaming:
        released = _released_async if response.is_async else _released
        response.streaming_content = released(response.streaming_content, release)
    return response


def _loop() -> asyncio.AbstractEventLoop:
    """Return the event loop that handles the request, also from a sync view's thread."""
    return running_loop() or async_to_sync(_awaited_loop)()


async def _awaited_loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


def _release_soon(limits: AnyLimits, loop: asyncio.AbstractEventLoop) -> None:
    """Release slots, from any thread. Takes no lock, because the garbage collector may call it."""
    if limits.slots:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(_start, limits, loop)


def _start(limits: AnyLimits, loop: asyncio.AbstractEventLoop) -> None:
    is_async = isinstance(limits.limiter, AsyncLimiter)
    task = loop.create_task(limits.release_async() if is_async else asyncio.to_thread(limits.release))
    _RELEASES.add(task)  # the loop itself keeps only a weak reference
    task.add_done_callback(_RELEASES.discard)


def _released(content: Iterable[bytes], release: Callable[[], object]) -> Iterator[bytes]:
    """Yield the content of a stream, and release the request's slots if it fails."""
    try:
        yield from content
    except BaseException:
        release()
        raise


async def _released_async(content: AsyncIterator[bytes], release: Callable[[], object]) -> AsyncIterator[bytes]:
    """Async counterpart of `_released`."""
    try:
        async for chunk in content:
            yield chunk
    except BaseException:
        release()
        raise


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return this thread's running event loop, if any."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _run_to_end(value: T | Awaitable[T]) -> T:
    """Return what the app's function returned; if that is awaitable, run it to its end in this thread."""
    if not inspect.isawaitable(value):
        return value
    return async_to_sync(resolve)(value)
