"""RefundContract: how a store refunds charges. Part of the `StoreContract`."""

from __future__ import annotations

from headgate.core.check import Check, Outcome
from headgate.testing.contract import DAY, LIMIT, SECOND, WINDOW, Contract, same


class RefundContract(Contract):
    """Tests that a refund undoes a charge, and a reset all of them."""

    def test_a_refund_undoes_a_charge(self, algorithm: str) -> None:
        check, never = self._check(algorithm, subject="refunded"), self._check(algorithm, subject="never")
        self.store.refund([self._charge(check._replace(cost=3))])
        self._same_from_now_on(check, never, "a key whose only charge was refunded")

    def test_a_refund_undoes_a_charge_among_others(self, algorithm: str) -> None:
        # Other charges keep the bucket in use: a bucket that fills up in between has nothing left to undo.
        for undone in ("first", "middle", "last"):
            check = self._check(algorithm, subject=f"{undone} refunded", limit=10)
            never = check._replace(subject=f"{undone} never made")
            charges = []
            for name, cost in (("first", 2), ("middle", 3), ("last", 1)):
                self._ask_all(check, never)  # charges both equally
                if name == undone:
                    charges.append(self._charge(check._replace(cost=cost)))
                self._advance(1_234_567)
            self.store.refund(charges)
            self._same_from_now_on(check, never, f"a key whose {undone} charge was refunded")

    def test_a_late_refund_gives_back_no_more_than_was_lost(self, algorithm: str) -> None:
        # By the time of the refund, the charge has expired: nothing is left to undo.
        check, never = self._check(algorithm, subject="refunded"), self._check(algorithm, subject="never")
        charge = self._charge(check._replace(cost=3))
        self._advance(2 * WINDOW * SECOND)
        self._ask_all(check._replace(cost=4), never._replace(cost=4))
        self.store.refund([charge])
        self._same_from_now_on(check, never, "a key whose charge was refunded late")

    def test_refunds_of_one_call_are_all_made(self, algorithm: str) -> None:
        subjects = ("alice", "bob", "alice")
        charges = [self._charge(self._check(algorithm, subject=subject, cost=2)) for subject in subjects]
        self.store.refund(charges)
        for subject in ("alice", "bob"):
            outcome = self._look(self._check(algorithm, subject=subject))
            same(outcome, Outcome(0, LIMIT, 0), f"{subject} after the refunds")

    def test_a_refund_never_gives_more_than_the_whole_limit(self, algorithm: str) -> None:
        charge = self._charge(self._check(algorithm, cost=2))
        self.store.refund([charge, charge])
        self._advance(DAY)
        self.store.refund([charge])
        self.store.refund([charge._replace(check=self._check(algorithm, subject="never seen"))])
        for subject in ("alice", "never seen"):
            one = self._check(algorithm, subject=subject)
            admitted = sum(self._ask(one).wait_us == 0 for _ in range(2 * LIMIT))
            same(admitted, LIMIT, f"admitted at one moment, of {subject}")

    def test_no_refunds_and_no_resets_are_nothing_to_do(self) -> None:
        self.store.refund([])
        self.store.reset([])

    def test_a_reset_forgets_a_key_and_no_other(self, algorithm: str) -> None:
        subjects = [self._check(algorithm, subject=subject) for subject in ("alice", "bob", "carol")]
        others = [self._check(algorithm, subject="alice", rule="other")]
        for check in subjects + others:
            self._exhaust(check)
        self.store.reset([subjects[0]._replace(cost=0), subjects[1], self._check(algorithm, subject="never seen")])
        for check in subjects[:2]:
            same(self._look(check), Outcome(0, LIMIT, 0), f"{check.subject} after the reset")
        for check in [subjects[2], *others]:
            assert self._look(check).remaining < LIMIT, f"{check.subject}, {check.rule} was forgotten as well"

    def _same_from_now_on(self, one: Check, other: Check, what: str) -> None:
        """Assert that both keys answer equally for every cost, now and until all charges have expired."""
        limit = one.quota.limit
        for step in range(12):
            for cost in (0, 1, limit // 2, limit):
                pair = [self._look(check._replace(cost=cost)) for check in (one, other)]
                same(pair[0], pair[1], f"{what}, asked for {cost} in step {step}")
            self._advance(11_234_567)
        same(self._look(one), Outcome(0, limit, 0), f"{what}, in the end")
