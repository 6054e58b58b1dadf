"""Limits a request before the app sees it: identifies the client, checks, and waits where rules of action `throttle`
say so."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable
from typing import Any, Protocol, TypeVar, Unpack

from headgate.core.clock import Clock
from headgate.core.cost import Cost
from headgate.core.decision import Decision
from headgate.core.decision_factory import turned_away
from headgate.errors import InvalidRule
from headgate.http.limits import Limits
from headgate.http.middleware_options import Facts, MiddlewareArguments, MiddlewareOptions, Patience
from headgate.http.request import Request
from headgate.limiter.async_limiter import AsyncLimiter
from headgate.limiter.limiter import Limiter
from headgate.rules.plan import EXEMPT

T = TypeVar("T")
L = TypeVar("L", Limiter, AsyncLimiter)

CheckedRequest = tuple[Facts, Cost, Decision]  # a request that was checked: its facts, its cost, and what was decided


class Waiter(Protocol):
    """How a request waits where its client may leave meanwhile."""

    def may_wait(self, seconds: float) -> bool:
        """Whether it makes sense to wait so long."""
        ...

    def sleep(self, seconds: float) -> bool:
        """Wait; whether the client is still there."""
        ...


class AsyncWaiter(Protocol):
    """`Waiter` for asyncio."""

    def may_wait(self, seconds: float) -> bool: ...

    async def sleep(self, seconds: float) -> bool: ...


def limiter_of(limiter: object, kind: type[L]) -> L:
    """A limiter, if it is of this kind. Raises `InvalidRule`."""
    if not isinstance(limiter, kind):
        article = "an" if kind is AsyncLimiter else "a"
        raise InvalidRule(f"limiter: must be {article} {kind.__name__}, got {limiter!r}")
    return limiter


class RequestLimiter:
    """Limits the requests of a synchronous server. A request that is held back occupies its thread."""

    def __init__(self, limiter: Limiter, **options: Unpack[MiddlewareArguments]) -> None:
        self.limiter = limiter_of(limiter, Limiter)
        self.options = MiddlewareOptions(limiter, **options)

    def facts(self, request: Request) -> Facts:
        """What is checked of a request."""
        options = self.options
        if options.identify is None:
            client = options.identity.facts(request, self.limiter.snapshot)
        else:
            client = options.facts_stated(options.identify(request))
        return options.facts(request, client, self.limiter.snapshot)

    def check(self, request: Request) -> CheckedRequest:
        """Check a request."""
        facts, exempt_when = self.facts(request), self.options.exempt_when
        if exempt_when is not None and exempt_when(request):
            return facts, 1, Decision.of(True, self.limiter.clock.now_us(), EXEMPT)
        cost: Any = self.options.cost(request) if callable(self.options.cost) else self.options.cost
        return facts, cost, self.limiter.decide(facts, cost=cost, slots="take")

    def limits(self, facts: Facts) -> Limits[Limiter]:
        """The limits of a request that nothing further out has checked."""
        limits = Limits(self.limiter, facts)
        limits.style = self.options.headers
        return limits

    def hold(self, checked: CheckedRequest, waiter: Waiter) -> Decision | None:
        """Hold a request back as its rules want it. What is decided in the end; None: the client has gone."""
        facts, cost, decision = checked
        options, patience = self.options, Patience(self.limiter.clock)
        while (seconds := patience.seconds(decision)) is not None:
            with options.waiting_place() as free:
                if not free or not waiter.may_wait(seconds):
                    return decision
                if not waiter.sleep(seconds):
                    return None
            patience.ask_again()
            decision = self.limiter.decide(facts, cost=cost, slots="take")
        if decision.hold:
            with options.waiting_place() as free:
                if not free or not patience.is_in_time(decision) or not waiter.may_wait(decision.hold):
                    self.limiter.give_back(decision)
                    return turned_away(decision)
                if not waiter.sleep(decision.hold):
                    self.limiter.give_back(decision)
                    return None
        return decision

    def enter(self, request: Request, outer: Limits[Limiter] | None = None) -> tuple[Limits[Limiter], bool]:
        """Both, for servers that cannot tell whether the client has gone: the limits, and whether the request may pass.

        `outer` are the limits that a middleware further out has made for it.
        """
        checked = self.check(request)
        facts, cost, decision = checked
        if not decision.allowed or decision.hold:
            standing = self.hold(checked, _Patient(self.limiter.clock))
            decision = decision if standing is None else standing
        limits = self.limits(facts) if outer is None else outer
        limits.add(decision, cost, self.limiter)
        if not decision.allowed:
            limits.refuse()
        elif self.options.deduct_when is not None:
            limits.charge_only_when(self.options.deduct_when)
        return limits, decision.allowed


class AsyncRequestLimiter:
    """Limits the requests of an asyncio server. A request whose task is cancelled gives its place up."""

    def __init__(self, limiter: AsyncLimiter, **options: Unpack[MiddlewareArguments]) -> None:
        self.limiter = limiter_of(limiter, AsyncLimiter)
        self.options = MiddlewareOptions(limiter, **options)
        self._waits = self.options.waits or callable(self.options.cost) or self.options.exempt_when is not None

    async def facts(self, request: Request) -> Facts:
        """Return what is checked of a request."""
        options = self.options
        if options.identify is None:
            client = await options.identity.facts_async(request, self.limiter.snapshot)
        else:
            client = options.facts_stated(await resolve(options.identify(request)))
        return options.facts(request, client, self.limiter.snapshot)

    def check(self, request: Request) -> CheckedRequest | Awaitable[CheckedRequest]:
        """Check a request. Where nothing has to be waited for, as in memory, the answer is there at once."""
        if self._waits:
            return self._check_later(request)
        options, limiter = self.options, self.limiter
        cost: Any = options.cost
        snapshot = limiter.holder.current
        facts = options.client_facts(request, snapshot)
        if not options.by_subject:
            facts = options.with_endpoint(request, facts, snapshot)
        decision = limiter.decide(facts, cost=cost, slots="take")
        return (facts, cost, decision) if isinstance(decision, Decision) else _await_decision(facts, cost, decision)

    async def _check_later(self, request: Request) -> CheckedRequest:
        """Check a request whose facts or cost may have to be awaited."""
        facts, option, exempt_when = await self.facts(request), self.options.cost, self.options.exempt_when
        if exempt_when is not None and await resolve(exempt_when(request)):
            return facts, 1, Decision.of(True, self.limiter.clock.now_us(), EXEMPT)
        cost: Any = await resolve(option(request)) if callable(option) else option
        return facts, cost, await resolve(self.limiter.decide(facts, cost=cost, slots="take"))

    def limits(self, facts: Facts) -> Limits[AsyncLimiter]:
        """The limits of a request that nothing further out has checked."""
        limits = Limits(self.limiter, facts)
        limits.style = self.options.headers
        return limits

    async def hold(self, checked: CheckedRequest, waiter: AsyncWaiter) -> Decision | None:
        """Async counterpart of `RequestLimiter.hold`."""
        facts, cost, decision = checked
        options, patience = self.options, Patience(self.limiter.clock)
        while (seconds := patience.seconds(decision)) is not None:
            with options.waiting_place() as free:
                if not free or not waiter.may_wait(seconds):
                    return decision
                if not await waiter.sleep(seconds):
                    return None
            patience.ask_again()
            decision = await resolve(self.limiter.decide(facts, cost=cost, slots="take"))
        if decision.hold:
            with options.waiting_place() as free:
                if not free or not patience.is_in_time(decision) or not waiter.may_wait(decision.hold):
                    await self.limiter.give_back(decision)
                    return turned_away(decision)
                try:
                    stays = await waiter.sleep(decision.hold)
                except asyncio.CancelledError:
                    await asyncio.shield(self.limiter.give_back(decision))  # anyio would cancel this, too
                    raise
                if not stays:
                    await self.limiter.give_back(decision)
                    return None
        return decision

    async def enter(
        self, request: Request, outer: Limits[AsyncLimiter] | None = None
    ) -> tuple[Limits[AsyncLimiter], bool]:
        """Async counterpart of `RequestLimiter.enter`."""
        checked = await resolve(self.check(request))
        facts, cost, decision = checked
        if not decision.allowed or decision.hold:
            standing = await self.hold(checked, _AsyncPatient(self.limiter.clock))
            decision = decision if standing is None else standing
        limits = self.limits(facts) if outer is None else outer
        limits.add(decision, cost, self.limiter)
        if not decision.allowed:
            await limits.refuse_async()
        elif self.options.deduct_when is not None:
            limits.charge_only_when(self.options.deduct_when)
        return limits, decision.allowed


class _Patient:
    """Waits however long it takes, for a client that is always there."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def may_wait(self, seconds: float) -> bool:  # noqa: ARG002
        return True

    def sleep(self, seconds: float) -> bool:
        self._clock.sleep(seconds)
        return True


class _AsyncPatient(_Patient):
    async def sleep(self, seconds: float) -> bool:  # type: ignore[override]
        await self._clock.sleep_async(seconds)
        return True


async def _await_decision(facts: Facts, cost: Cost, decision: Awaitable[Decision]) -> CheckedRequest:
    return facts, cost, await decision


async def resolve(value: T | Awaitable[T]) -> T:
    """A value that may have to be awaited."""
    return await value if inspect.isawaitable(value) else value
