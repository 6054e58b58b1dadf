"""How things are timed: in turns of a fixed length, contender after contender, round after round.

A round gives every contender one turn, and each round begins with another contender, so that whatever else
the machine is doing falls on all of them alike. Two contenders are compared round by round, and the median
of those ratios counts. Nothing in here knows what is being timed.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import repeat
from statistics import median, quantiles
from time import perf_counter

Turn = Callable[[], float]  # does its work and returns a rate, a cost, whatever is compared


@dataclass(frozen=True)
class Series:
    """What one contender's turns gave, in the order of the rounds."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.values)

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles, as a share of the median: 0.05 is ± 5 %."""
        if len(self.values) < 2:
            return 0.0
        low, _, high = quantiles(self.values, n=4, method="inclusive")
        return (high - low) / 2 / self.median

    def times(self, other: Series) -> float:
        """How many times `other` this is: the median of the rounds' ratios."""
        return median(mine / theirs for mine, theirs in zip(self.values, other.values, strict=True))


def interleave(turns: Mapping[str, Turn], rounds: int) -> dict[str, Series]:
    """Run every turn once per round, each round beginning with another one.

    The first round warms up and is thrown away.
    """
    names = list(turns)
    values: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds + 1):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            gc.collect()
            value = turns[name]()
            if number > 0:
                values[name].append(value)
    return {name: Series(tuple(given)) for name, given in values.items()}


def seconds_for(calls: int, function: Callable[[str], object], argument: str) -> float:
    """The time that this many calls take, the garbage collector running as it does in real life."""
    again = repeat(None, calls)
    start = perf_counter()
    for _ in again:
        function(argument)
    return perf_counter() - start


def rate_of(seconds: float, calls: int, chunk: Callable[[], float]) -> float:
    """Calls per second: chunks of `calls`, each returning its time, until these add up to `seconds`."""
    spent, done = 0.0, 0
    while spent < seconds:
        spent += chunk()
        done += calls
    return done / spent
