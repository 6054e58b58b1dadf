"""ReservingContract: the contract of a store with reservations, in addition to the `StoreContract`.

from headgate.testing import FakeClock, ReservingContract

class TestReservationsOfMyStore(ReservingContract):
    def make_store(self, clock: FakeClock) -> MyStore:
        return MyStore(clock=clock)
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from uuid import uuid4

from headgate.core.check import Charge, Check, Outcome
from headgate.core.cost import Cost
from headgate.core.quota import BUCKETS
from headgate.core.reservation import LATE_US, PENDING_US, Adjustments, Claim, ClaimedAdjustments, Status
from headgate.stores.protocol import AsyncReservingStore, ReservingStore
from headgate.testing.blocking import blocking
from headgate.testing.contract import HOSTILE, LIMIT, SECOND, THREADS, WINDOW, Contract, same


class ReservingContract(Contract):
    """Inherit, and override `make_store`. Tests remove expired reservations from the store if they need to."""

    @cached_property
    def store(self) -> ReservingStore:
        made = self.make_store(self.clock)
        assert isinstance(made, ReservingStore | AsyncReservingStore), (
            "it lacks save_reservation, renew, claim_reservation, claim_expired, settle or adjust"
        )
        store = blocking(made)
        assert isinstance(store, ReservingStore)
        return store

    # Records

    def test_a_reservation_is_claimed_once(self) -> None:
        name = self._name()
        same(self._claim(name), None, "a claim of what was never held")
        self.store.save_reservation(name, "what was charged", SECOND)
        same(self._claim(name, 3), Claim("what was charged", Status.OPEN, name, 3), "the first claim")
        same(self._claim(name, 2), None, "the second claim")

    def test_of_many_who_claim_one_gets_it(self) -> None:
        for _ in range(20):
            name = self._name()
            self.store.save_reservation(name, "record", SECOND)
            with ThreadPoolExecutor(THREADS) as threads:
                claims = list(threads.map(self._claim, [name] * THREADS))
            same(sum(claim is not None for claim in claims), 1, f"claims that succeeded, of {THREADS} threads")

    def test_a_record_is_given_back_as_it_was(self) -> None:
        for text in HOSTILE:
            record = text.encode("utf-8", "replace").decode()
            name = self._name()
            self.store.save_reservation(name, record, SECOND)
            same(self._claim(name), Claim(record, Status.OPEN, name, 0), f"the record of {record[:40]!r}")

    def test_a_reservation_expires_at_its_time_and_not_before(self) -> None:
        self._empty()
        name = self._name()
        self.store.save_reservation(name, "record", 10 * SECOND)
        self._advance(10 * SECOND - 1)
        same(self._expire(), ([], 1), "what expired, 1 µs before its time")
        self._advance(1)
        same(self._expire(), (["record"], None), "what expired at its time")
        same(self._expire(), ([], None), "what expired afterwards")

    def test_a_reservation_that_is_open_can_be_renewed(self) -> None:
        self._empty()
        name = self._name()
        same(self.store.renew(name, "record", SECOND), False, "whether what was never held was renewed")
        same(self._claim(name), None, "a claim of what was never held")
        self.store.save_reservation(name, "first", SECOND)
        self._advance(SECOND)  # it has expired, but is not claimed
        same(self.store.renew(name, "second", 10 * SECOND), True, "whether what was held was renewed")
        same(self._expire(), ([], 10 * SECOND), "what expired, and when the next does")
        self._advance(10 * SECOND)
        (claim,), _ = self.store.claim_expired()
        same(claim.record, "second", "what expired at its new time")
        same(self.store.renew(name, "third", SECOND), False, "whether what is being refunded was renewed")
        self._settle(claim)
        same(self.store.renew(name, "third", SECOND), False, "whether what was refunded was renewed")
        same(self._claim(name), Claim("second", Status.LATE, name, 0), "the claim of what was refunded")
        same(self.store.renew(name, "third", SECOND), False, "whether what was claimed was renewed")

    def test_reservations_expire_in_order(self) -> None:
        self._empty()
        for seconds in (3, 1, 2, 9):
            self.store.save_reservation(self._name(), f"after {seconds}", seconds * SECOND)
        self._advance(3 * SECOND)
        same(self._expire(), (["after 1", "after 2", "after 3"], 6 * SECOND), "what expired, and when the next")

    def test_many_that_have_expired_are_all_handed_out_once(self) -> None:
        self._empty()
        count = 350
        for number in range(count):
            self.store.save_reservation(self._name(), str(number), SECOND)
        self._advance(SECOND)
        found: list[str] = []
        for _ in range(count):
            claims, next_us = self.store.claim_expired()
            found += [claim.record for claim in claims]
            if next_us != 0:
                break
        same(sorted(found), sorted(map(str, range(count))), "what was handed out")

    def test_what_was_settled_does_not_expire(self) -> None:
        self._empty()
        name = self._name()
        self.store.save_reservation(name, "record", SECOND)
        self._settle(self._claimed(name))
        self._advance(SECOND)
        same(self._expire(), ([], None), "what expired")
        same(self._claim(name), None, "a claim of what was settled")

    def test_a_claim_tells_whether_it_is_in_time(self) -> None:
        self._empty()
        late, overdue = self._name(), self._name()
        self.store.save_reservation(late, "late", SECOND)
        self._advance(SECOND)
        self._expire()
        self.store.save_reservation(overdue, "overdue", SECOND)
        self._advance(SECOND)
        same(self._claim(overdue), Claim("overdue", Status.OVERDUE, overdue, 0), "expired, and not handed out")
        same(self._expire()[0], [], "what is handed out after that claim")
        same(self._claim(late), Claim("late", Status.LATE, late, 0), "expired, and refunded")
        same([self._claim(name) for name in (late, overdue)], [None, None], "second claims")

    def test_what_has_expired_can_be_claimed_for_an_hour(self) -> None:
        self._empty()
        names = [self._name(), self._name()]
        for name in names:
            self.store.save_reservation(name, "record", SECOND)
        self._advance(SECOND)
        self._expire()
        self._advance(LATE_US - 1)
        same(self._claim(names[0]), Claim("record", Status.LATE, names[0], 0), "a claim 1 µs before an hour is over")
        self._advance(1)
        same(self._claim(names[1]), None, "a claim after an hour")

    # Settling

    def test_a_claim_that_is_not_settled_in_time_is_handed_out_again(self) -> None:
        self._empty()
        names = {status: self._name() for status in Status}
        for name in (names[Status.LATE], names[Status.EXPIRING]):
            self.store.save_reservation(name, "record", SECOND)
            self._advance(SECOND)
            if name == names[Status.LATE]:
                self._expire()
        self.store.claim_expired()
        self.store.save_reservation(names[Status.OVERDUE], "record", SECOND)
        self._advance(SECOND)
        self.store.save_reservation(names[Status.OPEN], "record", SECOND)
        cost: Cost = {"tokens": 3, "images": 1}
        for status in (Status.OPEN, Status.OVERDUE, Status.LATE):
            same(self._claim(names[status], cost), Claim("record", status, names[status], cost), "the claim")
        self._advance(PENDING_US - 1)
        same(len(self.store.claim_expired().claims), 1, "claims that expire before the others")
        same(self._expire(), ([], 1), "what is handed out 1 µs before their time, and when the next is")
        for _ in range(2):
            self._advance(1)
            found = {claim.status: _without_text(claim) for claim in self.store.claim_expired().claims}
            for status in (Status.OPEN, Status.OVERDUE, Status.LATE):
                same(found.pop(status), Claim("record", status, names[status], cost), "a claim handed out at its time")
                same(self._claim(names[status], 5), None, "another claim of it")
            self._advance(PENDING_US - 1)

    def test_what_is_expiring_is_given_to_everybody_and_settled_once(self) -> None:
        self._empty()
        name, check = self._name(), self._check("fixed_window")
        charge = self._charge(check._replace(cost=LIMIT))
        self.store.save_reservation(name, "record", SECOND)
        self._advance(SECOND)
        (claim,), _ = self.store.claim_expired()
        expiring = Claim("record", Status.EXPIRING, name, 0)
        same(_without_text(claim), expiring, "what was handed out")
        other = self._claimed(name, 3)
        same(_without_text(other), expiring, "a claim meanwhile")
        one = charge._replace(check=check._replace(cost=1))
        same(self._settle(other, [one]), [1], "what the first settlement gave back")
        same(self._settle(claim, [one]), [0], "what the second settlement gave back")
        same(self._look(check).remaining, 1, "remaining")
        late = self._claimed(name, 3)
        same(_without_text(late), Claim("record", Status.LATE, name, 3), "a claim afterwards")
        same(self._settle(claim, [one]), [0], "what a settlement by the earlier claim gave back")
        same(self._settle(late, (), [check._replace(cost=1)]), [], "what a surcharge gave back")
        same(self._look(check).remaining, 0, "remaining after the surcharge")

    def test_a_settlement_changes_limits_once(self, algorithm: str) -> None:
        kept, name, other = self._name(), self._name(), self._name()
        check, more = self._check(algorithm), self._check(algorithm, subject="surcharged")
        charges = [self._charge(check._replace(cost=cost)) for cost in (2, 1)]
        for one in (kept, name, other):
            self.store.save_reservation(one, "record", SECOND)
        settled = [
            ClaimedAdjustments(self._claimed(name), Adjustments((charges[0],), (more._replace(cost=2),))),
            ClaimedAdjustments(self._claimed(other), Adjustments((charges[1],))),
        ]
        same([list(units) for units in self.store.settle(settled[:1])], [[2]], "what the first gave back")
        same([list(units) for units in self.store.settle(settled)], [[0], [1]], "what both gave back")
        same([list(units) for units in self.store.settle(settled)], [[0], [0]], "what a repetition gave back")
        same(self.store.settle([]), [], "what nothing gave back")
        same(self._look(check).remaining, LIMIT, "remaining of the limit that was refunded")
        same(self._look(more).remaining, LIMIT - 2, "remaining of the limit that was charged")
        same(self._claim(kept), Claim("record", Status.OPEN, kept, 0), "a claim of another reservation")

    # Adjusting

    def test_a_surcharge_that_fits_is_like_a_check(self, algorithm: str) -> None:
        one, other = self._check(algorithm, subject="surcharged"), self._check(algorithm, subject="checked")
        for cost in (2, 1):
            self.store.adjust((), [one._replace(cost=cost)])
            self._ask(other._replace(cost=cost))
            same(self._look(one), self._look(other), f"after a surcharge and a check of {cost}")
            self._advance(1_234_567)
        same(self._look(one), self._look(other), "some time later")

    def test_a_surcharge_beyond_the_limit_has_to_be_waited_for(self, algorithm: str) -> None:
        check = self._check(algorithm)
        self._ask(check)
        self.store.adjust((), [check._replace(cost=2 * LIMIT)])
        refused = self._ask(check)
        same(refused.remaining, 0, "remaining")
        if algorithm in BUCKETS:
            same(refused.wait_us, (LIMIT + 2) * WINDOW * SECOND // LIMIT, "wait, of a debt above a whole limit")
        for early_us in (1_000, 1):
            self._advance(refused.wait_us - early_us)
            refused = self._ask(check)
            same(refused.wait_us, early_us, f"wait, {early_us} µs before its end")
        self._advance(1)
        same(self._ask(check).wait_us, 0, "wait, at its end")

    def test_an_adjustment_undoes_a_charge(self, algorithm: str) -> None:
        check = self._check(algorithm)
        charge = self._charge(check._replace(cost=3))
        self._advance(1)
        self.store.adjust([charge._replace(check=check._replace(cost=2))])
        if algorithm in BUCKETS:
            self._advance(12 * SECOND + 2)  # one unit has expired
            same(self._look(check), Outcome(0, LIMIT, 0), "after an adjustment and what came back")
        else:
            same(self._look(check).remaining, LIMIT - 1, "after an adjustment of 2 of 3")

    def test_adjustments_of_charges_that_overlapped_give_back_no_more_than_was_lost(self, algorithm: str) -> None:
        check = self._check(algorithm, limit=100)
        first, second = self._charge(check._replace(cost=50)), self._charge(check._replace(cost=50))
        self.store.adjust([first])
        self._advance(WINDOW * SECOND // 2)
        self._ask(check._replace(cost=30))
        self.store.adjust([second])
        same(self._look(check).remaining, 70, "remaining when only 30 are left")

    def test_no_adjustments_are_nothing_to_do(self) -> None:
        self.store.adjust([], [])

    def _name(self) -> str:
        return uuid4().hex

    def _empty(self) -> None:
        """Remove the reservations of other tests: a store may outlive them."""
        self._advance(8 * 86_400 * SECOND)
        while self._expire()[1] is not None:
            pass
        self._advance(LATE_US)

    def _claim(self, name: str, cost: Cost = 0) -> Claim | None:
        """Return a claim without its text, which is the store's own."""
        claim = self.store.claim_reservation(name, cost)
        return None if claim is None else _without_text(claim)

    def _claimed(self, name: str, cost: Cost = 0) -> Claim:
        claim = self.store.claim_reservation(name, cost)
        assert claim is not None, f"a claim of {name} got None"
        return claim

    def _settle(self, claim: Claim, refunds: Sequence[Charge] = (), surcharges: Sequence[Check] = ()) -> list[int]:
        (given,) = self.store.settle([ClaimedAdjustments(claim, Adjustments(tuple(refunds), tuple(surcharges)))])
        return list(given)

    def _expire(self) -> tuple[list[str], int | None]:
        """Settle what has expired, without a change to limits. Return the records, and when the next expires."""
        claims, _ = self.store.claim_expired()
        self.store.settle([ClaimedAdjustments(claim, Adjustments()) for claim in claims])
        nothing, next_us = self.store.claim_expired() if claims else ((), _)
        same(len(nothing), 0, "claims that were handed out twice")
        return [claim.record for claim in claims], next_us


def _without_text(claim: Claim) -> Claim:
    return claim._replace(text="")
