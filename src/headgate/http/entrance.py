"""What middleware does with a request before the app sees it: who is asking, the check, and the wait of rules with
action `throttle`."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable
from typing import Any, Protocol, TypeVar, Unpack

from headgate.core.clock import Clock
from headgate.core.cost import Cost
from headgate.core.deciding import turned_away
from headgate.core.decision import Decision
from headgate.errors import InvalidRule
from headgate.http.gate import Facts, Gate, Options, Patience
from headgate.http.limits import Limits
from headgate.http.request import Request
from headgate.limiter.async_limiter import AsyncLimiter
from headgate.limiter.limiter import Limiter

T = TypeVar("T")
L = TypeVar("L", Limiter, AsyncLimiter)

Entering = tuple[Facts, Cost, Decision]  # a request that was checked: its facts, its cost, and what was decided


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


class Entrance:
    """Of a synchronous server. A request that is held back occupies its thread."""

    def __init__(self, limiter: Limiter, **options: Unpack[Options]) -> None:
        self.limiter = limiter_of(limiter, Limiter)
        self.gate = Gate(limiter, **options)

    def facts(self, request: Request) -> Facts:
        """What is checked of a request."""
        gate = self.gate
        if gate.identify is None:
            client = gate.identity.facts(request, self.limiter.snapshot)
        else:
            client = gate.stated(gate.identify(request))
        return gate.facts(request, client)

    def check(self, request: Request) -> Entering:
        """Check a request."""
        facts = self.facts(request)
        cost: Any = self.gate.cost(request) if callable(self.gate.cost) else self.gate.cost
        return facts, cost, self.limiter.decide(facts, cost=cost, slots="take")

    def hold(self, entering: Entering, waiter: Waiter) -> Decision | None:
        """Hold a request back as its rules want it. What is decided in the end; None: the client has gone."""
        facts, cost, decision = entering
        gate, patience = self.gate, Patience(self.limiter.clock)
        while (seconds := patience.seconds(decision)) is not None:
            with gate.place() as free:
                if not free or not waiter.may_wait(seconds):
                    return decision
                if not waiter.sleep(seconds):
                    return None
            patience.ask_again()
            decision = self.limiter.decide(facts, cost=cost, slots="take")
        if decision.hold:
            with gate.place() as free:
                if not free or not patience.bears(decision) or not waiter.may_wait(decision.hold):
                    self.limiter.give_back(decision)
                    return turned_away(decision)
                if not waiter.sleep(decision.hold):
                    self.limiter.give_back(decision)
                    return None
        return decision

    def enter(self, request: Request, outer: Limits[Limiter] | None = None) -> tuple[Limits[Limiter], bool]:
        """Both, where nobody can tell whether the client has gone: the limits, and whether the request may pass.

        `outer` are the limits that a middleware further out has made for it.
        """
        entering = self.check(request)
        facts, cost, decision = entering
        if not decision.allowed or decision.hold:
            standing = self.hold(entering, _Patient(self.limiter.clock))
            decision = decision if standing is None else standing
        limits = Limits(self.limiter, facts) if outer is None else outer
        limits.add(decision, cost, self.limiter)
        if not decision.allowed:
            limits.give_back()
        return limits, decision.allowed


class AsyncEntrance:
    """`Entrance` for asyncio. A request whose task is cancelled gives its place up."""

    def __init__(self, limiter: AsyncLimiter, **options: Unpack[Options]) -> None:
        self.limiter = limiter_of(limiter, AsyncLimiter)
        self.gate = Gate(limiter, **options)
        self._waits = self.gate.waits or callable(self.gate.cost)

    async def facts(self, request: Request) -> Facts:
        """See `Entrance.facts`."""
        gate = self.gate
        if gate.identify is None:
            client = await gate.identity.facts_async(request, self.limiter.snapshot)
        else:
            client = gate.stated(await awaited(gate.identify(request)))
        return gate.facts(request, client)

    def check(self, request: Request) -> Entering | Awaitable[Entering]:
        """Check a request. Where nothing has to be waited for, as in memory, the answer is there at once."""
        if self._waits:
            return self._check_later(request)
        gate, limiter = self.gate, self.limiter
        cost: Any = gate.cost
        facts = gate.known_client(request, limiter.holder.current)
        if not gate.by_subject:
            facts = gate.located(request, facts)
        decision = limiter.decide(facts, cost=cost, slots="take")
        return (facts, cost, decision) if isinstance(decision, Decision) else _entering(facts, cost, decision)

    async def _check_later(self, request: Request) -> Entering:
        """Check a request whose facts or cost may have to be awaited."""
        facts, option = await self.facts(request), self.gate.cost
        cost: Any = await awaited(option(request)) if callable(option) else option
        return facts, cost, await awaited(self.limiter.decide(facts, cost=cost, slots="take"))

    async def hold(self, entering: Entering, waiter: AsyncWaiter) -> Decision | None:
        """See `Entrance.hold`."""
        facts, cost, decision = entering
        gate, patience = self.gate, Patience(self.limiter.clock)
        while (seconds := patience.seconds(decision)) is not None:
            with gate.place() as free:
                if not free or not waiter.may_wait(seconds):
                    return decision
                if not await waiter.sleep(seconds):
                    return None
            patience.ask_again()
            decision = await awaited(self.limiter.decide(facts, cost=cost, slots="take"))
        if decision.hold:
            with gate.place() as free:
                if not free or not patience.bears(decision) or not waiter.may_wait(decision.hold):
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
        """See `Entrance.enter`."""
        entering = await awaited(self.check(request))
        facts, cost, decision = entering
        if not decision.allowed or decision.hold:
            standing = await self.hold(entering, _AsyncPatient(self.limiter.clock))
            decision = decision if standing is None else standing
        limits = Limits(self.limiter, facts) if outer is None else outer
        limits.add(decision, cost, self.limiter)
        if not decision.allowed:
            await limits.give_back_async()
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


async def _entering(facts: Facts, cost: Cost, decision: Awaitable[Decision]) -> Entering:
    return facts, cost, await decision


async def awaited(value: T | Awaitable[T]) -> T:
    """A value that may have to be awaited."""
    return await value if inspect.isawaitable(value) else value
