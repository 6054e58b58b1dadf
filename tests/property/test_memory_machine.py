"""The memory store as a whole against the oracle: any operations, on several keys, in any order."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headgate.core.check import NEVER, Charge, Check, Group, Outcome
from headgate.core.key import key_template
from headgate.core.quota import Quota
from headgate.stores.memory import MemoryStore
from headgate.testing import FakeClock
from tests.oracle import Answer, Oracle
from tests.property.strategies import Cost, Move, costs, examples, moves, quotas, starts
from tests.property.world import World, expect_result

SUBJECTS = ("alice", "bob")


class Model:
    """What is known of one key: its oracle, and the reset that was told after each charge in its history."""

    def __init__(self, quota: Quota) -> None:
        self.oracle = Oracle(quota.algorithm, quota.limit, quota.window_us, quota.burst)
        self.resets: list[int] = []


class MemoryMachine(RuleBasedStateMachine):
    @initialize(quotas=st.lists(quotas(), min_size=1, max_size=3), start=starts())
    def begin(self, quotas: list[Quota], start: int) -> None:
        clock = FakeClock()
        self.store = MemoryStore(clock=clock)
        self.world = World(self.store, clock)
        self.world.begin(start)
        self.quotas = quotas
        self.models = {(place, name): Model(quota) for place, quota in enumerate(quotas) for name in SUBJECTS}
        self.last = Outcome(0, quotas[0].capacity, 0)

    @rule(move=moves())
    def advance(self, move: Move) -> None:
        self.world.move(move.us(self.quotas[0], self.world.now, self.last.wait_us))

    @rule(
        subject=st.sampled_from(SUBJECTS),
        cost=costs(),
        asked=st.integers(1, 7),
        enforced=st.integers(0, 7) | st.just(7),
        peek=st.sampled_from([False, False, True]),
    )
    def check(self, subject: str, cost: Cost, asked: int, enforced: int, peek: bool) -> None:
        """A group of the quotas whose bits are set in `asked`; those not in `enforced` are shadows."""
        places = [place for place in range(len(self.quotas)) if asked >> place & 1] or [0]
        checks = tuple(
            self._check(place, subject, cost.of(self.quotas[place], self.last.remaining), bool(enforced >> place & 1))
            for place in places
        )
        (result,) = self.store.check([Group(checks, peek)])
        outcomes = expect_result(result).outcomes
        assert list(outcomes) == self._expected(places, checks, peek)
        self.last = outcomes[0]

    def _expected(self, places: list[int], checks: tuple[Check, ...], peek: bool) -> list[Outcome]:
        now = self.world.now
        models = [self.models[place, check.subject] for place, check in zip(places, checks, strict=True)]
        triples = [
            (model, check, model.oracle.peek(now, check.cost)) for model, check in zip(models, checks, strict=True)
        ]
        refused = any(check.enforced and not answer.allowed for _, check, answer in triples)
        expected = []
        for model, check, answer in triples:
            if answer.allowed and check.cost and not refused and not peek:
                model.oracle.charge(now, check.cost)
                model.resets.append(model.oracle.peek(now, 0).reset)
            expected.append(outcome(model.oracle.peek(now, 0)._replace(wait=answer.wait)))
        return expected

    @precondition(lambda self: any(model.resets for model in self.models.values()))
    @rule(which=st.integers(0, 5), back=st.integers(0, 5))
    def refund(self, which: int, back: int) -> None:
        charged = [key for key, model in self.models.items() if model.resets]
        place, subject = charged[which % len(charged)]
        model = self.models[place, subject]
        at = len(model.resets) - 1 - back % len(model.resets)
        if not model.oracle.refund_is_exact(self.world.now, at):
            return
        charged_at, cost = model.oracle.history[at]
        self.store.refund([Charge(self._check(place, subject, cost), charged_at, model.resets[at])])
        model.oracle.refund(at)
        del model.resets[at]
        self._compare(place, subject)

    @rule(which=st.integers(0, 5))
    def reset(self, which: int) -> None:
        place, subject = list(self.models)[which % len(self.models)]
        self.store.reset([self._check(place, subject)])
        self.models[place, subject] = Model(self.quotas[place])
        self._compare(place, subject)

    @invariant()
    def every_key_in_use_is_counted(self) -> None:
        """Or else `max_keys` bounds nothing."""
        now = self.world.now
        used = sum(model.oracle.peek(now, 0).reset > 0 for model in self.models.values() if model.resets)
        assert len(self.store) >= used

    def teardown(self) -> None:
        if hasattr(self, "store"):
            for place, subject in self.models:
                self._compare(place, subject)

    def _compare(self, place: int, subject: str) -> None:
        now = self.world.now
        for cost in (0, 1, self.quotas[place].capacity):
            (result,) = self.store.check([Group((self._check(place, subject, cost),), peek=True)])
            assert expect_result(result).outcomes[0] == outcome(self.models[place, subject].oracle.peek(now, cost))

    def _check(self, place: int, subject: str, cost: int = 1, enforced: bool = True) -> Check:
        quota = self.quotas[place]
        return Check(
            f"rule {place}", key_template("user", f"rule {place}", quota.algorithm), subject, quota, cost, enforced
        )


def outcome(answer: Answer) -> Outcome:
    return Outcome(NEVER if answer.wait is None else answer.wait, answer.remaining, answer.reset)


TestMemoryMachine = MemoryMachine.TestCase
TestMemoryMachine.settings = settings(examples(150), stateful_step_count=30)
