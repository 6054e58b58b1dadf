"""Stores that are not in this process, as far as a limiter can tell: their calls are counted, and may fail."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from headgate.core.check import Answer, Charge, Check, Client, Group
from headgate.core.cost import Cost
from headgate.core.decision import Decision
from headgate.core.plan import Plan
from headgate.core.reading import WarningStates
from headgate.core.reservation import Claim, ClaimedAdjustments, ExpiredClaims
from headgate.errors import StoreError, StoreTimeout
from headgate.stores.memory import MemoryStore
from headgate.stores.program import Program


class Remote:
    """Keeps its state in memory."""

    def __init__(self, memory: MemoryStore) -> None:
        self.memory = memory
        self.calls = 0
        self.error: StoreError | None = None
        self.loses = False  # whether it does what it is asked, and its answer never arrives

    def check(self, groups: Sequence[Group]) -> list[Answer]:
        self._called()
        answers = self.memory.check(groups)
        self._answered()
        return answers

    def refund(self, charges: Sequence[Charge]) -> None:
        self._called()
        self.memory.refund(charges)

    def adjust(self, refunds: Sequence[Charge], surcharges: Sequence[Check] = ()) -> None:
        self._called()
        self.memory.adjust(refunds, surcharges)

    def save_reservation(self, reservation_id: str, record: str, ttl_us: int) -> None:
        self.memory.save_reservation(reservation_id, record, ttl_us)

    def renew(self, reservation_id: str, record: str, ttl_us: int) -> bool:
        return self.memory.renew(reservation_id, record, ttl_us)

    def claim_reservation(self, reservation_id: str, cost: Cost) -> Claim | None:
        return self.memory.claim_reservation(reservation_id, cost)

    def claim_expired(self) -> ExpiredClaims:
        return self.memory.claim_expired()

    def settle(self, settled: Sequence[ClaimedAdjustments]) -> list[list[int]]:
        self._called()
        return self.memory.settle(settled)

    def reset(self, checks: Sequence[Check], clients: Sequence[Client] = ()) -> None:
        self._called()
        self.memory.reset(checks, clients)

    def close(self) -> None:
        pass

    def _called(self) -> None:
        self.calls += 1
        if self.error is not None:
            raise self.error

    def _answered(self) -> None:
        if self.loses:
            raise StoreTimeout("no answer")


class AsyncRemote:
    """The same, awaited."""

    def __init__(self, remote: Remote) -> None:
        self.remote = remote

    async def check(self, groups: Sequence[Group]) -> list[Answer]:
        await asyncio.sleep(0)
        return self.remote.check(groups)

    async def refund(self, charges: Sequence[Charge]) -> None:
        self.remote.refund(charges)

    async def adjust(self, refunds: Sequence[Charge], surcharges: Sequence[Check] = ()) -> None:
        self.remote.adjust(refunds, surcharges)

    async def save_reservation(self, reservation_id: str, record: str, ttl_us: int) -> None:
        self.remote.save_reservation(reservation_id, record, ttl_us)

    async def renew(self, reservation_id: str, record: str, ttl_us: int) -> bool:
        return self.remote.renew(reservation_id, record, ttl_us)

    async def claim_reservation(self, reservation_id: str, cost: Cost) -> Claim | None:
        return self.remote.claim_reservation(reservation_id, cost)

    async def claim_expired(self) -> ExpiredClaims:
        return self.remote.claim_expired()

    async def settle(self, settled: Sequence[ClaimedAdjustments]) -> list[list[int]]:
        return self.remote.settle(settled)

    async def reset(self, checks: Sequence[Check], clients: Sequence[Client] = ()) -> None:
        self.remote.reset(checks, clients)

    async def close(self) -> None:
        pass


class ShortRemote(Remote):
    """One that compiles plans, as Redis does."""

    def compile(self, plan: Plan, states: WarningStates | None = None, told: Plan | None = None) -> Program:
        program = self.memory.compile(plan, states, told)

        def check(*request: Any) -> Decision:
            self._called()
            decision = program(*request)
            self._answered()
            return decision

        return check


class AsyncShortRemote(AsyncRemote):
    """The same, awaited."""

    def compile(self, plan: Plan, states: WarningStates | None = None, told: Plan | None = None) -> Program:
        assert isinstance(self.remote, ShortRemote)
        program = self.remote.compile(plan, states, told)

        async def check(*request: Any) -> Decision:
            await asyncio.sleep(0)
            decision: Decision = program(*request)
            return decision

        return check
