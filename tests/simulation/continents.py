"""Regions in virtual time: stores with clocks of their own, nodes in each, and links that lose, delay and get cut.

Everything follows from a seed. A call to another region may get lost on its way there, or on its way back, or be late:
then it is given up, and done all the same. Or it is done twice, the second time late. A link may be cut for a while, in
both directions. Nodes crash and begin with nothing. Clocks of stores are off by seconds, and those of nodes do not run
quite right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Literal

from headgate.core.check import Answer, Check, Group, Result
from headgate.core.key import key_template
from headgate.core.quota import Quota
from headgate.errors import StoreTimeout
from headgate.features.regions.division import by_weight
from headgate.features.regions.link import HERE, Duty, Steps, StoreCall
from headgate.features.regions.router import Router
from headgate.regions import Member, Region
from headgate.rules.holder import Holder
from headgate.rules.rule import Rule
from headgate.rules.snapshot import Snapshot
from headgate.stores.memory import MemoryStore
from headgate.testing import FakeClock
from tests.simulation.timeline import FATES, Timeline

NAMES = ("eu", "us", "ap", "sa")
EPOCH_US = 1_700_000_000_000_000
TIMEOUT_US = 1_000_000
LOCAL_US = 50_000  # in which a check by the region's own store is decided, or never
SECONDS = 30
KINDS = ((5_000.0, 60), (100_000.0, 30), (1_000_000.0, 3), (6_000_000.0, 1))  # of bursts: gaps, and how many requests
INTERVAL_US = 1_000_000
STALE_US = 6_000_000  # no older is what a region knows of others that it can reach, or did until lately

Mode = Literal["quota_auto", "synced"]


@dataclass(frozen=True)
class Terms:
    """What a seed means."""

    quota: Quota
    weights: dict[str, int]
    nodes: int  # in each region
    subjects: int
    costs: tuple[int, ...]
    faults: float  # the share of calls to other regions that go wrong
    cuts: float  # how often a link is cut, per second
    crashes: float  # how often a node crashes, per second
    skew_us: int  # by how much the stores' clocks differ, at most
    latency_us: int
    floor: float

    @classmethod
    def of(cls, random: Random, mode: Mode) -> Terms:
        algorithms = ["fixed_window", "sliding_window_counter"]
        if mode == "quota_auto":
            algorithms.append("sliding_window_log")
        faulty = random.random() < 0.7
        names = NAMES[: random.randint(2, 4)]
        return cls(
            quota=Quota(random.choice((10, 40, 100)), random.choice((10, 15, 40)), algorithm=random.choice(algorithms)),  # type: ignore[arg-type]
            weights={name: random.choice((1, 1, 3)) for name in names},
            nodes=random.randint(1, 2),
            subjects=random.choice((1, 1, 2)),
            costs=random.choice(((1,), (1,), (1, 3))),
            faults=random.choice((0.02, 0.2)) if faulty else 0.0,
            cuts=random.choice((0.0, 0.2)) if faulty else 0.0,
            crashes=random.choice((0.0, 0.1)) if faulty else 0.0,
            skew_us=random.choice((0, 5_000_000)),
            latency_us=random.choice((1_000, 75_000)),
            floor=random.choice((0.05, 0.3)),
        )


@dataclass(frozen=True)
class Admission:
    """Units that were let in."""

    region: str
    at_us: int  # the true time
    number: int  # of the window, by the clock of the region's store
    left_us: int  # of that window
    units: int
    fresh: bool  # a node of the region has begun to be asked for this key only lately


class World(Timeline):
    """Regions, links and the true time."""

    def __init__(self, seed: int, mode: Mode) -> None:
        random = Random(f"{mode} {seed}")
        self.mode = mode
        self.terms = Terms.of(random, mode)
        super().__init__(random, EPOCH_US + random.randrange(40_000_000), SECONDS * 1_000_000)
        self.counted: Counter[str] = Counter()
        self.admitted: dict[str, list[Admission]] = {}
        self.cut: dict[frozenset[str], int] = {}  # until when
        skew_us = self.terms.skew_us
        self.clocks = {name: _Clock(self, self.random.randint(-skew_us, skew_us)) for name in self.terms.weights}
        self.stores = {name: _Store(self, name, clock) for name, clock in self.clocks.items()}
        self.active_us: dict[tuple[str, str], dict[int, tuple[int, int]]] = {}  # of nodes: since when, and last
        rule = Rule(id="shared", quota=self.terms.quota, regions=mode)
        self.holder = Holder(Snapshot([rule]))
        self.key_template = key_template("user", "shared", self.terms.quota.algorithm)
        self.nodes = [Node(self, name) for name in self.terms.weights for _ in range(self.terms.nodes)]
        if self.terms.cuts:
            self._cut()

    def let_in(self, region: str, check: Check, store_us: int) -> None:
        self.counted["admitted"] += 1
        number, left_us = store_us // check.quota.window_us, check.quota.window_us - store_us % check.quota.window_us
        fresh = any(
            self.now_us - since_us < STALE_US
            for since_us, _ in self.active_us.get((region, check.subject), {}).values()
        )
        admission = Admission(region, self.now_us, number, left_us, check.cost, fresh)
        self.admitted.setdefault(check.subject, []).append(admission)

    def touched(self, region: str, node: Node, subject: str) -> None:
        """A node is asked for a key: since when it has been, without a long pause."""
        nodes = self.active_us.setdefault((region, subject), {})
        since_us, last_us = nodes.get(id(node), (self.now_us, self.now_us))
        nodes[id(node)] = (since_us if self.now_us - last_us <= INTERVAL_US else self.now_us, self.now_us)

    def _cut(self) -> None:
        wait_us = self.random.expovariate(self.terms.cuts) * 1e6

        def cut() -> None:
            link = frozenset(self.random.sample(sorted(self.terms.weights), 2))
            self.cut[link] = self.now_us + self.random.randint(1_000_000, 10_000_000)
            self.counted["cuts"] += 1
            self._cut()

        self.after(wait_us, cut)

    def call(self, here: str, ask: StoreCall, done: Callable[[Any], None]) -> None:
        """Have a store do something. `done` is called later, with its answer or a `StoreTimeout`."""
        random, terms = self.random, self.terms
        there = ask.region if ask.region != HERE else here
        far = there != here
        latency = terms.latency_us if far else 200
        out, back = (random.expovariate(1 / latency) for _ in range(2))
        fate = random.choice((*FATES, "twice")) if far and random.random() < terms.faults else None
        if far and self.cut.get(frozenset((here, there)), 0) > self.now_us:
            fate = random.choice(FATES[:2])
        self.travel(
            (out, back),
            fate,
            lambda: getattr(self.stores[there], ask.method)(*ask.arguments),
            done,
            lambda: done(StoreTimeout("no answer")),
            timeout_us=TIMEOUT_US if far else LOCAL_US,
            latest_us=5_000_000,
        )


class _Store(MemoryStore):
    """Notes what it lets in, at the moment at which it does."""

    def __init__(self, world: World, region: str, clock: FakeClock) -> None:
        super().__init__(clock=clock)
        self._world = world
        self._region = region

    def check(self, groups: Sequence[Group]) -> list[Answer]:
        results = super().check(groups)
        for group, result in zip(groups, results, strict=True):
            assert isinstance(result, Result)
            (check,) = group.checks
            if not group.peek and result.outcomes[0].wait_us == 0:
                self._world.let_in(self._region, check, result.now_us)
        return results


class _Clock(FakeClock):
    """A store's clock: the world's time, and a bit more or less."""

    def __init__(self, world: World, offset_us: int) -> None:
        super().__init__()
        self._world = world
        self._offset_us = offset_us

    def now_us(self) -> int:
        return self.at(self._world.now_us)

    def at(self, true_us: int) -> int:
        """What it shows at a true time."""
        return true_us + self._offset_us


class _NodeClock(FakeClock):
    """A node's clock, which only goes forward, and not quite right."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._offset_us = world.random.randint(0, 10**12)
        self._drift = 1 + world.random.uniform(-5e-4, 5e-4)

    def now_us(self) -> int:
        return self._offset_us + int((self._world.now_us - EPOCH_US) * self._drift)


class Node:
    """A process of a region, with requests that come in bursts."""

    def __init__(self, world: World, region: str) -> None:
        self.world = world
        self.region = region
        self.life = 0
        self._start()

    def _start(self) -> None:
        world, terms = self.world, self.world.terms
        self.life += 1
        members = [Member(name, store, terms.weights[name]) for name, store in world.stores.items()]
        region = Region(self.region, members, central="eu", floor=terms.floor)
        clock = _NodeClock(world)
        self.router = Router(region, world.holder, clock, "open", lambda _: None)
        for duty in self.router.duties:
            self._work(self.life, duty)
        life = self.life
        world.bursts(KINDS, lambda: self._request(life), lambda: life == self.life)
        if terms.crashes:
            world.after(world.random.expovariate(terms.crashes) * 1e6, lambda: self._crash(life))

    def _crash(self, life: int) -> None:
        if life == self.life:
            self.world.counted["crashes"] += 1
            for nodes in self.world.active_us.values():
                nodes.pop(id(self), None)
            self._start()

    def _work(self, life: int, duty: Duty) -> None:
        """One duty after the other, each when it is due; a look every 50 ms."""
        if life != self.life:
            return
        due_us = duty.due_us()
        if due_us == 0:
            self._drive(life, duty.work(), lambda _: self._work(life, duty))
        else:
            self.world.after(50_000 if due_us is None else min(due_us, 50_000), lambda: self._work(life, duty))

    def _request(self, life: int) -> None:
        world, terms = self.world, self.world.terms
        subject, cost = f"s{world.random.randrange(terms.subjects)}", world.random.choice(terms.costs)
        check = Check("shared", world.key_template, subject, terms.quota, cost)
        world.counted["requests"] += 1
        world.touched(self.region, self, subject)
        self._drive(life, self.router.decide([Group((check,))]), lambda _: None)

    def _drive(self, life: int, steps: Steps[Any], done: Callable[[Any], None]) -> None:
        """Take steps, with the network in between; not on, if the node has crashed meanwhile."""

        def step(answers: list[Any] | None) -> None:
            if life != self.life:
                return
            try:
                asks = steps.send(answers)  # type: ignore[arg-type]  # None begins it
            except StopIteration as stop:
                done(stop.value)
                return
            found: dict[int, Any] = {}

            def heard(place: int, answer: Any) -> None:
                found[place] = answer
                if len(found) == len(asks):
                    step([found[one] for one in range(len(asks))])

            for place, ask in enumerate(asks):
                self.world.call(self.region, ask, partial(heard, place))

        step(None)


def faults_of_shares(world: World) -> Iterator[str]:
    """Whether all regions together have let in more than the limit."""
    quota = world.terms.quota
    for subject, admissions in world.admitted.items():
        if quota.algorithm == "fixed_window":
            windows: Counter[int] = Counter()
            for one in admissions:
                windows[one.number] += one.units
            most = max(windows.values())
        elif quota.algorithm == "sliding_window_log":
            most = max(
                sum(one.units for one in admissions if last.at_us - quota.window_us < one.at_us <= last.at_us)
                for last in admissions
            )
        else:
            most = max(_weight(world, admissions[: place + 1]) for place in range(len(admissions)))
        if most > quota.limit:
            yield f"{most} of {quota.limit} were let in for {subject}"


def _weight(world: World, admissions: list[Admission]) -> int:
    """What all regions' counts come to when the last of these was let in, each by its own clock."""
    at_us = admissions[-1].at_us
    return sum(
        _counted(world, [one for one in admissions if one.region == name], world.clocks[name].at(at_us))
        for name in world.terms.weights
    )


def _counted(world: World, admissions: list[Admission], store_us: int) -> int:
    """What these count for at a time of a store, by its algorithm."""
    quota = world.terms.quota
    number, past_us = divmod(store_us, quota.window_us)
    current = sum(one.units for one in admissions if one.number == number)
    previous = sum(one.units for one in admissions if one.number == number - 1)
    if quota.algorithm == "fixed_window":
        return current
    return current + previous * (quota.window_us - past_us) // quota.window_us


def faults_of_counts(world: World) -> Iterator[str]:
    """Whether a region has let in more than it might, by what it must have known of the others.

    It must know what they had counted some seconds ago; unless a node was asked for the key only lately, or it kept to
    its share.
    """
    limit = world.terms.quota.limit
    shares = by_weight(limit, world.terms.weights)
    for subject, admissions in world.admitted.items():
        for place, last in enumerate(admissions):
            store_us = world.clocks[last.region].at(last.at_us)
            before = admissions[: place + 1]
            own = _counted(world, [one for one in before if one.region == last.region], store_us)
            known = [one for one in before if one.region != last.region and one.at_us <= last.at_us - STALE_US]
            others = _counted(world, known, store_us)
            if own + others > limit and own > shares[last.region] and not last.fresh:
                yield f"{last.region} let in {own} for {subject} when it had to know of {others} others (of {limit})"
                return
