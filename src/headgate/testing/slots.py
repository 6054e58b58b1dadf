"""SlotContract: the contract of a store that limits concurrency, in addition to the `StoreContract`.

from headgate.testing import FakeClock, SlotContract

class TestSlotsOfMyStore(SlotContract):
    def make_store(self, clock: FakeClock) -> MyStore:
        return MyStore(clock=clock)
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Final

from headgate.algorithms.concurrency import MAX_TICKETS
from headgate.core.check import NEVER, NOT_WAITING, TICKET_US, Charge, Check, Group, Outcome
from headgate.core.quota import CONCURRENCY
from headgate.core.slot import new_slot
from headgate.stores.protocol import AsyncSlotStore, SlotStore
from headgate.testing.blocking import blocking
from headgate.testing.contract import HOSTILE, LIMIT, SECOND, THREADS, WINDOW, Contract, same

TTL_US: Final = WINDOW * SECOND


class SlotContract(Contract):
    """Inherit, and override `make_store`."""

    @cached_property
    def store(self) -> SlotStore:
        made = self.make_store(self.clock)
        assert isinstance(made, SlotStore | AsyncSlotStore), "it lacks release_slots or renew_slots"
        store = blocking(made)
        assert isinstance(store, SlotStore)
        return store

    def test_as_many_are_held_as_the_limit_says(self) -> None:
        taken = [self._take() for _ in range(LIMIT)]
        for at, (_, outcome) in enumerate(taken):
            same(outcome, Outcome(0, LIMIT - 1 - at, TTL_US), f"slot {at + 1}")
        same(self._take()[1], Outcome(TTL_US, 0, TTL_US), "one more")

    def test_a_released_slot_is_free_at_once(self) -> None:
        (first, _), *_ = [self._take() for _ in range(LIMIT)]
        same(list(self.store.release_slots([first])), [True], "the release")
        same(self._take()[1].wait_us, 0, "the wait of the next")
        same(self._take()[1].wait_us, TTL_US, "the wait of the one after that")

    def test_a_second_release_changes_nothing(self) -> None:
        held = [self._take()[0] for _ in range(LIMIT)]
        same(list(self.store.release_slots([held[0], held[0]])), [True, False], "two releases in one call")
        same(list(self.store.release_slots([held[0]])), [False], "a third")
        same(self._look(self._one()).remaining, 1, "what remains")

    def test_a_release_of_what_nobody_holds_changes_nothing(self) -> None:
        held, _ = self._take()
        other = self._one()
        same(list(self.store.release_slots([other])), [False], "a release of an id that was never held")
        same(list(self.store.release_slots([other._replace(subject="bob")])), [False], "and of a subject that has none")
        same(self._look(self._one()).remaining, LIMIT - 1, "what remains")
        same(list(self.store.release_slots([held])), [True], "the release")
        same(self._look(self._one()), Outcome(0, LIMIT, 0), "what remains then")

    def test_each_slot_expires_at_its_own_time(self) -> None:
        for _ in range(LIMIT):
            self._take()
            self._advance(SECOND)
        wait_us = TTL_US - LIMIT * SECOND
        same(self._take()[1].wait_us, wait_us, "the announced wait")
        self._advance(wait_us - 1)
        same(self._take()[1].wait_us, 1, "the wait, a microsecond before")
        self._advance(1)
        same(self._take()[1].wait_us, 0, "the wait when the first has expired")
        same(self._take()[1].wait_us, SECOND, "the wait for the second")

    def test_a_slot_that_has_expired_is_not_held(self) -> None:
        held, _ = self._take()
        self._advance(TTL_US)
        same(list(self.store.renew_slots([held])), [False], "the renewal")
        same(list(self.store.release_slots([held])), [False], "the release")

    def test_a_renewed_slot_lives_on(self) -> None:
        first, second = self._take()[0], self._take()[0]
        self._advance(TTL_US - 1)
        same(list(self.store.renew_slots([first])), [True], "the renewal")
        self._advance(1)
        same(list(self.store.renew_slots([first, second])), [True, False], "renewals when one has expired")
        same(self._look(self._one()), Outcome(0, LIMIT - 1, TTL_US), "what remains")
        self._advance(TTL_US - 1)
        same(self._look(self._one()).remaining, LIMIT - 1, "what remains just before it expires")
        self._advance(1)
        same(self._look(self._one()), Outcome(0, LIMIT, 0), "what remains then")

    def test_a_renewal_revives_nothing(self) -> None:
        held, _ = self._take()
        self.store.release_slots([held])
        same(list(self.store.renew_slots([held])), [False], "the renewal of what was released")
        same(self._look(self._one()), Outcome(0, LIMIT, 0), "what remains")

    def test_a_slot_may_cost_more(self) -> None:
        large, outcome = self._take(cost=3)
        same(outcome, Outcome(0, LIMIT - 3, TTL_US), "a slot of cost 3")
        self._advance(SECOND)
        same(self._take(cost=3)[1].wait_us, TTL_US - SECOND, "the wait of another")
        same(self._take(cost=2)[1].wait_us, 0, "the wait of a smaller one")
        same(self._take(cost=LIMIT + 1)[1].wait_us, NEVER, "the wait of one that is larger than the limit")
        self.store.release_slots([large])
        same(self._look(self._one()).remaining, 3, "what remains when the first is released")

    def test_a_refusal_charges_no_rate(self) -> None:
        held = [self._take()[0] for _ in range(LIMIT)]
        rate = self._check("gcra", rule="rate")
        waits = [outcome.wait_us > 0 for outcome in self._ask_all(rate._replace(slot="x" * 16), self._one())]
        same(waits, [False, True], "whether rate and slots refuse")
        same(self._look(rate).remaining, LIMIT, "what remains of the rate")
        self.store.release_slots(held)

    def test_a_refusal_by_a_rate_takes_no_slot(self) -> None:
        rate = self._check("gcra", rule="rate", limit=1)
        self._charge(rate)
        slot = new_slot()
        waits = [outcome.wait_us > 0 for outcome in self._ask_all(self._one(slot), rate._replace(slot=slot))]
        same(waits, [False, True], "whether slots and rate refuse")
        same(self._look(self._one()), Outcome(0, LIMIT, 0), "what remains of the slots")

    def test_a_peek_takes_no_slot(self) -> None:
        for _ in range(2):
            same(self._look(self._one()), Outcome(0, LIMIT, 0), "a look")

    def test_a_slot_can_be_refunded(self) -> None:
        held, outcome = self._take()
        self._take()
        for _ in range(2):  # as on a cluster, when another part of a request is refused
            self.store.refund([Charge(held, self.clock.now_us(), outcome.reset_us)])
            same(self._look(self._one()).remaining, LIMIT - 1, "what remains")

    def test_a_reset_forgets_all_slots(self) -> None:
        held, _ = self._take()
        self.store.reset([self._one()])
        same(self._look(self._one()), Outcome(0, LIMIT, 0), "what remains")
        same(list(self.store.release_slots([held])), [False], "the release")
        same(self._take()[1], Outcome(0, LIMIT - 1, TTL_US), "the next")

    def test_subjects_do_not_share_slots(self) -> None:
        subjects = HOSTILE[:40]
        held = [self._take(subject=subject) for subject in subjects]
        same([outcome.remaining for _, outcome in held], [LIMIT - 1] * len(subjects), "what remains of each")
        checks = [check for check, _ in held]
        same(list(self.store.release_slots(checks)), [True] * len(checks), "all releases in one call")

    def test_a_lower_limit_counts_what_is_held(self) -> None:
        for _ in range(LIMIT):
            self._take()
        lower = self._one()._replace(quota=self._quota(CONCURRENCY, 2))
        same(self._look(lower), Outcome(TTL_US, 0, TTL_US), "under a lower limit")
        same(self._ask(lower._replace(cost=0)), Outcome(0, 0, TTL_US), "a look of cost 0")

    def test_a_slot_keeps_its_own_time_to_live(self) -> None:
        held, _ = self._take()
        shorter = self._one()._replace(quota=self._quota(CONCURRENCY, LIMIT).__class__(LIMIT, 1, algorithm=CONCURRENCY))
        same(self._ask(shorter), Outcome(0, LIMIT - 2, TTL_US), "beside one of a shorter ttl")
        self._advance(SECOND)
        same(self._look(self._one()).remaining, LIMIT - 1, "what remains when that has expired")
        same(list(self.store.renew_slots([held])), [True], "the renewal")

    def test_a_clock_that_goes_back_locks_nobody_out(self) -> None:
        for _ in range(LIMIT):
            self._take()
        self._advance(-10 * TTL_US)
        same(self._take()[1].wait_us, TTL_US, "the wait")
        self._advance(TTL_US)
        same(self._take()[1].wait_us, 0, "the wait when that is over")

    def test_slots_go_to_those_who_wait_in_order(self) -> None:
        held = [self._take()[0] for _ in range(LIMIT)]
        first, second = self._wait(self._one(), TTL_US), self._wait(self._one(), TTL_US - 1)
        self.store.release_slots(held[:1])
        same(self._ask(self._one()), Outcome(TICKET_US, 0, TTL_US - 2), "who does not wait")
        same(self._ask(second).wait_us, TICKET_US, "the wait of the second")
        same(self._ask(first).wait_us, 0, "the wait of the first")
        self.store.release_slots(held[1:3])
        same(self._ask(self._one()), Outcome(0, 0, TTL_US), "who does not wait, when there is room for both")
        same(self._ask(second).wait_us, 0, "the wait of the second, then")

    def test_a_wait_goes_on_while_it_is_renewed(self) -> None:
        held = [self._take()[0] for _ in range(LIMIT)]
        first, second = self._wait(self._one(), TTL_US), self._wait(self._one(), TTL_US - 1)
        self.store.release_slots(held[:1])
        self._advance(TICKET_US - 3)
        same(list(self.store.renew_slots([second])), [True], "the renewal of the second")
        same(self._look(self._one()).remaining, 0, "what remains while the first counts")
        self._advance(1)
        same(list(self.store.renew_slots([first])), [False], "the renewal of the first, a moment too late")
        same(self._ask(second).wait_us, 0, "the wait of the second, when the first does not count any more")

    def test_who_gives_up_leaves_the_queue(self) -> None:
        held = [self._take()[0] for _ in range(LIMIT)]
        first, second = self._wait(self._one(), TTL_US), self._wait(self._one(), TTL_US - 1)
        same(list(self.store.release_slots([first, held[0]])), [False, True], "two releases")
        same(self._look(self._one()).remaining, 0, "what remains")
        same(self._ask(second).wait_us, 0, "the wait of the second")

    def test_a_release_before_the_check_refuses_it(self) -> None:
        late = self._one()._replace(arrived_us=0)
        same(list(self.store.release_slots([late])), [False], "the release")
        same(self._ask(late._replace(arrived_us=NOT_WAITING)).wait_us, TICKET_US, "the wait")
        same(self._look(self._one()), Outcome(0, LIMIT, 0), "what remains")

    def test_who_lacks_more_than_a_slot_has_no_place_in_the_queue(self) -> None:
        held = [self._take()[0] for _ in range(LIMIT)]
        rate = self._check("gcra", rule="rate", limit=1)
        waiting = self._one()._replace(arrived_us=0)
        self._ask_all(waiting, rate._replace(slot=waiting.slot, arrived_us=0))
        waiting = waiting._replace(arrived_us=self.clock.now_us())
        self._charge(rate)
        self._ask_all(waiting, rate._replace(slot=waiting.slot, arrived_us=waiting.arrived_us))
        self.store.release_slots(held[:1])
        same(self._ask(self._one()).wait_us, 0, "the wait of another")

    def test_who_waits_for_two_subjects_has_a_place_in_both_queues(self) -> None:
        held = [self._take()[0] for _ in range(LIMIT)]
        for _ in range(LIMIT - 1):
            self._take(subject="bob")
        both = [self._one(), self._one(subject="bob")]
        both = [check._replace(slot=both[0].slot, arrived_us=0) for check in both]
        waits = [outcome.wait_us for outcome in self._ask_all(*both)]
        same(waits, [TTL_US, 0], "the waits")
        same(self._look(self._one(subject="bob")).remaining, 0, "what remains of the other")
        self.store.release_slots(held[:1])
        both = [check._replace(arrived_us=self.clock.now_us()) for check in both]
        same([outcome.wait_us for outcome in self._ask_all(*both)], [0, 0], "the waits, then")
        same(self._look(self._one()).remaining, 0, "what remains")
        self.store.release_slots(held[1:])
        self._advance(TICKET_US)
        same(self._look(self._one()).remaining, LIMIT - 1, "what remains when all others have released theirs")

    def test_a_reset_forgets_the_queue(self) -> None:
        for _ in range(LIMIT):
            self._take()
        self._wait(self._one(), TTL_US)
        self.store.reset([self._one()])
        same(self._look(self._one()), Outcome(0, LIMIT, 0), "what remains")

    def test_a_queue_is_bounded(self) -> None:
        held = [self._take()[0] for _ in range(LIMIT)]
        for _ in range(MAX_TICKETS):
            self._ask(self._one()._replace(arrived_us=0))
        late = self._wait(self._one(), TTL_US)
        same(list(self.store.renew_slots([late])), [False], "the renewal of one too many")
        self._advance(TICKET_US)
        self.store.release_slots(held[:1])
        same(self._ask(late).wait_us, 0, "its wait when the others do not count any more")

    def test_threads_never_hold_more_than_the_limit(self) -> None:
        # Created before the threads start: since Python 3.12, a cached property has no lock.
        store, checks = self.store, [[self._one() for _ in range(LIMIT)] for _ in range(THREADS)]

        def try_some(some: list[Check]) -> list[Check]:
            return [check for check in some if self._ask(check).wait_us == 0]

        with ThreadPoolExecutor(THREADS) as threads:
            held = [check for some in threads.map(try_some, checks) for check in some]
        same(len(held), LIMIT, f"slots held by {THREADS} threads")
        same(list(store.release_slots(held)), [True] * LIMIT, "their releases")

    def _one(self, slot: str | None = None, *, subject: str = "alice", cost: int = 1) -> Check:
        check = self._check(CONCURRENCY, subject=subject, cost=cost)
        return check._replace(slot=slot or new_slot())

    def _wait(self, check: Check, wait_us: int) -> Check:
        """Let a check wait that finds no slot, and return it as it asks again."""
        same(self._ask(check._replace(arrived_us=0)).wait_us, wait_us, "the wait of one that waits")
        arrived_us = self.clock.now_us()
        self._advance(1)  # those who come at the same time have no order
        return check._replace(arrived_us=arrived_us)

    def _take(self, *, subject: str = "alice", cost: int = 1) -> tuple[Check, Outcome]:
        check = self._one(subject=subject, cost=cost)
        return check, self._decide(Group((check,))).outcomes[0]
