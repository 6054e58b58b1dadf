"""The memory store for asyncio. Nothing in it waits."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.core.check import (
    Answer,
    Charge,
    Check,
    Client,
    Group,
)
from headgate.core.cost import Cost
from headgate.core.reservation import Claim, ClaimedAdjustments, ExpiredClaims, Record, ReservationAnswer
from headgate.stores.memory.store import MemoryStore
from headgate.stores.protocol import Counted, LedgerPage, Swap


class AsyncMemoryStore:
    """The async version of the memory store. It never waits: a decision takes microseconds."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store

    async def check(self, groups: Sequence[Group]) -> list[Answer]:
        return self.store.check(groups)

    async def refund(self, charges: Sequence[Charge]) -> None:
        self.store.refund(charges)

    async def save_reservation(self, reservation_id: str, record: str, ttl_us: int) -> None:
        self.store.save_reservation(reservation_id, record, ttl_us)

    def new_reservation_id(self, charge: Group) -> str | None:
        return self.store.new_reservation_id(charge)

    async def reserve(self, reservation_id: str, pending: Record, ttl_us: int) -> ReservationAnswer:
        return self.store.reserve(reservation_id, pending, ttl_us)

    async def renew(self, reservation_id: str, record: str, ttl_us: int) -> bool:
        return self.store.renew(reservation_id, record, ttl_us)

    async def claim_reservation(self, reservation_id: str, cost: Cost) -> Claim | None:
        return self.store.claim_reservation(reservation_id, cost)

    async def claim_expired(self) -> ExpiredClaims:
        return self.store.claim_expired()

    async def settle(self, settled: Sequence[ClaimedAdjustments]) -> list[list[int]]:
        return self.store.settle(settled)

    async def release_slots(self, held: Sequence[Check]) -> list[bool]:
        return self.store.release_slots(held)

    async def renew_slots(self, held: Sequence[Check]) -> list[bool]:
        return self.store.renew_slots(held)

    async def adjust(self, refunds: Sequence[Charge], surcharges: Sequence[Check] = ()) -> list[int]:
        return self.store.adjust(refunds, surcharges)

    async def reset(self, checks: Sequence[Check], clients: Sequence[Client] = ()) -> None:
        self.store.reset(checks, clients)

    async def clear_some(self, cursor: object = None) -> None:
        self.store.clear_some(cursor)

    async def counts(self, checks: Sequence[Check]) -> list[Counted | None]:
        return self.store.counts(checks)

    async def read(self, names: Sequence[str]) -> list[LedgerPage]:
        return self.store.read(names)

    async def swap(self, swaps: Sequence[Swap]) -> list[bool]:
        return self.store.swap(swaps)

    async def close(self) -> None:
        self.store.close()
