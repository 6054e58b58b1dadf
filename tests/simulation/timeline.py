"""Virtual time, and a network that loses and delays. Everything follows from what `random` draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any, Literal

Fate = Literal["lost", "unanswered", "late", "twice"]
FATES: tuple[Fate, ...] = ("lost", "unanswered", "late")  # what TCP can do to a call


class Timeline:
    """The true time, from `now_us` for `lasts_us`, and what happens in it."""

    def __init__(self, random: Random, now_us: int, lasts_us: int) -> None:
        self.random = random
        self.now_us = now_us
        self.ends_us = now_us + lasts_us
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()

    def after(self, delay_us: float, event: Callable[[], None]) -> None:
        heappush(self._events, (self.now_us + round(delay_us), next(self._numbers), event))

    def run(self) -> None:
        while self._events and self._events[0][0] < self.ends_us:
            self.now_us, _, event = heappop(self._events)
            event()

    def bursts(
        self, kinds: Sequence[tuple[float, int]], request: Callable[[], None], lives: Callable[[], bool]
    ) -> None:
        """Requests as long as somebody lives: so many with a mean gap between them, and then others of another kind."""

        def arrive(gap_us: float, left: int) -> None:
            if not lives():
                return
            if left == 0:
                gap_us, left = self.random.choice(kinds)
            else:
                request()
            self.after(self.random.expovariate(1 / gap_us), lambda: arrive(gap_us, left - 1))

        arrive(0.0, 0)

    def travel(
        self,
        ways_us: tuple[float, float],
        fate: Fate | None,
        work: Callable[[], Any],
        done: Callable[[Any], None],
        give_up: Callable[[], None],
        *,
        timeout_us: int,
        latest_us: int,
    ) -> None:
        """Have something done elsewhere. Either `done` is called with what came of it, or `give_up`; one of them, once.

        What is lost is not done; what is unanswered is; what is late is done after it was given up; what is done twice
        is done at once, and once more later.
        """
        answered = False

        def conclude(told: Callable[[], None]) -> None:
            nonlocal answered
            if not answered:
                answered = True
                told()

        def execute() -> None:
            result = work()
            if fate in (None, "twice"):
                self.after(ways_us[1], lambda: conclude(lambda: done(result)))

        if fate != "lost":
            late_us = self.random.randint(timeout_us, latest_us) if fate == "late" else 0
            self.after(ways_us[0] + late_us, execute)
        if fate == "twice":
            self.after(ways_us[0] + self.random.randint(0, latest_us), work)
        self.after(timeout_us, lambda: conclude(give_up))
