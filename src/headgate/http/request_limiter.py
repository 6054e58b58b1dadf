"""Limits a request before the app sees it: identifies the client, checks the rules, and waits for rules with action
`throttle`."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable
from typing import Any, Protocol, TypeVar, Unpack

from headgate.core.clock import Clock
from headgate.core.cost import Cost
from headgate.core.decision import Decision
from headgate.core.decision_factory import refuse_delayed
from headgate.errors import InvalidRule
from headgate.http.limits import Limits
from headgate.http.middleware_options import Facts, MiddlewareArguments, MiddlewareOptions, Patience
from headgate.http.request import Request
from headgate.limiter.async_limiter import AsyncLimiter
from headgate.limiter.limiter import Limiter
from headgate.rules.plan import EXEMPT

T = TypeVar("T")
L = TypeVar("L", Limiter, AsyncLimiter)

CheckedRequest = tuple[Facts, Cost, Decision]  # facts, cost and decision


class Waiter(Protocol):
    """Makes a request wait, and notices when its client leaves."""

    def may_wait(self, seconds: float) -> bool:
        """Return whether the request may wait this long."""
        ...

    def sleep(self, seconds: float) -> bool:
        """Wait, and return whether the client is still connected."""
        ...


class AsyncWaiter(Protocol):
    """`Waiter` for asyncio."""

    def may_wait(self, seconds: float) -> bool: ...

    async def sleep(self, seconds: float) -> bool: ...


def limiter_of(limiter: object, kind: type[L]) -> L:
    """Return the limiter if it is of this kind. Raises `InvalidRule` if not."""
    if not isinstance(limiter, kind):
        article = "an" if kind is AsyncLimiter else "a"
        shown = type(limiter).__name__ if isinstance(limiter, Limiter | AsyncLimiter) else repr(limiter)
        raise InvalidRule(f"limiter: must be {article} {kind.__name__}, got {shown}")
    return limiter


class RequestLimiter:
    """Limits the requests of a synchronous server. A delayed request occupies its thread."""

    def __init__(self, limiter: Limiter, **options: Unpack[MiddlewareArguments]) -> None:
        self.limiter = limiter_of(limiter, Limiter)
        self.options = MiddlewareOptions(limiter, **options)

    def facts(self, request: Request) -> Facts:
        """Return the facts to check for a request."""
        options, snapshot = self.options, self.limiter.snapshot
        if options.identify is None:
            return options.find_facts(request, snapshot)
        return options.complete_facts(request, options.facts_stated(options.identify(request)), snapshot)

    def check(self, request: Request) -> CheckedRequest:
        """Check a request."""
        facts, exempt_when = self.facts(request), self.options.exempt_when
        if exempt_when is not None and exempt_when(request):
            return facts, 1, Decision.of(True, self.limiter.clock.now_us(), EXEMPT)
        cost: Any = self.options.cost(request) if callable(self.options.cost) else self.options.cost
        return facts, cost, self.limiter.decide(facts, cost=cost, slots="take")

    def limits(self, facts: Facts) -> Limits[Limiter]:
        """Return the limits of a request that nothing further out has checked."""
        return Limits(self.limiter, facts, self.options.headers)

    def hold(self, checked: CheckedRequest, waiter: Waiter) -> Decision | None:
        """Delay a request as its rules require, and return the final decision; None if the client has left."""
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
                    return refuse_delayed(decision)
                try:
                    stays = waiter.sleep(decision.hold)
                except BaseException:  # the server interrupts its thread
                    self.limiter.give_back(decision)
                    raise
                if not stays:
                    self.limiter.give_back(decision)
                    return None
        return decision

    def enter(self, request: Request, outer: Limits[Limiter] | None = None) -> tuple[Limits[Limiter], bool]:
        """Check and delay a request, for servers that do not notice when a client leaves. Return its limits, and
        whether it is allowed.

        `outer` are the limits that an outer middleware created for the request.
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
    """Limits the requests of an asyncio server. A cancelled task frees its waiting place."""

    def __init__(self, limiter: AsyncLimiter, **options: Unpack[MiddlewareArguments]) -> None:
        self.limiter = limiter_of(limiter, AsyncLimiter)
        self.options = MiddlewareOptions(limiter, **options)
        self._waits = self.options.waits or callable(self.options.cost) or self.options.exempt_when is not None

    async def facts(self, request: Request) -> Facts:
        """Return the facts to check for a request."""
        options = self.options
        if options.identify is None:
            client = await options.identity.facts_async(request, self.limiter.snapshot)
        else:
            client = options.facts_stated(await resolve(options.identify(request)))
        return options.complete_facts(request, client, self.limiter.snapshot)

    def check(self, request: Request) -> CheckedRequest | Awaitable[CheckedRequest]:
        """Check a request. Returns the result itself if nothing has to be awaited, as with the memory store."""
        if self._waits:
            return self._check_later(request)
        options, limiter = self.options, self.limiter
        cost: Any = options.cost
        facts = options.find_facts(request, limiter.holder.current)
        decision = limiter.decide(facts, cost=cost, slots="take")
        if type(decision) is Decision:
            return facts, cost, decision
        return _await_decision(facts, cost, decision)  # type: ignore[arg-type]

    async def _check_later(self, request: Request) -> CheckedRequest:
        """Check a request whose facts, cost or exemption may be awaitable."""
        facts, option, exempt_when = await self.facts(request), self.options.cost, self.options.exempt_when
        if exempt_when is not None and await resolve(exempt_when(request)):
            return facts, 1, Decision.of(True, self.limiter.clock.now_us(), EXEMPT)
        cost: Any = await resolve(option(request)) if callable(option) else option
        return facts, cost, await resolve(self.limiter.decide(facts, cost=cost, slots="take"))

    def limits(self, facts: Facts) -> Limits[AsyncLimiter]:
        """Return the limits of a request that nothing further out has checked."""
        return Limits(self.limiter, facts, self.options.headers)

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
                    return refuse_delayed(decision)
                try:
                    stays = await waiter.sleep(decision.hold)
                except BaseException:  # cancelled, or the client's connection failed
                    await asyncio.shield(self.limiter.give_back(decision))  # anyio cancels this, too
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
    """Waits without a deadline, for servers that cannot notice a client that leaves."""

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
    """Return a value, awaited if it is awaitable."""
    return await value if inspect.isawaitable(value) else value
