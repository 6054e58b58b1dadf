"""Functions that `@limiter.limit(...)` decorates."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, nullcontext
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, cast
from uuid import UUID

from headgate.core.quota import Quota
from headgate.errors import InvalidCheck, RateLimited

if TYPE_CHECKING:
    from headgate.limiter.async_limiter import AsyncLimiter
    from headgate.limiter.limiter import Limiter
    from headgate.limiter.slots import Slot

P = ParamSpec("P")
Returned = TypeVar("Returned")
AsyncReturned = TypeVar("AsyncReturned", bound=Coroutine[Any, Any, Any] | AsyncIterator[Any])
Subject = str | int | UUID


class SubjectOfCall(Protocol):
    """A function that maps a call's arguments, whatever they are, to the subject."""

    @property
    def __call__(self) -> Callable[..., Subject]: ...


# pyright infers the parameters of a lambda only if a callable with as many parameters is in this union
Key = str | Callable[[], Subject] | Callable[[Any], Subject] | Callable[[Any, Any], Subject] | SubjectOfCall


def limit_function(
    limiter: Limiter, function: Callable[P, Returned], key: Key | None, cost: int
) -> Callable[P, Returned]:
    """Return a function, sync or async, that `limiter` checks before each call. Slots are held while it runs.

    A generator, sync or async, runs from its first item until it ends or is closed: it is checked then, and a refusal
    is raised where the first item is asked for.
    """
    holds = has_slots(limiter)

    def acquire(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Slot:
        return limiter.acquire(subject_of(key, args, kwargs), cost=cost, renew=True)

    def enter(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        decision = limiter.check(subject_of(key, args, kwargs), cost=cost)
        if not decision.allowed:
            raise RateLimited(decision)

    async def enter_async(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if limiter.in_memory:
            enter(args, kwargs)
        else:  # in a thread, so that a slow store does not block the event loop
            await asyncio.to_thread(enter, args, kwargs)

    if needs_event_loop(function):
        return _run_async(function, enter_async, partial(_hold_by_thread, acquire) if holds else None)
    if inspect.isgeneratorfunction(function):

        @wraps(function)
        def limited_generator(*args: Any, **kwargs: Any) -> Any:
            if holds:
                with acquire(args, kwargs):
                    return (yield from function(*args, **kwargs))
            enter(args, kwargs)
            return (yield from function(*args, **kwargs))

        return cast("Callable[P, Returned]", limited_generator)

    @wraps(function)
    def limited(*args: P.args, **kwargs: P.kwargs) -> Returned:
        if holds:
            with acquire(args, kwargs):
                return function(*args, **kwargs)
        enter(args, kwargs)
        return function(*args, **kwargs)

    return limited


def limit_async_function(
    limiter: AsyncLimiter, function: Callable[P, AsyncReturned], key: Key | None, cost: int
) -> Callable[P, AsyncReturned]:
    """Return an async function or generator that `limiter` checks before each call. Slots are held while it runs.

    A generator is checked when its first item is asked for, and runs until it ends or is closed.
    """

    def acquire(args: tuple[Any, ...], kwargs: dict[str, Any]) -> AbstractAsyncContextManager[Any]:
        return limiter.acquire(subject_of(key, args, kwargs), cost=cost, renew=True)

    async def enter(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        decision = await limiter.check(subject_of(key, args, kwargs), cost=cost)
        if not decision.allowed:
            raise RateLimited(decision)

    return _run_async(function, enter, acquire if has_slots(limiter) else None)


def _run_async(
    function: Callable[P, Any],
    enter: Callable[[tuple[Any, ...], dict[str, Any]], Coroutine[Any, Any, None]],
    hold: Callable[[tuple[Any, ...], dict[str, Any]], AbstractAsyncContextManager[Any]] | None,
) -> Callable[P, Any]:
    """Return an async function or generator that runs while `hold` holds its slots, or, without it, after `enter`."""
    if inspect.isasyncgenfunction(function):

        @wraps(function)
        async def limited_generator(*args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[Any, Any]:
            if hold is None:
                await enter(args, kwargs)
            held = nullcontext() if hold is None else hold(args, kwargs)
            async with held, aclosing(function(*args, **kwargs)) as items:
                following = anext(items)
                while True:
                    try:
                        item = await following
                    except StopAsyncIteration:
                        return
                    try:
                        sent = yield item
                    except GeneratorExit:
                        raise
                    except BaseException as error:  # noqa: BLE001  (the generator may handle it, as in a context manager)
                        following = items.athrow(error)
                    else:
                        following = items.asend(sent)

        return limited_generator

    @wraps(function)
    async def limited(*args: P.args, **kwargs: P.kwargs) -> Any:
        if hold is not None:
            async with hold(args, kwargs):
                return await function(*args, **kwargs)
        await enter(args, kwargs)
        return await function(*args, **kwargs)

    return limited


@asynccontextmanager
async def _hold_by_thread(
    acquire: Callable[[tuple[Any, ...], dict[str, Any]], Slot], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> AsyncIterator[None]:
    """Hold a slot of a sync limiter, which threads acquire and release."""
    acquiring = asyncio.ensure_future(asyncio.to_thread(acquire, args, kwargs))
    try:
        slot = await asyncio.shield(acquiring)
    except asyncio.CancelledError:
        acquiring.add_done_callback(_release_late)
        raise
    try:
        yield
    finally:
        await asyncio.shield(asyncio.to_thread(slot.release))


def _release_late(acquiring: asyncio.Future[Slot]) -> None:
    """Release a slot whose caller was cancelled before it was acquired."""
    if not acquiring.cancelled() and acquiring.exception() is None:
        asyncio.get_running_loop().run_in_executor(None, acquiring.result().release)


def needs_event_loop(function: Callable[..., Any]) -> bool:
    """Return whether a function runs on an event loop: an async function, or an async generator."""
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def has_slots(limiter: Limiter | AsyncLimiter) -> bool:
    """Return whether the calls or requests that a limiter allows hold slots."""
    return any(rule.quota.ttl is not None for rule in limiter.snapshot.rules)


def rule_name(function: Callable[..., Any]) -> str:
    """Return the default name for counting a function's calls; for a partial, the name of its function."""
    while isinstance(function, partial):
        function = function.func
    try:
        return f"{function.__module__}.{function.__qualname__}"
    except AttributeError:
        raise InvalidCheck(f"limit(): {function!r} has no name to count by; pass one: limit(…, name='…')") from None


def subject_of(key: Key | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Subject:
    """Return the subject of a call: the result of `key` for its arguments, or a constant."""
    if key is None:
        return "*"
    return key(*args, **kwargs) if callable(key) else key


def quota_of(quota: str | Quota) -> str | Quota:
    """Return the quota of a decorator. Raises `InvalidCheck` if it is missing: `@limiter.limit` without brackets."""
    if isinstance(quota, str | Quota):
        return quota
    raise InvalidCheck(
        f"limit() takes a notation like '5/minute' or a Quota, got {quota!r}; write @limiter.limit('5/minute')"
    )
