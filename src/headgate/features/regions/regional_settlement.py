"""Settle claimed reservations whose limits are in several regions. No I/O: it yields the calls to make."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headgate.core.check import Charge, Check
from headgate.core.reservation import Adjustments, ClaimedAdjustments
from headgate.features.regions.link import HERE, Steps, StoreCall
from headgate.features.regions.routed_group import call_all

Refund = Callable[[Sequence[Charge], str, Sequence[Check]], Steps[list[int] | None]]


def settle_by_region(
    settled: Sequence[ClaimedAdjustments], is_here: Callable[[Check], bool], refund: Refund
) -> Steps[list[list[int]]]:
    """Settle the records and this region's limits in one call, and then the limits of other regions.

    So a settlement that is cut off changes nothing twice, but may leave what another region charged.
    """
    refunded = [[charge.check.cost for charge in one.refunds] for _, one in settled]
    near: list[ClaimedAdjustments] = []
    near_places: list[tuple[int, int]] = []
    far: list[Charge] = []
    far_places: list[tuple[int, int]] = []
    more: list[Check] = []
    for number, (claim, (refunds, surcharges)) in enumerate(settled):
        own = [index for index, charge in enumerate(refunds) if is_here(charge.check)]
        near_places += ((number, index) for index in own)
        adjustments = Adjustments(tuple(refunds[index] for index in own), tuple(filter(is_here, surcharges)))
        near.append(ClaimedAdjustments(claim, adjustments))
        others = [index for index in range(len(refunds)) if index not in own]
        far_places += ((number, index) for index in others)
        far += (refunds[index] for index in others)
        more += (check for check in surcharges if not is_here(check))
    (answers,) = yield from call_all([StoreCall(HERE, "settle", (near,))])
    for (number, index), units in zip(near_places, (one for answer in answers for one in answer), strict=True):
        refunded[number][index] = units
    if far or more:
        back = yield from refund(far, "adjust", more)
        for (number, index), units in zip(far_places, back or (), strict=back is not None):
            refunded[number][index] = units
    return refunded
