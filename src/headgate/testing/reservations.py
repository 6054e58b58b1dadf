"""ReservingContract: the contract of a store with reservations, in addition to the `StoreContract`.

from headgate.testing import FakeClock, ReservingContract

class TestReservationsOfMyStore(ReservingContract):
    def make_store(self, clock: FakeClock) -> MyStore:
        return MyStore(clock=clock)
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from uuid import uuid4

from headgate.core.check import Outcome
from headgate.core.quota import BUCKETS
from headgate.core.reservation import LATE_US, Claim, Status
from headgate.stores.protocol import AsyncReservingStore, ReservingStore
from headgate.testing.blocking import blocking
from headgate.testing.contract import HOSTILE, LIMIT, SECOND, THREADS, WINDOW, Contract, same


class ReservingContract(Contract):
    """Inherit, and override `make_store`. Tests remove expired reservations from the store if they need to."""

    @cached_property
    def store(self) -> ReservingStore:
        made = self.make_store(self.clock)
        assert isinstance(made, ReservingStore | AsyncReservingStore), (
            "it lacks save_reservation, renew, take_reservation, expire or adjust"
        )
        store = blocking(made)
        assert isinstance(store, ReservingStore)
        return store

    # Records

    def test_a_reservation_is_claimed_once(self) -> None:
        name = self._name()
        same(self.store.take_reservation(name), None, "a claim of what was never held")
        self.store.save_reservation(name, "what was charged", SECOND)
        same(self.store.take_reservation(name), Claim("what was charged", Status.OPEN), "the first claim")
        same(self.store.take_reservation(name), None, "the second claim")

    def test_of_many_who_claim_one_gets_it(self) -> None:
        for _ in range(20):
            name = self._name()
            self.store.save_reservation(name, "record", SECOND)
            with ThreadPoolExecutor(THREADS) as threads:
                claims = list(threads.map(self.store.take_reservation, [name] * THREADS))
            same(sum(claim is not None for claim in claims), 1, f"claims that succeeded, of {THREADS} threads")

    def test_a_record_is_given_back_as_it_was(self) -> None:
        for text in HOSTILE:
            record = text.encode("utf-8", "replace").decode()
            name = self._name()
            self.store.save_reservation(name, record, SECOND)
            same(self.store.take_reservation(name), Claim(record, Status.OPEN), f"the record of {record[:40]!r}")

    def test_a_reservation_expires_at_its_time_and_not_before(self) -> None:
        self._empty()
        name = self._name()
        self.store.save_reservation(name, "record", 10 * SECOND)
        self._advance(10 * SECOND - 1)
        same(self.store.expire(), ((), 1), "what expired, 1 µs before its time")
        self._advance(1)
        same(self.store.expire(), (("record",), None), "what expired at its time")
        same(self.store.expire(), ((), None), "what expired afterwards")

    def test_a_reservation_that_is_open_can_be_renewed(self) -> None:
        self._empty()
        name = self._name()
        same(self.store.renew(name, "record", SECOND), False, "whether what was never held was renewed")
        same(self.store.take_reservation(name), None, "a claim of what was never held")
        self.store.save_reservation(name, "first", SECOND)
        self._advance(SECOND)  # it has expired, but is not claimed
        same(self.store.renew(name, "second", 10 * SECOND), True, "whether what was held was renewed")
        same(self.store.expire(), ((), 10 * SECOND), "what expired, and when the next does")
        self._advance(10 * SECOND)
        same(self.store.expire(), (("second",), None), "what expired at its new time")
        same(self.store.renew(name, "third", SECOND), False, "whether what was handed out was renewed")
        same(self.store.take_reservation(name), Claim("second", Status.LATE), "the claim of what was handed out")

    def test_reservations_expire_in_order(self) -> None:
        self._empty()
        for seconds in (3, 1, 2, 9):
            self.store.save_reservation(self._name(), f"after {seconds}", seconds * SECOND)
        self._advance(3 * SECOND)
        same(self.store.expire(), (("after 1", "after 2", "after 3"), 6 * SECOND), "what expired, and when the next")

    def test_many_that_have_expired_are_all_handed_out_once(self) -> None:
        self._empty()
        count = 350
        for number in range(count):
            self.store.save_reservation(self._name(), str(number), SECOND)
        self._advance(SECOND)
        found: list[str] = []
        for _ in range(count):
            records, next_us = self.store.expire()
            found += records
            if next_us != 0:
                break
        same(sorted(found), sorted(map(str, range(count))), "what was handed out")

    def test_what_was_claimed_does_not_expire(self) -> None:
        self._empty()
        name = self._name()
        self.store.save_reservation(name, "record", SECOND)
        self.store.take_reservation(name)
        self._advance(SECOND)
        same(self.store.expire(), ((), None), "what expired")

    def test_a_claim_tells_whether_it_is_in_time(self) -> None:
        self._empty()
        late, overdue = self._name(), self._name()
        self.store.save_reservation(late, "late", SECOND)
        self._advance(SECOND)
        self.store.expire()
        self.store.save_reservation(overdue, "overdue", SECOND)
        self._advance(SECOND)
        same(self.store.take_reservation(overdue), Claim("overdue", Status.OVERDUE), "expired, and not handed out")
        same(self.store.expire().records, (), "what is handed out after that claim")
        same(self.store.take_reservation(late), Claim("late", Status.LATE), "expired, and handed out")
        same([self.store.take_reservation(name) for name in (late, overdue)], [None, None], "second claims")

    def test_what_has_expired_can_be_claimed_for_an_hour(self) -> None:
        self._empty()
        names = [self._name(), self._name()]
        for name in names:
            self.store.save_reservation(name, "record", SECOND)
        self._advance(SECOND)
        self.store.expire()
        self._advance(LATE_US - 1)
        same(self.store.take_reservation(names[0]), Claim("record", Status.LATE), "a claim 1 µs before an hour is over")
        self._advance(1)
        same(self.store.take_reservation(names[1]), None, "a claim after an hour")

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
        while self.store.expire().next_us is not None:
            pass
        self._advance(LATE_US)
