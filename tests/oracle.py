"""The oracle: what each algorithm must answer, worked out from its definition alone (DESIGN.md, section 5).

It keeps the plain history of what was admitted, (time, cost) after (time, cost), and for every question goes through
all of it again with exact fractions. Waits are not calculated but searched for: the first whole microsecond at which
the definition lets a cost in. Slow, short, and unlike the code that it judges; it must never import that.

Time goes forward only: what a clock that goes back means is laid down in laws (tests/property/test_laws.py).
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import ceil, floor
from typing import NamedTuple

History = list[tuple[int, int]]
Room = Callable[[int], Fraction | int]  # what fits at a time; below 0 when a changed limit left more in than it holds

LOG_STEPS = 16_384  # a log of a larger limit than this knows that many points in time per window


class Answer(NamedTuple):
    """Times are in microseconds from now."""

    wait: int | None  # None: never
    remaining: int
    reset: int

    @property
    def allowed(self) -> bool:
        return self.wait == 0


class Oracle:
    """One key under one quota. Times are in microseconds."""

    def __init__(self, algorithm: str, limit: int, window: int, burst: int) -> None:
        self._room_of = DEFINITIONS[algorithm]
        self._bucket = algorithm in ("token_bucket", "leaky_bucket", "gcra")
        self.limit, self.window, self.burst = limit, window, burst
        self.history: History = []

    @property
    def capacity(self) -> int:
        return self.burst if self._bucket else self.limit

    def check(self, now: int, cost: int) -> Answer:
        """Ask, and charge if it is allowed. The figures are those after the charge."""
        wait = self._wait(self._room(), now, cost)
        if wait == 0:
            self.charge(now, cost)
        return self.peek(now, 0)._replace(wait=wait)

    def peek(self, now: int, cost: int) -> Answer:
        """Ask only."""
        room = self._room()
        reset = self._wait(room, now, self.capacity)
        assert reset is not None
        return Answer(self._wait(room, now, cost), max(0, floor(room(now))), reset)

    def charge(self, now: int, cost: int) -> None:
        if cost > 0:
            self.history.append((now, cost))

    def settle(self, place: int, cost: int) -> None:
        """As if the charge at this place of the history had been of this cost: never at all, if 0."""
        self.history[place] = (self.history[place][0], cost)

    def refund(self, place: int) -> None:
        """As if the charge at this place of the history had never been."""
        del self.history[place]

    def refund_is_exact(self, now: int, place: int) -> bool:
        """Whether a store can give back exactly that charge: the bucket has been in use all along without it.

        A bucket that would have been full in between, but for this charge, has refilled a part of it already; only
        a whole history could tell how much. A store may take the rounding of times, 2 µs, for such a moment.
        Windows do not forget, and give back everything.
        """
        charged_at = self.history[place][0]
        if not self._bucket or now == charged_at:
            return True
        return self._room(self.history[:place])(now + 2) < self.capacity

    def _room(self, history: History | None = None) -> Room:
        return self._room_of(self.history if history is None else history, self.limit, self.window, self.burst)

    def _wait(self, room: Room, now: int, cost: int) -> int | None:
        """The first whole microsecond from now at which `cost` fits, if nobody comes: room only grows then."""
        if cost > self.capacity:
            return None
        if cost <= room(now):
            return 0
        # Too early, and late enough: by then, two windows are over, and a bucket is full and its debt paid.
        most = self.burst + sum(charged for _, charged in self.history)
        early, late = 0, 2 * self.window + ceil(Fraction(most * self.window, self.limit))
        assert cost <= room(now + late)
        while late - early > 1:
            middle = (early + late) // 2
            early, late = (middle, late) if cost > room(now + middle) else (early, middle)
        return late


def _fixed_window(history: History, limit: int, window: int, burst: int) -> Room:
    """The count of bucket floor(now/W) may reach N."""
    return lambda now: limit - sum(cost for time, cost in history if time // window == now // window)


def _sliding_window_log(history: History, limit: int, window: int, burst: int) -> Room:
    """The sum over (now-W, now] may reach N. A large log stamps each check at the end of its step."""
    step = ceil(Fraction(window, LOG_STEPS)) if limit > LOG_STEPS else 1
    stamped = [(ceil(Fraction(time, step)) * step, cost) for time, cost in history]
    return lambda now: limit - sum(cost for stamp, cost in stamped if stamp > now - window)


def _sliding_window_counter(history: History, limit: int, window: int, burst: int) -> Room:
    """floor(prev * (W - elapsed) / W) + curr may reach N."""

    def room(now: int) -> int:
        bucket, elapsed = divmod(now, window)
        current = sum(cost for time, cost in history if time // window == bucket)
        previous = sum(cost for time, cost in history if time // window == bucket - 1)
        return limit - current - floor(Fraction(previous * (window - elapsed), window))

    return room


def _token_bucket(history: History, limit: int, window: int, burst: int) -> Room:
    """Tokens come in at N/W, up to B; a check takes its cost."""
    rate = Fraction(limit, window)
    tokens, last = Fraction(burst), 0
    for time, cost in history:
        tokens = min(Fraction(burst), tokens + (time - last) * rate) - cost
        last = time
    return lambda now: min(Fraction(burst), tokens + (now - last) * rate)


def _leaky_bucket(history: History, limit: int, window: int, burst: int) -> Room:
    """A level leaks at N/W; a check adds its cost, up to B."""
    rate = Fraction(limit, window)
    level, last = Fraction(0), 0
    for time, cost in history:
        level = max(Fraction(0), level - (time - last) * rate) + cost
        last = time
    return lambda now: burst - max(Fraction(0), level - (now - last) * rate)


def _gcra(history: History, limit: int, window: int, burst: int) -> Room:
    """max(now, tat) + c * W/N - now may reach B * W/N."""
    interval = Fraction(window, limit)
    arrival = Fraction(0)
    for time, cost in history:
        arrival = max(Fraction(time), arrival) + cost * interval
    return lambda now: burst - (max(Fraction(now), arrival) - now) / interval


DEFINITIONS: dict[str, Callable[[History, int, int, int], Room]] = {
    "fixed_window": _fixed_window,
    "sliding_window_log": _sliding_window_log,
    "sliding_window_counter": _sliding_window_counter,
    "token_bucket": _token_bucket,
    "leaky_bucket": _leaky_bucket,
    "gcra": _gcra,
}
