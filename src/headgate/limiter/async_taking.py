"""Settling with a store that has no claims: take a reservation out, and then adjust its limits."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from headgate.core.cost import Cost
from headgate.core.reservation import Claim, ClaimedAdjustments, ExpiredClaims, Status
from headgate.stores.protocol import AsyncReservingStore


class AsyncTakingStore:
    """What `AsyncSettlingStore` has, over the methods of `AsyncReservingStore`.

    If it is interrupted after it has taken a reservation out, the estimate stays charged.
    """

    def __init__(self, store: AsyncReservingStore) -> None:
        self._store = store

    async def claim_reservation(self, reservation_id: str, cost: Cost) -> Claim | None:
        claim = await self._store.take_reservation(reservation_id)
        return None if claim is None else claim._replace(reservation_id=reservation_id, cost=cost)

    async def claim_expired(self) -> ExpiredClaims:
        records, next_us = await self._store.expire()
        return ExpiredClaims([Claim(record, Status.EXPIRING) for record in records], next_us)

    async def settle(self, settled: Sequence[ClaimedAdjustments]) -> Sequence[Sequence[int]]:
        refunds = [charge for _, adjustments in settled for charge in adjustments.refunds]
        surcharges = [check for _, adjustments in settled for check in adjustments.surcharges]
        refunded = await self._store.adjust(refunds, surcharges)
        if refunded is None:  # unknown: assume that all was refunded
            refunded = [charge.check.cost for charge in refunds]
        units = iter(refunded)
        return [list(islice(units, len(adjustments.refunds))) for _, adjustments in settled]
