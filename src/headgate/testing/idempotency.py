"""IdempotencyContract: how a store answers repeated idempotency keys. Part of the `StoreContract`."""

from __future__ import annotations

from headgate.core.check import IDEMPOTENCY_US, Check, Group, Idempotency, Outcome, RepeatedResult
from headgate.errors import IdempotencyConflict
from headgate.testing.contract import HOSTILE, LIMIT, SECOND, Contract, result_of, same


class IdempotencyContract(Contract):
    """Tests that a key is decided once, and its answer repeated for five minutes."""

    def test_an_idempotency_key_is_answered_once_and_then_repeated(self, algorithm: str) -> None:
        group = self._once("key", "asked", self._check(algorithm, cost=2))
        first = self._decide(group)
        self._advance(1_234_567)
        again = self._decide(group)
        same(again, first, "the answer to a repeated key")
        kinds = [isinstance(answer, RepeatedResult) for answer in (first, again)]
        same(kinds, [False, True], "whether the first and the second answer are a RepeatedResult")
        same(self.store.check([group, group]), [first, first], "the answers to a key repeated in one call")
        whole = self._look(self._check(algorithm, cost=LIMIT - 2))
        same(whole.wait_us, 0, "wait for all that one charge left over")

    def test_a_refusal_is_repeated_as_well(self, algorithm: str) -> None:
        check = self._check(algorithm, cost=LIMIT)
        self._ask(check)
        group = self._once("key", "asked", check)
        refused = self._decide(group)
        assert refused.outcomes[0].wait_us > 0, f"not refused: {refused}"
        self.store.reset([check])
        same(self._decide(group), refused, "the repeated refusal")
        same(self._look(check), Outcome(0, LIMIT, 0), "the key that was not charged")

    def test_an_idempotency_key_is_forgotten_after_five_minutes(self, algorithm: str) -> None:
        check = self._check(algorithm, limit=1)
        group = self._once("key", "asked", check)
        other = self._once("key", "another", check)
        first = self._decide(group)
        self._advance(IDEMPOTENCY_US - 1)
        same(self._decide(group), first, "the answer 1 µs before five minutes are over")
        assert isinstance(self.store.check([other])[0], IdempotencyConflict), "no conflict before they are over"
        self._advance(1)
        again = self._decide(other)
        same(again.now_us, self.clock.now_us(), "when it was decided after five minutes")
        same(self._look(check).wait_us > 0, True, "charged again after five minutes")

    def test_an_idempotency_key_is_forgotten_even_if_the_clock_went_back(self) -> None:
        # An answer with a future time must not keep later ones alive.
        check = self._check("fixed_window")
        early, late = self._once("early", "asked", check), self._once("late", "asked", check)
        self._decide(early)
        self._advance(-60 * SECOND)
        self._decide(late)
        self._advance(IDEMPOTENCY_US)
        same(self._decide(late).now_us, self.clock.now_us(), "when it was decided after five minutes")

    def test_an_idempotency_key_of_another_request_is_a_conflict(self, algorithm: str) -> None:
        check, other = self._check(algorithm), self._check(algorithm, subject="other")
        first = self._once("key", "asked", check)
        self._decide(first)
        groups = [self._once("key", "another", other), Group((check,)), first, self._once("new", "asked", other)]
        results = self.store.check(groups)
        kinds = [isinstance(result, IdempotencyConflict) for result in results]
        same(kinds, [True, False, False, False], "which of the groups are conflicts")
        same(result_of(results[1]).outcomes[0].remaining, LIMIT - 2, "remaining of the group beside a conflict")
        same(result_of(results[3]).outcomes[0].remaining, LIMIT - 1, "remaining of a key that a conflict named")

    def test_a_peek_charges_nothing_even_with_an_idempotency_key(self, algorithm: str) -> None:
        check = self._check(algorithm)
        self._decide(self._once("key", "asked", check)._replace(peek=True))
        same(self._look(check), Outcome(0, LIMIT, 0), "a key that was peeked at")

    def test_idempotency_keys_are_told_apart_whatever_they_contain(self) -> None:
        check = self._check("fixed_window", limit=1_000)
        groups = [self._once(key, "asked", check) for key in HOSTILE]
        for result in self.store.check(groups):
            same(result_of(result).now_us, self.clock.now_us(), "when a new key was decided")
        same(self._look(check).remaining, 1_000 - len(HOSTILE), "remaining after one charge for each key")

    def _once(self, key: str, fingerprint: str, check: Check) -> Group:
        return Group((check,), idempotency=Idempotency(f"{self._run}{key}", fingerprint))
