"""StoreContract: the contract of every store, as a test suite to inherit from.

    from headgate.testing import FakeClock, StoreContract

    class TestMyStore(StoreContract):
        def make_store(self, clock: FakeClock) -> MyStore:
            return MyStore(clock=clock)

pytest finds and runs it. Return an async store in the same way: the suite awaits it on its own event loop. It uses only
the `Store` protocol, moves a fake clock and never sleeps. Every test has its own rules, so a store that outlives a test
need not be emptied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

from headgate.core.check import NEVER, Check, Group, Outcome
from headgate.core.key import key_template
from headgate.core.quota import BUCKETS, WINDOWS, Quota
from headgate.testing.contract import HOSTILE, LIMIT, SECOND, START, THREADS, WINDOW, result_of, same
from headgate.testing.idempotency import IdempotencyContract
from headgate.testing.refunds import RefundContract


class StoreContract(RefundContract, IdempotencyContract):
    """Inherit, and override `make_store`."""

    # One check

    def test_a_limit_is_enforced_and_remaining_counts_down(self, algorithm: str) -> None:
        check = self._check(algorithm)
        outcomes = [self._ask(check) for _ in range(LIMIT + 1)]
        same([outcome.remaining for outcome in outcomes], [4, 3, 2, 1, 0, 0], "remaining")
        same([outcome.wait_us == 0 for outcome in outcomes], [True] * LIMIT + [False], "allowed")
        assert outcomes[-1].wait_us > 0, f"the refused check got no time to wait: {outcomes[-1]}"

    def test_costs_add_up_and_what_does_not_fit_is_not_charged(self, algorithm: str) -> None:
        outcomes = [self._ask(self._check(algorithm, cost=cost)) for cost in (3, 3, 2, 1)]
        same([outcome.remaining for outcome in outcomes], [2, 2, 0, 0], "remaining")
        same([outcome.wait_us == 0 for outcome in outcomes], [True, False, True, False], "allowed")

    def test_the_time_of_a_decision_is_the_clocks(self, algorithm: str) -> None:
        self._advance(1_234_567)
        (result,) = self.store.check([Group((self._check(algorithm),))])
        same(result_of(result).now_us, START * SECOND + 1_234_567, "now_us")

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
                    same(wait_us, early_us, f"wait for cost {cost}, {early_us} µs before its end")
            self._advance(wait_us)
            same(self._ask(check).wait_us, 0, f"wait for cost {cost}, at its end")

    def test_refusals_do_not_make_the_wait_longer(self, algorithm: str) -> None:
        check = self._check(algorithm)
        self._exhaust(check)
        first = self._ask(check)
        same([self._ask(check) for _ in range(20)], [first] * 20, "refusals at one moment")

    def test_reset_is_when_the_whole_limit_is_there_again(self, algorithm: str) -> None:
        one, whole = self._check(algorithm), self._check(algorithm, cost=LIMIT)
        same(self._look(one).reset_us, 0, "reset of a key never seen")
        for _ in range(3):
            reset_us = self._ask(one).reset_us
            self._advance(1_234_567)
        self._advance(reset_us - 1_234_567 - 1)
        same(self._look(whole).wait_us, 1, "wait for the whole limit, 1 µs before the reset")
        self._advance(1)
        same(self._look(whole), Outcome(0, LIMIT, 0), "the whole limit at the reset")

    def test_a_cost_that_can_never_fit_is_told_so(self, algorithm: str) -> None:
        never = self._check(algorithm, cost=LIMIT + 1)
        same(self._ask(never), Outcome(NEVER, LIMIT, 0), "a cost above the limit, of a key never seen")
        charged = self._ask(self._check(algorithm, cost=2))
        same(self._ask(never), charged._replace(wait_us=NEVER), "a cost above the limit, of a key in use")
        self._exhaust(self._check(algorithm))
        same(self._ask(never).wait_us, NEVER, "wait of a cost above the limit, of a key used up")

    def test_a_burst_is_the_capacity_of_the_buckets_alone(self, algorithm: str) -> None:
        quota = Quota(LIMIT, WINDOW, burst=2 * LIMIT, algorithm=algorithm)  # type: ignore[arg-type]
        check = self._check(algorithm)._replace(quota=quota)
        admitted = sum(self._ask(check).wait_us == 0 for _ in range(3 * LIMIT))
        same(admitted, 2 * LIMIT if algorithm in BUCKETS else LIMIT, "admitted at one moment")

    def test_a_cost_of_zero_looks_and_charges_nothing(self, algorithm: str) -> None:
        one, zero = self._check(algorithm), self._check(algorithm, cost=0)
        same(self._ask(zero), Outcome(0, LIMIT, 0), "cost 0 on a key never seen")
        charged = self._ask(one)
        same([self._ask(zero), self._ask(zero)], [charged, charged], "cost 0 on a key in use")
        self._exhaust(one)
        same(self._ask(zero), self._look(one)._replace(wait_us=0), "cost 0 on a key used up")

    def test_a_peek_answers_like_a_check_and_changes_nothing(self, algorithm: str) -> None:
        peeked, plain = self._check(algorithm, subject="peeked"), self._check(algorithm, subject="plain")
        for step in range(3 * LIMIT):
            before = self._look(peeked._replace(cost=0))
            for cost in (1, 2, LIMIT, LIMIT + 1):
                looked = self._look(peeked._replace(cost=cost))
                same(looked[1:], before[1:], f"figures of a peek of cost {cost}, in step {step}")
            promised = self._look(peeked).wait_us
            charged = self._ask(plain)
            same(promised, charged.wait_us, f"wait of a peek and of a check, in step {step}")
            same(self._ask(peeked), charged, f"a check after peeks and without them, in step {step}")
            self._advance(4_321_987)

    # Several checks

    def test_a_group_is_charged_as_a_whole_or_not_at_all(self) -> None:
        wide = tuple(self._check(name, rule="wide", limit=10, cost=3) for name in WINDOWS + BUCKETS)
        for tight in (self._check(name, rule="tight", limit=4, cost=3) for name in WINDOWS + BUCKETS):
            self.store.reset([*wide, tight])
            for group in ((tight, *wide), (*wide, tight), (*wide[:3], tight, *wide[3:])):
                self.store.reset([*wide, tight])
                allowed = self._ask_all(*group)
                same([outcome.wait_us for outcome in allowed], [0] * 7, "waits of a group that fits")
                figures = [outcome[1:] for outcome in allowed]
                refused = self._ask_all(*group)
                waits = [outcome.wait_us for outcome in refused]
                same([wait != 0 for wait in waits], [check is tight for check in group], "who refuses")
                same([outcome[1:] for outcome in refused], figures, "figures after a refusal")
                looked = [self._look(check)[1:] for check in group]
                same(looked, figures, "figures after a refusal, looked at one by one")

    def test_a_group_without_checks_is_nothing_to_decide(self) -> None:
        same(self.store.check([]), [], "no groups")
        (result,) = self.store.check([Group(())])
        same(result_of(result).outcomes, (), "outcomes of a group without checks")

    def test_a_shadow_never_refuses_and_is_charged_only_when_it_fits(self, algorithm: str) -> None:
        shadow = self._check(algorithm, rule="shadow", limit=2)._replace(enforced=False)
        enforced = self._check(algorithm, rule="enforced", limit=4)
        rows = [self._ask_all(enforced, shadow) for _ in range(5)]
        same([row[0].remaining for row in rows], [3, 2, 1, 0, 0], "remaining of the enforced check")
        same([row[0].wait_us == 0 for row in rows], [True] * 4 + [False], "whether the enforced check fits")
        same([row[1].remaining for row in rows], [1, 0, 0, 0, 0], "remaining of the shadow")
        same([row[1].wait_us == 0 for row in rows], [True] * 2 + [False] * 3, "whether the shadow fits")

    def test_a_shadow_is_not_charged_for_a_group_that_is_refused(self, algorithm: str) -> None:
        shadow = self._check(algorithm, rule="shadow")._replace(enforced=False)
        full = self._check(algorithm, rule="full", limit=1)
        self._ask(full)
        outcomes = self._ask_all(shadow, full)
        same(outcomes[0], Outcome(0, LIMIT, 0), "a shadow beside a check that refuses")
        same(self._look(shadow), Outcome(0, LIMIT, 0), "that shadow, looked at afterwards")

    def test_groups_of_one_call_are_decided_by_themselves_and_in_order(self, algorithm: str) -> None:
        alice, bob = self._check(algorithm, subject="alice"), self._check(algorithm, subject="bob", cost=2)
        never = alice._replace(cost=LIMIT + 1)
        groups = [(alice,), (bob,), (alice, bob), (never, bob), (bob,), (alice,), (alice,), (alice,), (alice,)]
        results = self.store.check([Group(checks) for checks in groups])
        remaining = [tuple(outcome.remaining for outcome in result_of(result).outcomes) for result in results]
        expected = [(4,), (3,), (3, 1), (3, 1), (1,), (2,), (1,), (0,), (0,)]
        same(remaining, expected, "remaining after each group")
        allowed = [all(outcome.wait_us == 0 for outcome in result_of(result).outcomes) for result in results]
        same(allowed, [True, True, True, False, False, True, True, True, False], "allowed groups")

    def test_a_call_of_many_groups_is_decided_in_order(self, algorithm: str) -> None:
        # A store may split a large call into several round trips, but they must stay in order.
        count, limit = 600, 500
        expected = [max(0, limit - 1 - index) for index in range(count)]
        for subject in ("alice", "bob", "carol"):
            check = self._check(algorithm, subject=subject, limit=limit)
            results = self.store.check([Group((check,))] * count)
            remaining = [result_of(result).outcomes[0].remaining for result in results]
            wrong = [index for index in range(count) if remaining[index] != expected[index]]
            assert not wrong, f"groups {wrong[:5]} … of {count} for {subject} were not decided in order"

    # Keys

    def test_no_two_subjects_share_a_count(self, algorithm: str) -> None:
        self._each_passes_once(self._check(algorithm, subject=subject, limit=1) for subject in HOSTILE)

    def test_no_two_rules_or_dimensions_share_a_count(self, algorithm: str) -> None:
        run = uuid4().hex
        checks = []
        for text in HOSTILE:
            for template in (key_template("user", run + text, algorithm), key_template(run + text, "rule", algorithm)):
                checks.append(self._check(algorithm, limit=1)._replace(key_template=template))
        self._each_passes_once(checks)

    def test_no_two_algorithms_share_a_count(self) -> None:
        self._each_passes_once(self._check(algorithm, limit=1) for algorithm in WINDOWS + BUCKETS)

    def _each_passes_once(self, checks: Iterable[Check]) -> None:
        """Assert that each check of limit 1 is allowed once, then refused: no check was charged for another."""
        for check in checks:
            outcome = self._ask(check)
            name = f"{check.key_template!r} {check.subject[:140]!r} ({len(check.subject)} characters)"
            same(outcome.wait_us, 0, f"wait of the first check of {name}")
            same(self._ask(check).wait_us > 0, True, f"whether the second check of {name} is refused")

    # Changes

    def test_a_changed_limit_keeps_what_was_counted(self, algorithm: str) -> None:
        check = self._check(algorithm, cost=4)
        before = self._ask(check)
        for limit in (3, 4, 7, 20):
            changed = self._look(self._check(algorithm, limit=limit, cost=0))
            assert changed.remaining < limit, f"limit {limit} found a key with nothing counted"
            if algorithm in WINDOWS:
                same(changed.remaining, max(0, limit - 4), f"remaining by limit {limit}")
        same(self._look(check._replace(cost=0)), before, "the figures by the limit of the beginning")

    def test_a_changed_limit_keeps_the_announced_wait_exact(self, algorithm: str) -> None:
        for limit in (3, 7):
            check = self._check(algorithm, subject=f"limit {limit}")
            self._exhaust(check)
            changed = check._replace(quota=self._quota(algorithm, limit), cost=3)
            wait_us = self._ask(changed).wait_us
            if wait_us > 1:
                self._advance(wait_us - 1)
                same(self._ask(changed).wait_us, 1, f"wait by limit {limit}, 1 µs before its end")
                wait_us = 1
            self._advance(wait_us)
            same(self._ask(changed).wait_us, 0, f"wait by limit {limit}, at its end")

    # Threads

    def test_threads_together_get_exactly_the_limit(self, algorithm: str) -> None:
        limit, each = 100, 25
        check = self._check(algorithm, limit=limit)
        admitted = self._in_threads(lambda _: sum(self._ask(check).wait_us == 0 for _ in range(each)))
        same(sum(admitted), limit, f"admitted of {THREADS} threads with {each} checks each")

    def test_threads_charge_groups_as_a_whole(self, algorithm: str) -> None:
        limit, each = 60, 15
        shared = self._check(algorithm, rule="shared", limit=limit)

        def admitted(thread: int) -> int:
            own = self._check(algorithm, rule="own", subject=str(thread), limit=each)
            for _ in range(each):
                self._ask_all(own, shared)
            return each - self._look(own).remaining

        same(sum(self._in_threads(admitted)), limit, "charged to the threads' own checks")
        same(self._look(shared).remaining, 0, "remaining of the check that they share")

    def _in_threads(self, work: Callable[[int], int]) -> list[int]:
        assert self.store is not None  # created here, by one thread
        assert self._run
        with ThreadPoolExecutor(THREADS) as threads:
            return list(threads.map(work, range(THREADS)))
