"""Three regions, 150 ms apart: one limit, while links are cut, a region dies, and a clock is off."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from headgate import Limiter, Rule
from tests.chaos.case import Case, Figures
from tests.chaos.clocks import Clock, ServerOutOfTime
from tests.continents import NAMES, Continents
from tests.integration.limiters import calm
from tests.topologies import topology_binary

LIMIT = 100
INTERVAL = 1.0
MODES = ("central", "quota", "quota_auto", "synced")
WISHES = {"eu": 50, "us": 30, "ap": 20}
CUT_SECONDS = 10
LATE = INTERVAL + 1.0  # seconds for which regions may not know of one another: an interval, and a call
LATE_WHEN_CUT = 4 * INTERVAL + 1.0  # until they keep to their shares: their patience, an interval, and a timeout


def rules_of(mode: Any) -> list[Rule]:
    return [Rule(id=mode, quota=calm(LIMIT, "fixed_window"), regions=mode, failure_mode="closed")]


@dataclass
class Crowd:
    """Somebody in every region who asks without a pause, for one user after the other: a new one every few seconds."""

    limiters: dict[str, Limiter]
    turn: float = 4.0  # seconds for each user
    passed: dict[tuple[str, str], list[float]] = field(default_factory=dict)  # by user and region: when
    errors: list[BaseException] = field(default_factory=list)
    pause: float = 0.01

    def user(self) -> str:
        return f"user-{int(time.monotonic() / self.turn)}"

    @contextmanager
    def asking(self) -> Iterator[None]:
        stop = threading.Event()

        def ask(name: str, limiter: Limiter) -> None:
            while not stop.wait(self.pause):
                user = self.user()
                try:
                    if limiter.check(user=user).allowed:
                        self.passed.setdefault((user, name), []).append(time.monotonic())
                except Exception as error:  # noqa: BLE001 - the case counts it
                    self.errors.append(error)

        threads = [threading.Thread(target=ask, args=one) for one in self.limiters.items()]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            for thread in threads:
                thread.join()

    def most(self) -> int:
        """Of one user, in all regions together."""
        users = {user for user, _ in self.passed}
        return max(sum(len(self.passed.get((user, name), ())) for name in NAMES) for user in users)

    def late(self, seconds: float) -> int:
        """The most that was let in of one user within so much time."""
        found = 0
        for user in {user for user, _ in self.passed}:
            times = sorted(at for name in NAMES for at in self.passed.get((user, name), ()))
            first = 0
            for place, at in enumerate(times):
                while at - times[first] > seconds:
                    first += 1
                found = max(found, place - first + 1)
        return found


@contextmanager
def regions(stack: ExitStack, mode: str, **options: Any) -> Iterator[tuple[Continents, dict[str, Limiter]]]:
    continents = stack.enter_context(Continents(**options))
    with ExitStack() as limiters:
        given = rules_of(mode)
        yield (
            continents,
            {
                name: limiters.enter_context(Limiter(given, **continents.options(name, interval=INTERVAL)))
                for name in NAMES
            },
        )
        continents.heal()


def everywhere(limiters: dict[str, Limiter], counts: dict[str, int], user: str = "alice") -> int:
    passed: list[bool] = []

    def ask(name: str, count: int) -> None:
        for _ in range(count):
            passed.append(limiters[name].check(user=user).allowed)

    threads = [threading.Thread(target=ask, args=one) for one in counts.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(passed)


def wishes(figures: Figures, quick: bool) -> None:
    """50, 30 and 20 at the same time, and then more everywhere."""
    for mode in MODES:
        with ExitStack() as stack, regions(stack, mode) as (_, limiters):
            passed = first = everywhere(limiters, WISHES)
            for _ in range(2 if quick else 10):
                time.sleep(INTERVAL / 2)
                passed += everywhere(limiters, dict.fromkeys(NAMES, 10))
            bound = 0
            if mode == "synced":
                settle(limiters)
                bound = max(limiter.regions().synced_bound for limiter in limiters.values())
            figures.note(f"{mode}: of 50, 30 and 20 at once passed", first)
            figures.at_most(f"{mode}: in all", passed, LIMIT + bound)


def one_region(figures: Figures, quick: bool) -> None:
    """A user who stays in one region, when shares follow demand."""
    with ExitStack() as stack, regions(stack, "quota_auto") as (_, limiters):
        began, passed, at = time.monotonic(), 0, 0.0
        while time.monotonic() < began + (5 if quick else 10):
            if limiters["us"].check(user="alice").allowed:
                passed += 1
                at = time.monotonic() - began
            time.sleep(0.005)
        figures.at_most("missing of the limit", LIMIT - passed, LIMIT // 20)
        figures.within("… all others after", at, 5.0, "s")


def settle(limiters: dict[str, Limiter]) -> None:
    """Until all regions have heard of all: two intervals, in which the key is in use and nothing is charged."""
    until = time.monotonic() + 2 * INTERVAL + 1.0
    while time.monotonic() < until:
        for limiter in limiters.values():
            limiter.peek(user="alice")
        time.sleep(0.05)


def healing(figures: Figures, limiters: dict[str, Limiter], healed: float, counted: int) -> None:
    """How long it takes after healing until every region knows of all that was counted of a user during the cut."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        remaining = {limiter.peek(user="during").remaining for limiter in limiters.values()}  # in use, nothing charged
        if remaining == {LIMIT - counted}:
            break
        time.sleep(0.02)
    figures.within("synced: counts converge after", time.monotonic() - healed, 2 * INTERVAL + 1.0, "s")


def faults(
    figures: Figures, fault: Callable[[Continents, dict[str, Limiter]], int], modes: Sequence[str], **options: Any
) -> None:
    """Have a crowd ask in every way while something happens; limits must hold for every single user."""
    for mode in modes:
        with ExitStack() as stack, regions(stack, mode, **options) as (continents, limiters):
            crowd = Crowd(limiters, turn=8.0, pause=0.05)
            with crowd.asking():
                time.sleep(2)
                counted = fault(continents, limiters)
                if mode == "synced":
                    healing(figures, limiters, time.monotonic(), counted)
                time.sleep(2)
            if mode == "synced":
                share = -(-LIMIT // len(NAMES))
                figures.at_most("synced: most of one user", crowd.most(), LIMIT + share + crowd.late(LATE_WHEN_CUT))
                seen = max(limiter.regions().synced_excess for limiter in limiters.values())
                figures.note("synced: above limits, as seen", seen)
            else:
                figures.at_most(f"{mode}: most of one user", crowd.most(), LIMIT)
            figures.exactly(f"{mode}: errors to callers", len(crowd.errors))


def cut_links(figures: Figures, quick: bool) -> None:
    """Each link in turn; what was asked may arrive, and what was answered is late."""
    seconds = 3 if quick else CUT_SECONDS

    def fault(continents: Continents, limiters: dict[str, Limiter]) -> int:
        counted = 0
        for link in (("eu", "us"), ("us", "ap"), ("ap", "eu")):
            time.sleep(1)
            continents.sever(link)
            time.sleep(seconds)
            counted += everywhere(limiters, dict.fromkeys(NAMES, 4), "during")
            continents.heal()
        return counted

    faults(figures, fault, MODES)


def killed(figures: Figures, quick: bool) -> None:
    """A region's server dies, also that of the central region; it comes back with nothing."""

    def fault(continents: Continents) -> None:
        for name in ("us", "eu"):
            continents.servers[name].stop()
            time.sleep(1 if quick else 5)
            continents.servers[name].start()
            time.sleep(1)

    # Of a store that has lost its data, nobody knows what it had counted: each loss may let as much in again. So users
    # who were asked for while it was lost are not judged by the limit, but those are who came later.
    for mode in MODES:
        with ExitStack() as stack, regions(stack, mode) as (continents, limiters):
            crowd = Crowd(limiters)
            with crowd.asking():
                time.sleep(2)
                fault(continents)
            figures.exactly(f"{mode}: errors to callers", len(crowd.errors))
            figures.note(f"{mode}: most of one user, with data lost", crowd.most())
            after = Crowd(limiters, turn=60.0)
            time.sleep(2)
            with after.asking():
                time.sleep(2 if quick else 6)
            bound = after.late(LATE) if mode == "synced" else 0
            figures.at_most(f"{mode}: most of one user afterwards", after.most(), LIMIT + bound)


def clock_off(figures: Figures, quick: bool) -> None:
    """A region's server is 5 s ahead."""
    for mode in MODES:
        with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
            clock = Clock(directory)
            clock.jump_to(5)
            servers: dict[str, Any] = {
                name: ServerOutOfTime(topology_binary(), clock=clock) if name == "ap" else None for name in NAMES
            }
            with regions(stack, mode, servers=servers) as (_, limiters):
                crowd = Crowd(limiters, pause=0.05)
                with crowd.asking():
                    time.sleep(4 if quick else 12)
            bound = crowd.late(LATE) if mode == "synced" else 0
            figures.at_most(f"{mode}: most of one user", crowd.most(), LIMIT + bound)
            figures.exactly(f"{mode}: errors to callers", len(crowd.errors))


CASES = (
    Case("regions", "three regions: 50, 30, 20, and more everywhere", wishes),
    Case("one-region", "three regions: a user who stays in one", one_region),
    Case("regions-cut", "three regions: each link cut for 10 s", cut_links),
    Case("regions-killed", "three regions: two servers die, one after the other", killed),
    Case("regions-clock", "three regions: the clock of one is 5 s ahead", clock_off),
)
