"""What middleware does with a request before the app sees it: who is asking, the check, and the wait of rules with
action `throttle`. For servers and frameworks that tell nothing of a client that leaves."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from typing import Any, TypeVar, Unpack

from headgate.core.decision import Decision, turned_away
from headgate.http.gate import Facts, Gate, Options, Patience
from headgate.http.headers import Charged
from headgate.http.identity import stated
from headgate.http.limits import Limits
from headgate.http.request import Request
from headgate.limiter.aio import AsyncLimiter
from headgate.limiter.sync import Limiter

T = TypeVar("T")


class Entrance:
    """Of a synchronous server. A request that is held back occupies its thread."""

    def __init__(self, limiter: Limiter, **options: Unpack[Options]) -> None:
        self.limiter = limiter
        self.gate = Gate(limiter, **options)

    def facts(self, request: Request) -> Facts:
        """What is checked of a request."""
        gate = self.gate
        if gate.identify is None:
            client = gate.identity.facts(request, self.limiter.snapshot)
        else:
            client = stated(gate.identify(request))
        return gate.facts(request, client)

    def enter(self, request: Request, outer: Limits[Limiter] | None = None) -> tuple[Limits[Limiter], bool]:
        """Check a request, and hold it back as its rules want it: its limits, and whether it may pass.

        `outer` are the limits that a middleware further out has made for it.
        """
        facts = self.facts(request)
        cost: Any = self.gate.cost(request) if callable(self.gate.cost) else self.gate.cost
        decision = self.limiter.check_facts(facts, cost=cost)
        if not decision.allowed or decision.hold:
            decision = self._hold(decision, facts, cost)
        limits = Limits(self.limiter, facts) if outer is None else outer
        limits.charged.append(Charged(decision, cost))
        return limits, decision.allowed

    def _hold(self, decision: Decision, facts: Facts, cost: int) -> Decision:
        """Hold a request back as its rules want it. Returns what is decided in the end."""
        gate, clock = self.gate, self.limiter.clock
        patience = Patience(clock)
        while (seconds := patience.seconds(decision)) is not None and not gate.full:
            with gate.place():
                clock.sleep(seconds)
            decision = self.limiter.check_facts(facts, cost=cost)
        if decision.hold:
            if gate.full:
                return turned_away(decision)
            with gate.place():
                clock.sleep(decision.hold)
        return decision


class AsyncEntrance:
    """`Entrance` for asyncio. A request whose task is cancelled gives its place up."""

    def __init__(self, limiter: AsyncLimiter, **options: Unpack[Options]) -> None:
        self.limiter = limiter
        self.gate = Gate(limiter, **options)

    async def facts(self, request: Request) -> Facts:
        """See `Entrance.facts`."""
        gate = self.gate
        if gate.identify is None:
            client = await gate.identity.facts_async(request, self.limiter.snapshot)
        else:
            client = stated(await _awaited(gate.identify(request)))
        return gate.facts(request, client)

    async def enter(
        self, request: Request, outer: Limits[AsyncLimiter] | None = None
    ) -> tuple[Limits[AsyncLimiter], bool]:
        """See `Entrance.enter`."""
        facts = await self.facts(request)
        cost = await _awaited(self.gate.cost(request)) if callable(self.gate.cost) else self.gate.cost
        decision = await self.limiter.check_facts(facts, cost=cost)
        if not decision.allowed or decision.hold:
            decision = await self._hold(decision, facts, cost)
        limits = Limits(self.limiter, facts) if outer is None else outer
        limits.charged.append(Charged(decision, cost))
        return limits, decision.allowed

    async def _hold(self, decision: Decision, facts: Facts, cost: int) -> Decision:
        gate, clock = self.gate, self.limiter.clock
        patience = Patience(clock)
        while (seconds := patience.seconds(decision)) is not None and not gate.full:
            with gate.place():
                await clock.sleep_async(seconds)
            decision = await self.limiter.check_facts(facts, cost=cost)
        if decision.hold:
            if gate.full:
                return turned_away(decision)
            with gate.place():
                await clock.sleep_async(decision.hold)
        return decision


async def _awaited(value: T | Awaitable[T]) -> T:
    return await value if inspect.isawaitable(value) else value
