"""Functions that `@limiter.limit(...)` decorates."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
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
R = TypeVar("R")
Subject = str | int | UUID


class SubjectOfCall(Protocol):
    """A function that maps a call's arguments, whatever they are, to the subject."""

    @property
    def __call__(self) -> Callable[..., Subject]: ...


# pyright infers the parameters of a lambda only if a callable with as many parameters is in this union
Key = str | Callable[[], Subject] | Callable[[Any], Subject] | Callable[[Any, Any], Subject] | SubjectOfCall


def limit_function(limiter: Limiter, function: Callable[P, R], key: Key | None, cost: int) -> Callable[P, R]:
    """Return a function, sync or async, that `limiter` checks before each call. Slots are held while it runs."""
    holds = has_slots(limiter)

    def acquire(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Slot:
        return limiter.acquire(subject_of(key, args, kwargs), cost=cost, renew=True)

    def enter(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        decision = limiter.check(subject_of(key, args, kwargs), cost=cost)
        if not decision.allowed:
            raise RateLimited(decision)

    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def limited_async(*args: P.args, **kwargs: P.kwargs) -> Any:
            if holds:
                acquiring = asyncio.ensure_future(asyncio.to_thread(acquire, args, kwargs))
                try:
                    slot = await asyncio.shield(acquiring)
                except asyncio.CancelledError:
                    acquiring.add_done_callback(_release_late)
                    raise
                try:
                    return await function(*args, **kwargs)
                finally:
                    await asyncio.shield(asyncio.to_thread(slot.release))
            if limiter.in_memory:
                enter(args, kwargs)
            else:  # in a thread, so that a slow store does not block the event loop
                await asyncio.to_thread(enter, args, kwargs)
            return await function(*args, **kwargs)

        return cast("Callable[P, R]", limited_async)

    @wraps(function)
    def limited(*args: P.args, **kwargs: P.kwargs) -> R:
        if holds:
            with acquire(args, kwargs):
                return function(*args, **kwargs)
        enter(args, kwargs)
        return function(*args, **kwargs)

    return limited


def limit_async_function(
    limiter: AsyncLimiter, function: Callable[P, Coroutine[Any, Any, R]], key: Key | None, cost: int
) -> Callable[P, Coroutine[Any, Any, R]]:
    """Return an async function that `limiter` checks before each call. Slots are held while it runs."""
    holds = has_slots(limiter)

    @wraps(function)
    async def limited(*args: P.args, **kwargs: P.kwargs) -> R:
        if holds:
            async with limiter.acquire(subject_of(key, args, kwargs), cost=cost, renew=True):
                return await function(*args, **kwargs)
        decision = await limiter.check(subject_of(key, args, kwargs), cost=cost)
        if not decision.allowed:
            raise RateLimited(decision)
        return await function(*args, **kwargs)

    return limited


def _release_late(acquiring: asyncio.Future[Slot]) -> None:
    """Release a slot whose caller was cancelled before it was acquired."""
    if not acquiring.cancelled() and acquiring.exception() is None:
        asyncio.get_running_loop().run_in_executor(None, acquiring.result().release)


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
