"""StoreContract: what every store has to do, as a suite to inherit from.

    from headgate.testing import FakeClock, StoreContract

    class TestMyStore(StoreContract):
        def make_store(self, clock: FakeClock) -> MyStore:
            return MyStore(clock=clock)

pytest finds and runs it. An async store is given just so: the suite awaits it on an event loop of its own. It asks
through the `Store` protocol alone, moves a fake clock and never sleeps. Every test counts under rules of its own,
so a store that outlives a test need not be emptied in between.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, Final
from uuid import uuid4

from headgate.core.check import IDEMPOTENCY_US, NEVER, Charge, Check, Group, Idempotency, Outcome, Result
from headgate.core.key import escape, space
from headgate.core.quota import BUCKETS, WINDOWS, Quota
from headgate.errors import IdempotencyConflict
from headgate.stores.protocol import AsyncStore, Store
from headgate.testing.blocking import blocking
from headgate.testing.clock import FakeClock

START: Final = 1_700_000_040  # seconds: a realistic time, and the first moment of a minute
WINDOW: Final = 60  # seconds
LIMIT: Final = 5  # per WINDOW, unless a test needs another
SECOND: Final = 1_000_000
DAY: Final = 86_400 * SECOND
THREADS: Final = 8

# Texts that a careless store takes for one another, cuts off, or cannot write down.
HOSTILE: Final = (
    *("", " ", "\0", "\n", "'", '"', "\\", "\\n", "\ufeff", "x" * 127, "x" * 128, "x" * 129, escape("x" * 129)),
    *("alice", "Alice", "alice ", " alice", "alice\n", "alice\0", "alice\0bob", "alice\nbob", "alice\r\nbob"),
    *("%", "%%", "%25", "*", "?", "#", "-", "_", ".", "..", "/", ":", "::", "{", "}", "{}", "}{", "1:a1:b", "2:a1"),
    *("a:b", "a:{b}", "{a}:b", "{a:b}", "a}:{b", "a%3Ab", "a_b", "a__b", "a/b", "a//b", "a+b", "a%20b"),
    *("é", "e\u0301", "🚰", "🚰🚰"),
    *("a b", "\ud83d", "\udeb0", "\udfff", "\ud800\udc00", "\U00010000", "x" * 2**20, "x" * 2**20 + "y"),
)


class StoreContract:
    """Inherit, and override `make_store`."""

    def make_store(self, clock: FakeClock) -> Store | AsyncStore:
        """A store that reads `clock`. Called once per test; the store is closed at the test's end."""
        raise NotImplementedError("override make_store(clock) and return the store to be proved")

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """A test that takes an `algorithm` runs once for each of the six."""
        if "algorithm" in metafunc.fixturenames:
            metafunc.parametrize("algorithm", WINDOWS + BUCKETS)

    def teardown_method(self) -> None:
        if "store" in self.__dict__:
            self.store.close()

    @cached_property
    def clock(self) -> FakeClock:
        return FakeClock(START)

    @cached_property
    def store(self) -> Store:
        return blocking(self.make_store(self.clock))

    # One check

    def test_a_limit_is_enforced_and_remaining_counts_down(self, algorithm: str) -> None:
        check = self._check(algorithm)
        outcomes = [self._ask(check) for _ in range(LIMIT + 1)]
        _same([outcome.remaining for outcome in outcomes], [4, 3, 2, 1, 0, 0], "remaining")
        _same([outcome.wait_us == 0 for outcome in outcomes], [True] * LIMIT + [False], "allowed")
        assert outcomes[-1].wait_us > 0, f"the refused check got no time to wait: {outcomes[-1]}"

    def test_costs_add_up_and_what_does_not_fit_is_not_charged(self, algorithm: str) -> None:
        outcomes = [self._ask(self._check(algorithm, cost=cost)) for cost in (3, 3, 2, 1)]
        _same([outcome.remaining for outcome in outcomes], [2, 2, 0, 0], "remaining")
        _same([outcome.wait_us == 0 for outcome in outcomes], [True, False, True, False], "allowed")

    def test_the_time_of_a_decision_is_the_clocks(self, algorithm: str) -> None:
        self._advance(1_234_567)
        (result,) = self.store.check([Group((self._check(algorithm),))])
        _same(_result(result).now_us, START * SECOND + 1_234_567, "now_us")

    def test_the_announced_wait_is_exact(self, algorithm: str) -> None:
        for cost in (1, 3, LIMIT):
            check = self._check(algorithm, subject=f"cost {cost}", cost=cost)
            self._exhaust(check)
            wait_us = self._ask(check).wait_us
            assert wait_us > 0, f"cost {cost} passed although nothing remained"
            for early_us in (1_000, 1):
                if wait_us > early_us:
                    self._advance(wait_us - early_us)
                    wait_us = self._ask(check).wait_us
                    _same(wait_us, early_us, f"wait for cost {cost}, {early_us} µs before its end")
            self._advance(wait_us)
            _same(self._ask(check).wait_us, 0, f"wait for cost {cost}, at its end")

    def test_refusals_do_not_make_the_wait_longer(self, algorithm: str) -> None:
        check = self._check(algorithm)
        self._exhaust(check)
        first = self._ask(check)
        _same([self._ask(check) for _ in range(20)], [first] * 20, "refusals at one moment")

    def test_reset_is_when_the_whole_limit_is_there_again(self, algorithm: str) -> None:
        one, whole = self._check(algorithm), self._check(algorithm, cost=LIMIT)
        _same(self._look(one).reset_us, 0, "reset of a key never seen")
        for _ in range(3):
            reset_us = self._ask(one).reset_us
            self._advance(1_234_567)
        self._advance(reset_us - 1_234_567 - 1)
        _same(self._look(whole).wait_us, 1, "wait for the whole limit, 1 µs before the reset")
        self._advance(1)
        _same(self._look(whole), Outcome(0, LIMIT, 0), "the whole limit at the reset")

    def test_a_cost_that_can_never_fit_is_told_so(self, algorithm: str) -> None:
        never = self._check(algorithm, cost=LIMIT + 1)
        _same(self._ask(never), Outcome(NEVER, LIMIT, 0), "a cost above the limit, of a key never seen")
        charged = self._ask(self._check(algorithm, cost=2))
        _same(self._ask(never), charged._replace(wait_us=NEVER), "a cost above the limit, of a key in use")
        self._exhaust(self._check(algorithm))
        _same(self._ask(never).wait_us, NEVER, "wait of a cost above the limit, of a key used up")

    def test_a_burst_is_the_capacity_of_the_buckets_alone(self, algorithm: str) -> None:
        quota = Quota(LIMIT, WINDOW, burst=2 * LIMIT, algorithm=algorithm)
        check = self._check(algorithm)._replace(quota=quota)
        admitted = sum(self._ask(check).wait_us == 0 for _ in range(3 * LIMIT))
        _same(admitted, 2 * LIMIT if algorithm in BUCKETS else LIMIT, "admitted at one moment")

    def test_a_cost_of_zero_looks_and_charges_nothing(self, algorithm: str) -> None:
        one, zero = self._check(algorithm), self._check(algorithm, cost=0)
        _same(self._ask(zero), Outcome(0, LIMIT, 0), "cost 0 on a key never seen")
        charged = self._ask(one)
        _same([self._ask(zero), self._ask(zero)], [charged, charged], "cost 0 on a key in use")
        self._exhaust(one)
        _same(self._ask(zero), self._look(one)._replace(wait_us=0), "cost 0 on a key used up")

    def test_a_peek_answers_like_a_check_and_changes_nothing(self, algorithm: str) -> None:
        peeked, plain = self._check(algorithm, subject="peeked"), self._check(algorithm, subject="plain")
        for step in range(3 * LIMIT):
            before = self._look(peeked._replace(cost=0))
            for cost in (1, 2, LIMIT, LIMIT + 1):
                looked = self._look(peeked._replace(cost=cost))
                _same(looked[1:], before[1:], f"figures of a peek of cost {cost}, in step {step}")
            promised = self._look(peeked).wait_us
            charged = self._ask(plain)
            _same(promised, charged.wait_us, f"wait of a peek and of a check, in step {step}")
            _same(self._ask(peeked), charged, f"a check after peeks and without them, in step {step}")
            self._advance(4_321_987)

    # Several checks

    def test_a_group_is_charged_as_a_whole_or_not_at_all(self) -> None:
        wide = tuple(self._check(name, rule="wide", limit=10, cost=3) for name in WINDOWS + BUCKETS)
        for tight in (self._check(name, rule="tight", limit=4, cost=3) for name in WINDOWS + BUCKETS):
            self.store.reset([*wide, tight])
            for group in ((tight, *wide), (*wide, tight), (*wide[:3], tight, *wide[3:])):
                self.store.reset([*wide, tight])
                allowed = self._ask_all(*group)
                _same([outcome.wait_us for outcome in allowed], [0] * 7, "waits of a group that fits")
                figures = [outcome[1:] for outcome in allowed]
                refused = self._ask_all(*group)
                waits = [outcome.wait_us for outcome in refused]
                _same([wait != 0 for wait in waits], [check is tight for check in group], "who refuses")
                _same([outcome[1:] for outcome in refused], figures, "figures after a refusal")
                looked = [self._look(check)[1:] for check in group]
                _same(looked, figures, "figures after a refusal, looked at one by one")

    def test_a_group_without_checks_is_nothing_to_decide(self) -> None:
        _same(self.store.check([]), [], "no groups")
        (result,) = self.store.check([Group(())])
        _same(_result(result).outcomes, (), "outcomes of a group without checks")

    def test_a_shadow_never_refuses_and_is_charged_only_when_it_fits(self, algorithm: str) -> None:
        shadow = self._check(algorithm, rule="shadow", limit=2)._replace(enforced=False)
        enforced = self._check(algorithm, rule="enforced", limit=4)
        rows = [self._ask_all(enforced, shadow) for _ in range(5)]
        _same([row[0].remaining for row in rows], [3, 2, 1, 0, 0], "remaining of the enforced check")
        _same([row[0].wait_us == 0 for row in rows], [True] * 4 + [False], "whether the enforced check fits")
        _same([row[1].remaining for row in rows], [1, 0, 0, 0, 0], "remaining of the shadow")
        _same([row[1].wait_us == 0 for row in rows], [True] * 2 + [False] * 3, "whether the shadow fits")

    def test_a_shadow_is_not_charged_for_a_group_that_is_refused(self, algorithm: str) -> None:
        shadow = self._check(algorithm, rule="shadow")._replace(enforced=False)
        full = self._check(algorithm, rule="full", limit=1)
        self._ask(full)
        outcomes = self._ask_all(shadow, full)
        _same(outcomes[0], Outcome(0, LIMIT, 0), "a shadow beside a check that refuses")
        _same(self._look(shadow), Outcome(0, LIMIT, 0), "that shadow, looked at afterwards")

    def test_groups_of_one_call_are_decided_by_themselves_and_in_order(self, algorithm: str) -> None:
        alice, bob = self._check(algorithm, subject="alice"), self._check(algorithm, subject="bob", cost=2)
        never = alice._replace(cost=LIMIT + 1)
        groups = [
            (alice,),
            (bob,),
            (alice, bob),
            (never, bob),
            (bob,),
            (alice,),
            (alice,),
            (alice,),
            (alice,),
        ]
        results = self.store.check([Group(checks) for checks in groups])
        remaining = [tuple(outcome.remaining for outcome in _result(result).outcomes) for result in results]
        expected = [(4,), (3,), (3, 1), (3, 1), (1,), (2,), (1,), (0,), (0,)]
        _same(remaining, expected, "remaining after each group")
        allowed = [all(outcome.wait_us == 0 for outcome in _result(result).outcomes) for result in results]
        _same(allowed, [True, True, True, False, False, True, True, True, False], "allowed groups")

    def test_a_call_of_many_groups_is_decided_in_order(self, algorithm: str) -> None:
        # A store may split what is too much for one trip, but the trips must not overtake one another.
        count, limit = 600, 500
        expected = [max(0, limit - 1 - place) for place in range(count)]
        for subject in ("alice", "bob", "carol"):
            check = self._check(algorithm, subject=subject, limit=limit)
            results = self.store.check([Group((check,))] * count)
            remaining = [_result(result).outcomes[0].remaining for result in results]
            wrong = [place for place in range(count) if remaining[place] != expected[place]]
            assert not wrong, f"groups {wrong[:5]} … of {count} for {subject} were not decided in order"

    # Refund and reset

    def test_a_refund_undoes_a_charge(self, algorithm: str) -> None:
        check, never = self._check(algorithm, subject="refunded"), self._check(algorithm, subject="never")
        self.store.refund([self._charge(check._replace(cost=3))])
        self._same_from_now_on(check, never, "a key whose only charge was refunded")

    def test_a_refund_undoes_a_charge_among_others(self, algorithm: str) -> None:
        # Others keep the bucket in use all the time: one that is full in between has nothing left to undo.
        for undone in ("first", "middle", "last"):
            check = self._check(algorithm, subject=f"{undone} refunded", limit=10)
            never = check._replace(subject=f"{undone} never made")
            charges = []
            for name, cost in (("first", 2), ("middle", 3), ("last", 1)):
                self._ask_all(check, never)  # both alike
                if name == undone:
                    charges.append(self._charge(check._replace(cost=cost)))
                self._advance(1_234_567)
            self.store.refund(charges)
            self._same_from_now_on(check, never, f"a key whose {undone} charge was refunded")

    def test_a_late_refund_gives_back_no_more_than_was_lost(self, algorithm: str) -> None:
        # By the time of the refund, all of the charge has come back by itself: nothing is left to undo.
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
            _same(outcome, Outcome(0, LIMIT, 0), f"{subject} after the refunds")

    def test_a_refund_never_gives_more_than_the_whole_limit(self, algorithm: str) -> None:
        charge = self._charge(self._check(algorithm, cost=2))
        self.store.refund([charge, charge])
        self._advance(DAY)
        self.store.refund([charge])
        self.store.refund([charge._replace(check=self._check(algorithm, subject="never seen"))])
        for subject in ("alice", "never seen"):
            one = self._check(algorithm, subject=subject)
            admitted = sum(self._ask(one).wait_us == 0 for _ in range(2 * LIMIT))
            _same(admitted, LIMIT, f"admitted at one moment, of {subject}")

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
            _same(self._look(check), Outcome(0, LIMIT, 0), f"{check.subject} after the reset")
        for check in [subjects[2], *others]:
            assert self._look(check).remaining < LIMIT, f"{check.subject}, {check.rule} was forgotten as well"

    # Idempotency

    def test_an_idempotency_key_is_answered_once_and_then_repeated(self, algorithm: str) -> None:
        group = self._once("key", "asked", self._check(algorithm, cost=2))
        first = self._decide(group)
        self._advance(1_234_567)
        _same(self._decide(group), first, "the answer to a repeated key")
        _same(self.store.check([group, group]), [first, first], "the answers to a key repeated in one call")
        whole = self._look(self._check(algorithm, cost=LIMIT - 2))
        _same(whole.wait_us, 0, "wait for all that one charge left over")

    def test_a_refusal_is_repeated_as_well(self, algorithm: str) -> None:
        check = self._check(algorithm, cost=LIMIT)
        self._ask(check)
        group = self._once("key", "asked", check)
        refused = self._decide(group)
        assert refused.outcomes[0].wait_us > 0, f"not refused: {refused}"
        self.store.reset([check])
        _same(self._decide(group), refused, "the repeated refusal")
        _same(self._look(check), Outcome(0, LIMIT, 0), "the key that was not charged")

    def test_an_idempotency_key_is_forgotten_after_five_minutes(self, algorithm: str) -> None:
        check = self._check(algorithm, limit=1)
        group = self._once("key", "asked", check)
        other = self._once("key", "another", check)
        first = self._decide(group)
        self._advance(IDEMPOTENCY_US - 1)
        _same(self._decide(group), first, "the answer 1 µs before five minutes are over")
        assert isinstance(self.store.check([other])[0], IdempotencyConflict), "no conflict before they are over"
        self._advance(1)
        again = self._decide(other)
        _same(again.now_us, self.clock.now_us(), "when it was decided after five minutes")
        _same(self._look(check).wait_us > 0, True, "charged again after five minutes")

    def test_an_idempotency_key_is_forgotten_even_if_the_clock_went_back(self) -> None:
        # An answer that seems to come from the future must not keep those after it alive.
        check = self._check("fixed_window")
        early, late = self._once("early", "asked", check), self._once("late", "asked", check)
        self._decide(early)
        self._advance(-60 * SECOND)
        self._decide(late)
        self._advance(IDEMPOTENCY_US)
        _same(self._decide(late).now_us, self.clock.now_us(), "when it was decided after five minutes")

    def test_an_idempotency_key_of_another_request_is_a_conflict(self, algorithm: str) -> None:
        check, other = self._check(algorithm), self._check(algorithm, subject="other")
        first = self._once("key", "asked", check)
        self._decide(first)
        groups = [
            self._once("key", "another", other),
            Group((check,)),
            first,
            self._once("new", "asked", other),
        ]
        results = self.store.check(groups)
        kinds = [isinstance(result, IdempotencyConflict) for result in results]
        _same(kinds, [True, False, False, False], "which of the groups are conflicts")
        _same(_result(results[1]).outcomes[0].remaining, LIMIT - 2, "remaining of the group beside a conflict")
        _same(_result(results[3]).outcomes[0].remaining, LIMIT - 1, "remaining of a key that a conflict named")

    def test_a_peek_charges_nothing_even_with_an_idempotency_key(self, algorithm: str) -> None:
        check = self._check(algorithm)
        self._decide(self._once("key", "asked", check)._replace(peek=True))
        _same(self._look(check), Outcome(0, LIMIT, 0), "a key that was peeked at")

    def test_idempotency_keys_are_told_apart_whatever_they_contain(self) -> None:
        check = self._check("fixed_window", limit=1_000)
        groups = [self._once(key, "asked", check) for key in HOSTILE]
        for result in self.store.check(groups):
            _same(_result(result).now_us, self.clock.now_us(), "when a new key was decided")
        _same(self._look(check).remaining, 1_000 - len(HOSTILE), "remaining after one charge for each key")

    # Keys

    def test_no_two_subjects_share_a_count(self, algorithm: str) -> None:
        self._each_passes_once(self._check(algorithm, subject=subject, limit=1) for subject in HOSTILE)

    def test_no_two_rules_or_dimensions_share_a_count(self, algorithm: str) -> None:
        run = uuid4().hex
        checks = []
        for text in HOSTILE:
            for place in (space("user", run + text, algorithm), space(run + text, "rule", algorithm)):
                checks.append(self._check(algorithm, limit=1)._replace(space=place))
        self._each_passes_once(checks)

    def test_no_two_algorithms_share_a_count(self) -> None:
        self._each_passes_once(self._check(algorithm, limit=1) for algorithm in WINDOWS + BUCKETS)

    # Changes

    def test_a_changed_limit_keeps_what_was_counted(self, algorithm: str) -> None:
        check = self._check(algorithm, cost=4)
        before = self._ask(check)
        for limit in (3, 4, 7, 20):
            changed = self._look(self._check(algorithm, limit=limit, cost=0))
            assert changed.remaining < limit, f"limit {limit} found a key with nothing counted"
            if algorithm in WINDOWS:
                _same(changed.remaining, max(0, limit - 4), f"remaining by limit {limit}")
        _same(self._look(check._replace(cost=0)), before, "the figures by the limit of the beginning")

    def test_a_changed_limit_keeps_the_announced_wait_exact(self, algorithm: str) -> None:
        for limit in (3, 7):
            check = self._check(algorithm, subject=f"limit {limit}")
            self._exhaust(check)
            changed = check._replace(quota=self._quota(algorithm, limit), cost=3)
            wait_us = self._ask(changed).wait_us
            if wait_us > 1:
                self._advance(wait_us - 1)
                _same(self._ask(changed).wait_us, 1, f"wait by limit {limit}, 1 µs before its end")
                wait_us = 1
            self._advance(wait_us)
            _same(self._ask(changed).wait_us, 0, f"wait by limit {limit}, at its end")

    # Threads

    def test_threads_together_get_exactly_the_limit(self, algorithm: str) -> None:
        limit, each = 100, 25
        check = self._check(algorithm, limit=limit)
        admitted = self._in_threads(lambda _: sum(self._ask(check).wait_us == 0 for _ in range(each)))
        _same(sum(admitted), limit, f"admitted of {THREADS} threads with {each} checks each")

    def test_threads_charge_groups_as_a_whole(self, algorithm: str) -> None:
        limit, each = 60, 15
        shared = self._check(algorithm, rule="shared", limit=limit)

        def admitted(thread: int) -> int:
            own = self._check(algorithm, rule="own", subject=str(thread), limit=each)
            for _ in range(each):
                self._ask_all(own, shared)
            return each - self._look(own).remaining

        _same(sum(self._in_threads(admitted)), limit, "charged to the threads' own checks")
        _same(self._look(shared).remaining, 0, "remaining of the check that they share")

    # How the tests ask

    @cached_property
    def _run(self) -> str:
        """Tells this test's rules from those of all others, in a store that outlives it."""
        return uuid4().hex

    def _quota(self, algorithm: str, limit: int) -> Quota:
        return Quota(limit, WINDOW, algorithm=algorithm)

    def _check(
        self, algorithm: str, *, subject: str = "alice", rule: str = "rule", limit: int = LIMIT, cost: int = 1
    ) -> Check:
        place = space("user", f"{self._run}/{rule}", algorithm)
        return Check(rule, place, subject, self._quota(algorithm, limit), cost)

    def _once(self, key: str, fingerprint: str, check: Check) -> Group:
        return Group((check,), idempotency=Idempotency(f"{self._run}{key}", fingerprint))

    def _decide(self, group: Group) -> Result:
        (result,) = self.store.check([group])
        return _result(result)

    def _ask_all(self, *checks: Check) -> tuple[Outcome, ...]:
        return self._decide(Group(checks)).outcomes

    def _ask(self, check: Check) -> Outcome:
        return self._decide(Group((check,))).outcomes[0]

    def _look(self, check: Check) -> Outcome:
        return self._decide(Group((check,), peek=True)).outcomes[0]

    def _advance(self, us: int) -> None:
        self.clock.advance(us / SECOND)

    def _exhaust(self, check: Check) -> None:
        """Charge until nothing is left, at times that differ."""
        one = check._replace(cost=1)
        for _ in range(3 * check.quota.limit):
            if self._ask(one).wait_us:
                return
            self._advance(1_234_567)
        raise AssertionError(f"{3 * check.quota.limit} checks passed a limit of {check.quota.limit}")

    def _charge(self, check: Check) -> Charge:
        outcome = self._ask(check)
        _same(outcome.wait_us, 0, f"wait of a check to be refunded, of cost {check.cost}")
        return Charge(check, self.clock.now_us(), outcome.reset_us)

    def _same_from_now_on(self, one: Check, other: Check, what: str) -> None:
        """Both keys answer alike, to every cost, now and until nothing of either matters."""
        limit = one.quota.limit
        for step in range(12):
            for cost in (0, 1, limit // 2, limit):
                pair = [self._look(check._replace(cost=cost)) for check in (one, other)]
                _same(pair[0], pair[1], f"{what}, asked for {cost} in step {step}")
            self._advance(11_234_567)
        _same(self._look(one), Outcome(0, limit, 0), f"{what}, in the end")

    def _each_passes_once(self, checks: Iterable[Check]) -> None:
        """Of limit 1, each check passes the first time and not the second: none was charged for another."""
        for check in checks:
            outcome = self._ask(check)
            name = f"{check.space!r} {check.subject[:140]!r} ({len(check.subject)} characters)"
            _same(outcome.wait_us, 0, f"wait of the first check of {name}")
            _same(self._ask(check).wait_us > 0, True, f"whether the second check of {name} is refused")

    def _in_threads(self, work: Any) -> list[int]:
        assert self.store is not None  # made here, by one thread
        assert self._run
        with ThreadPoolExecutor(THREADS) as threads:
            return list(threads.map(work, range(THREADS)))


def _same(actual: object, expected: object, what: str) -> None:
    """An assertion that tells both sides: pytest does not explain those of an installed package."""
    assert actual == expected, f"{what}: expected {expected!r}, got {actual!r}"


def _result(result: Result | IdempotencyConflict) -> Result:
    assert isinstance(result, Result), f"expected a Result, got {result!r}"
    return result
