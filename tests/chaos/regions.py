"""Three regions, 150 ms apart: one limit, while links are cut or unreliable, a region dies, and a clock is off."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from headgate import Limiter, Rule
from tests.chaos.case import Case, Figures
from tests.chaos.clocks import Clock, ServerOutOfTime
from tests.continents import NAMES, Continents
from tests.integration.limiters import calm
from tests.servers import default_binary

LIMIT = 100
INTERVAL = 1.0
MODES = ("central", "quota", "quota_auto", "synced")
WISHES = {"eu": 50, "us": 30, "ap": 20}
CUT_SECONDS = 10
LATE = INTERVAL + 1.0  # seconds for which regions may not know of one another: an interval, and a call
LATE_WHEN_CUT = 4 * INTERVAL + 1.0  # until they keep to their shares: their patience, an interval, and a timeout


def rules() -> list[Rule]:
    """One for each way; which one a request meets, its endpoint says."""
    ways: tuple[Any, ...] = MODES
    quota = calm(LIMIT, "fixed_window")
    return [Rule(id=way, quota=quota, regions=way, endpoints=[f"/{way}"], failure_mode="closed") for way in ways]


@dataclass
class Crowd:
    """Somebody in every region who asks without a pause, for one user after the other: a new one every few seconds."""

    limiters: dict[str, Limiter]
    mode: str
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
                    if limiter.check(user=user, endpoint=f"/{self.mode}").allowed:
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
def regions(**options: Any) -> Iterator[tuple[Continents, dict[str, Limiter]]]:
    given = rules()
    with Continents(**options) as continents, ExitStack() as stack:
        yield (
            continents,
            {
                name: stack.enter_context(Limiter(given, **continents.options(name, interval=INTERVAL)))
                for name in NAMES
            },
        )
        continents.heal()


def everywhere(limiters: dict[str, Limiter], mode: str, counts: dict[str, int], user: str = "alice") -> int:
    passed: list[bool] = []

    def ask(name: str, count: int) -> None:
        for _ in range(count):
            passed.append(limiters[name].check(user=user, endpoint=f"/{mode}").allowed)

    threads = [threading.Thread(target=ask, args=one) for one in counts.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(passed)


def wishes(figures: Figures, quick: bool) -> None:
    """50, 30 and 20 at the same time, and then more everywhere."""
    with regions() as (_, limiters):
        for mode in MODES:
            passed = first = everywhere(limiters, mode, WISHES)
            for _ in range(2 if quick else 10):
                time.sleep(INTERVAL / 2)
                passed += everywhere(limiters, mode, dict.fromkeys(NAMES, 10))
            bound = 0
            if mode == "synced":
                settle(limiters)
                bound = max(limiter.regions().synced_bound for limiter in limiters.values())
            figures.note(f"{mode}: of 50, 30 and 20 at once passed", first)
            figures.at_most(f"{mode}: in all", passed, LIMIT + bound)


def one_region(figures: Figures, quick: bool) -> None:
    """A user who stays in one region, when shares follow demand."""
    with regions() as (_, limiters):
        stays(figures, limiters["us"], 5 if quick else 10)


def stays(figures: Figures, limiter: Limiter, seconds: float) -> None:
    """All that a user can have who is asked for in one region alone, in so much time."""
    began, passed, at = time.monotonic(), 0, 0.0
    while time.monotonic() < began + seconds:
        if limiter.check(user="alice", endpoint="/quota_auto").allowed:
            passed += 1
            at = time.monotonic() - began
        time.sleep(0.005)
    figures.at_most("quota_auto: missing of the limit in one region", LIMIT - passed, LIMIT // 20)
    figures.within("… all others after", at, 5.0, "s")


def remaining(limiters: dict[str, Limiter], user: str) -> set[int]:
    """What regions say remains of a synced limit. They are asked for it, and nothing is charged."""
    return {limiter.peek(user=user, endpoint="/synced").remaining for limiter in limiters.values()}


def settle(limiters: dict[str, Limiter]) -> None:
    """Until all regions have heard of all: two intervals."""
    until = time.monotonic() + 2 * INTERVAL + 1.0
    while time.monotonic() < until:
        remaining(limiters, "alice")
        time.sleep(0.05)


def healing(figures: Figures, limiters: dict[str, Limiter], healed: float, counted: int) -> None:
    """How long it takes after healing until every region knows of all that was counted of a user during the cut."""
    deadline = time.monotonic() + 30
    while remaining(limiters, "during") != {LIMIT - counted} and time.monotonic() < deadline:
        time.sleep(0.02)
    figures.within("synced: counts converge after", time.monotonic() - healed, 2 * INTERVAL, "s")


@contextmanager
def crowds(limiters: dict[str, Limiter], **options: Any) -> Iterator[dict[str, Crowd]]:
    """Somebody who asks in every way."""
    found = {mode: Crowd(limiters, mode, **options) for mode in MODES}
    with ExitStack() as stack:
        for crowd in found.values():
            stack.enter_context(crowd.asking())
        yield found


def tell(figures: Figures, asked: dict[str, Crowd], late: float, more: int = 0) -> None:
    """Limits hold for every single user; that of synced counts but for what regions let in before they know."""
    for mode, crowd in asked.items():
        bound = crowd.late(late) + more if mode == "synced" else 0
        figures.at_most(f"{mode}: most of one user", crowd.most(), LIMIT + bound)
    figures.exactly("errors to callers", sum(len(crowd.errors) for crowd in asked.values()))


def cut_links(figures: Figures, quick: bool) -> None:
    """Each link in turn; what was asked may arrive, and what was answered is late."""
    counted = 0
    with regions() as (continents, limiters):
        with crowds(limiters, turn=8.0, pause=0.05) as asked:
            for link in (("eu", "us"), ("us", "ap"), ("ap", "eu")):
                time.sleep(2)
                continents.sever(link)
                time.sleep(3 if quick else CUT_SECONDS)
                counted += everywhere(limiters, "synced", dict.fromkeys(NAMES, 4), "during")
                continents.heal()
            healing(figures, limiters, time.monotonic(), counted)
            time.sleep(2)
        excess = max(limiter.regions().synced_excess for limiter in limiters.values())
    tell(figures, asked, LATE_WHEN_CUT, more=-(-LIMIT // len(NAMES)))
    figures.note("synced: above limits, as seen", excess)


def killed(figures: Figures, quick: bool) -> None:
    """A region's server dies, then that of the central region; each comes back with nothing.

    Of a store that lost its data, nobody knows what it had counted. So those who were asked for then are not judged.
    """
    with regions() as (continents, limiters):
        with crowds(limiters) as during:
            for name in ("us", "eu"):
                time.sleep(1)
                continents.servers[name].stop()
                time.sleep(1 if quick else 5)
                continents.servers[name].start()
        for mode, crowd in during.items():
            figures.note(f"{mode}: most of one user, with data lost", crowd.most())
        figures.exactly("errors to callers meanwhile", sum(len(crowd.errors) for crowd in during.values()))
        time.sleep(4)
        with crowds(limiters, turn=60.0, pause=0.05) as afterwards:
            time.sleep(3 if quick else 8)
    tell(figures, afterwards, LATE)


def clock_off(figures: Figures, quick: bool) -> None:
    """A region's server is 5 s ahead."""
    with tempfile.TemporaryDirectory() as directory:
        clock = Clock(directory)
        clock.jump_to(5)
        with (
            regions(servers={"ap": ServerOutOfTime(default_binary(), clock=clock)}) as (_, limiters),
            crowds(limiters, pause=0.05) as asked,
        ):
            time.sleep(4 if quick else 12)
    tell(figures, asked, LATE)


def once(limiter: Limiter, wanted: int) -> int:
    """Requests of a user under the central limit, each asked until there is an answer. How many pass."""
    passed = 0
    for number in range(wanted):
        while True:
            decision = limiter.check(user="once", endpoint="/central", idempotency_key=f"request-{number}")
            if decision.reason != "fail_closed":
                break
            time.sleep(0.05)
        passed += decision.allowed
    return passed


def unreliable(figures: Figures, quick: bool) -> None:
    """Replies are lost after the command was executed; every message arrives three times, the last one late."""
    wanted = 5 if quick else 20  # fewer than the limit
    with regions() as (continents, limiters):
        with continents.unreliable(late=1.0 if quick else 3.0) as echoes:
            with crowds(limiters, pause=0.05) as asked:
                passed = once(limiters["us"], wanted)
                known = everywhere(limiters, "synced", dict.fromkeys(NAMES, 10), "known")
                time.sleep(2 if quick else 20)
            lost = sum(link.lost for link in continents.links.values())
        healed = time.monotonic()
        while remaining(limiters, "known") != {LIMIT - known} and time.monotonic() < healed + 30:
            time.sleep(0.02)
        figures.within("synced: counts are right after", time.monotonic() - healed, 2 * INTERVAL, "s")
        figures.exactly("central: passed of requests with a key", passed, wanted)
        left = limiters["eu"].peek(user="once", endpoint="/central").remaining
        figures.exactly("… and were counted", LIMIT - left, wanted)
        if not quick:
            stays(figures, limiters["us"], 5)
    figures.at_least("replies lost", lost, 1)
    figures.at_least("messages repeated", sum(echo.repeated for echo in echoes), 1)
    tell(figures, asked, LATE_WHEN_CUT, more=-(-LIMIT // len(NAMES)))


CASES = (
    Case("regions", "three regions: 50, 30, 20, and more everywhere", wishes),
    Case("one-region", "three regions: a user who stays in one", one_region),
    Case("regions-cut", "three regions: each link cut for 10 s", cut_links),
    Case("regions-unreliable", "three regions: replies lost, messages twice and late", unreliable, quick=True),
    Case("regions-killed", "three regions: two servers die, one after the other", killed),
    Case("regions-clock", "three regions: the clock of one is 5 s ahead", clock_off),
)
