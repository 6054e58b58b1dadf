"""A world in virtual time: one store, nodes that hold leases, and a network that loses and delays.

Everything follows from a seed. A call may get lost on its way there (it times out, and nothing was done), or on its way
back (it times out, and it was done), or be late (it times out, and is done after that). A node may crash: what it held
is gone, and what it had asked for is done all the same. Its clock has an offset, and does not run quite right. TCP does
not deliver twice, so nothing is done twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

from headgate.core.check import Charge, Check, Group, Result
from headgate.core.key import key_template
from headgate.core.quota import BUCKETS, Quota
from headgate.errors import StoreError, StoreTimeout
from headgate.features.leases.calls import Decided
from headgate.features.leases.lease import LIFE_US
from headgate.features.leases.leases import TICK_US, Leases
from headgate.stores.memory import MemoryStore
from headgate.testing import FakeClock
from tests.simulation.timeline import FATES, Timeline

ALGORITHMS = ("fixed_window", "sliding_window_counter", "token_bucket", "leaky_bucket", "gcra")
EPOCH_US = 1_700_000_000_000_000
TIMEOUT_US = 50_000
KINDS = ((1_000.0, 50), (4_000.0, 20), (60_000.0, 3), (250_000.0, 1))  # of bursts: gaps, and how many requests


@dataclass(frozen=True)
class Terms:
    """What a seed means."""

    quota: Quota
    nodes: int
    subjects: int
    costs: tuple[int, ...]
    exact: Quota | None  # of a second rule, which is not leased
    faults: float  # the share of calls that go wrong
    crashes: float  # how often a node crashes, per second
    latency_us: int
    ends_us: int

    @classmethod
    def of(cls, random: Random) -> Terms:
        algorithm = random.choice(ALGORITHMS)
        limit = random.choice((5, 50, 200, 1_000))
        window = random.choice((0.25, 1.0, 4.0))
        burst = random.choice((None, limit * 2, max(1, limit // 4))) if algorithm in BUCKETS else None
        faulty = random.random() < 0.7
        return cls(
            quota=Quota(limit, window, burst=burst, algorithm=algorithm),  # type: ignore[arg-type]
            nodes=random.randint(1, 3),
            subjects=random.choice((1, 1, 3)),
            costs=random.choice(((1,), (1,), (1, 2, 7))),
            exact=random.choice((None, None, None, None, Quota(max(1, limit // 2), 1.0, algorithm="fixed_window"))),
            faults=random.choice((0.02, 0.2)) if faulty else 0.0,
            crashes=random.choice((0.0, 1.0)) if faulty else 0.0,
            latency_us=random.choice((100, 1_000, 10_000)),
            ends_us=1_300_000,
        )


class Admission(NamedTuple):
    """Units that were let in: when they were charged, if that was at once, else when they were taken from a lease."""

    at_us: int
    units: int


class World(Timeline):
    """The store, the network and the time."""

    def __init__(self, seed: int) -> None:
        random = Random(seed)
        self.terms = Terms.of(random)
        began_us = EPOCH_US + random.randrange(4_000_000)  # windows begin and end somewhere
        super().__init__(random, began_us, self.terms.ends_us)
        self.store = MemoryStore(clock=_Clock(self))
        self.admitted: dict[str, list[Admission]] = {}  # of the leased rule, by subject
        self.exact: dict[str, list[Admission]] = {}
        self.late: list[str] = []  # tokens that were spent when their slice should have ended
        self.counted: Counter[str] = Counter()
        self.nodes = [Node(self, number) for number in range(self.terms.nodes)]

    def call(self, work: Callable[[], Any], done: Callable[[Any], None], failed: Callable[[StoreError], None]) -> None:
        """Have the store do something, over the network. Either `done` or `failed` is called, later."""
        random, terms = self.random, self.terms
        there, back = (random.expovariate(1 / terms.latency_us) for _ in range(2))
        fate = random.choice(FATES) if random.random() < terms.faults else None

        def give_up() -> None:
            self.counted["timeouts"] += 1
            failed(StoreTimeout("no answer"))

        self.travel((there, back), fate, work, done, give_up, timeout_us=TIMEOUT_US, latest_us=2_000_000)


class _Clock(FakeClock):
    """The store's clock: the world's time."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def now_us(self) -> int:
        return self._world.now_us


class Node:
    """A process with leases, and requests that come in bursts."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.life = 0
        self._start()
        self._ask(self.life)

    def _start(self) -> None:
        """Begin with nothing: for the first time, or after a crash."""
        world = self.world
        self.life += 1
        life = self.life
        offset, drift = world.random.randint(0, 10**12), 1 + world.random.uniform(-5e-4, 5e-4)
        self.leases = Leases(
            lambda: offset + int((world.now_us - EPOCH_US) * drift),
            max_keys=world.random.choice((1, 1_000)),
            notify=lambda: world.after(0, lambda: self._fetch(life)),
        )
        self.spent = 0  # from leases, since the start
        world.after(TICK_US, lambda: self._tick(life))
        if world.terms.crashes:
            world.after(world.random.expovariate(world.terms.crashes) * 1e6, lambda: self._crash(life))

    def _crash(self, life: int) -> None:
        if life == self.life:
            self.world.counted["crashes"] += 1
            if self.world.random.random() < 0.3:
                self._give_back(self.leases.end())  # it was only told to stop
            self._start()
            self._ask(self.life)

    def _ask(self, life: int) -> None:
        self.world.bursts(KINDS, lambda: self._request(life), lambda: life == self.life)

    def _request(self, life: int) -> None:
        terms, random = self.world.terms, self.world.random
        subject, cost = f"s{random.randrange(terms.subjects)}", random.choice(terms.costs)
        checks = [Check("leased", key_template("user", "leased", terms.quota.algorithm), subject, terms.quota, cost)]
        if terms.exact is not None:
            checks.append(Check("exact", key_template("user", "exact", "fixed_window"), subject, terms.exact, cost))
        self.world.counted["requests"] += 1
        trip = _Trip(self.world.now_us, tuple(checks))
        steps = self.leases.decide([Group(trip.checks)], LEASED, inline=random.random() < 0.5)
        self._drive(life, steps, lambda decided: self._decided(trip, decided), trip)

    def _decided(self, trip: _Trip, decided: Decided) -> None:
        world, (answer,) = self.world, decided.answers
        first = trip.checks[0]
        held = first.cost - trip.asked  # what was taken from the lease at the start
        if not isinstance(answer, Result):
            self.spent += held
            return
        if any(outcome.wait_us for outcome in answer.outcomes):
            return
        world.counted["admitted"] += 1
        if trip.charged_us == 0:
            world.counted["from leases"] += 1
            self._look_at_slice(first)
        admitted = world.admitted.setdefault(first.subject, [])
        if held:
            admitted.append(Admission(trip.began_us, held))
        if trip.asked:
            admitted.append(Admission(world.now_us if trip.refused else trip.charged_us, trip.asked))
        self.spent += first.cost if trip.refused else held
        if len(trip.checks) > 1:
            world.exact.setdefault(first.subject, []).append(Admission(trip.charged_us, first.cost))

    def _look_at_slice(self, check: Check) -> None:
        """A request was paid from a slice alone: it must be of this window, and not be old."""
        piece, now_us, quota = (
            self.leases._table.of(check.key_template)[check.subject].slice,
            self.world.now_us,
            check.quota,
        )
        if now_us - piece.at_us > LIFE_US:
            self.world.late.append(f"a slice of {piece.at_us} was spent at {now_us}")
        if quota.algorithm not in BUCKETS and now_us // quota.window_us != piece.at_us // quota.window_us:
            self.world.late.append(f"a slice of another window, of {piece.at_us}, was spent at {now_us}")

    def _fetch(self, life: int) -> None:
        if life == self.life:
            self._drive(life, self.leases.fetch(), lambda _: None)

    def _tick(self, life: int) -> None:
        if life == self.life:
            self._give_back(self.leases.tend())
            self.world.after(TICK_US, lambda: self._tick(life))

    def _give_back(self, charges: list[Charge]) -> None:
        leases = self.leases
        if charges:
            self.world.counted["returns"] += 1
            self.world.call(
                lambda: self.world.store.adjust(charges),
                lambda _: leases.note_return(charges),
                lambda error: leases.note_return(charges, error),
            )

    def _drive(self, life: int, steps: Any, done: Callable[[Any], None], trip: _Trip | None = None) -> None:
        """Take steps, with the network in between; not on, if the node has crashed meanwhile."""

        def step(take: Callable[[], list[Group]]) -> None:
            if life != self.life:
                return
            try:
                groups = take()
            except StopIteration as stop:
                done(stop.value)
                return
            self.world.counted["calls"] += 1
            if trip is not None:
                trip.asks(groups[0])
            store = self.world.store
            self.world.call(lambda: store.check(groups), answered, lambda error: step(lambda: steps.throw(error)))

        def answered(results: list[Result]) -> None:
            if trip is not None:
                trip.hears(results[0])
            step(lambda: steps.send(results))

        step(lambda: next(steps))


class _Trip:
    """A request on its way, and what the store was asked and said."""

    def __init__(self, began_us: int, checks: tuple[Check, ...]) -> None:
        self.began_us = began_us
        self.checks = checks
        self.asked = 0  # units of the leased rule
        self.charged_us = 0
        self.refused = False

    def asks(self, group: Group) -> None:
        self.asked = sum(check.cost for check in group.checks if check.rule == "leased")

    def hears(self, result: Result) -> None:
        self.charged_us = result.now_us
        self.refused = any(outcome.wait_us for outcome in result.outcomes)


LEASED = frozenset({"leased"})


def excess(quota: Quota, admissions: list[Admission]) -> int:
    """By how many units more was let in than the quota allows; buckets may shift by what a slice lives."""
    admissions = sorted(admissions)
    window = quota.window_us
    if quota.algorithm in BUCKETS:  # a bucket that holds what flows in while a slice lives, too
        capacity = quota.burst * window + LIFE_US * quota.limit
        level, last, worst = 0, 0, 0
        for at_us, units in admissions:
            level = max(0, level - (at_us - last) * quota.limit) + units * window
            last, worst = at_us, max(worst, level - capacity)
        return -(-worst // window)
    counts: Counter[int] = Counter()
    worst = 0
    for at_us, units in admissions:
        bucket, past = divmod(at_us, window)
        counts[bucket] += units
        before = counts[bucket - 1] * (window - past) // window if quota.algorithm != "fixed_window" else 0
        worst = max(worst, counts[bucket] + before - quota.limit)
    return worst
