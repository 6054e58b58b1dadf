"""A store and its clock, asked in as few words as a law needs."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

from headgate.core.check import Charge, Check, Group, Outcome, Result
from headgate.core.key import key_template
from headgate.core.quota import Quota
from headgate.stores.protocol import Store
from headgate.stores.redis.sync import RedisStore
from headgate.testing import FakeClock
from tests.property.strategies import Step

_runs = count()  # every key is counted under a rule of its own, so that examples do not see one another


class World:
    """One store for many examples: what a store remembers of one example has no meaning to the next."""

    def __init__(self, store: Store, clock: FakeClock) -> None:
        self.store, self.clock = store, clock

    @classmethod
    def on_redis(cls, url: str) -> World:
        """A world with a store and a clock of its own, on a server that others may use as well."""
        clock = FakeClock()
        return cls(RedisStore(url, clock=clock), clock)

    @property
    def now(self) -> int:
        return self.clock.now_us()

    def move(self, us: int) -> None:
        self.clock.advance(us / 1_000_000)

    def begin(self, at: int) -> None:
        """Start an example at this time."""
        self.move(at - self.now)
        assert self.now == at

    def key(self, quota: Quota) -> Key:
        """A key that nobody has asked for yet."""
        return Key(self, quota)

    def decide(self, groups: Iterable[Group]) -> list[Result]:
        return [expect_result(result) for result in self.store.check(list(groups))]


class Key:
    """One subject of one rule, in a world."""

    def __init__(self, world: World, quota: Quota) -> None:
        self.world = world
        rule = f"run {next(_runs)}"
        self.template = Check(rule, key_template("user", rule, quota.algorithm), "alice", quota)

    @property
    def quota(self) -> Quota:
        return self.template.quota

    def of(self, cost: int) -> Check:
        return self.template._replace(cost=cost)

    def check(self, cost: int) -> Outcome:
        return self.world.decide([Group((self.of(cost),))])[0].outcomes[0]

    def peek(self, cost: int) -> Outcome:
        return self.world.decide([Group((self.of(cost),), peek=True)])[0].outcomes[0]

    def refund(self, cost: int, charged_at: int, reset: int) -> None:
        self.world.store.refund([Charge(self.of(cost), charged_at, reset)])

    def traffic(self, steps: Iterable[Step]) -> list[tuple[int, int]]:
        """Go through steps. Returns what was admitted: when, and how much."""
        admitted = []
        last = Outcome(0, self.quota.capacity, 0)
        for step in steps:
            self.world.move(step.move.us(self.quota, self.world.now, last.wait_us))
            cost = step.cost.of(self.quota, last.remaining)
            last = self.check(cost)
            if last.wait_us == 0 and cost:
                admitted.append((self.world.now, cost))
        return admitted


def expect_result(result: object) -> Result:
    assert isinstance(result, Result), f"expected a Result, got {result!r}"
    return result
