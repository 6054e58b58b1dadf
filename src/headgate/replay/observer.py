"""Observers: generated functions that count each decision of a plan.

The code is generated, like the memory store's programs: its few lines for each limit run for every request of a log,
and a loop over the limits would take longer than they do. `#` stands for a limit's number. A verdict of the memory
store has the wait and the state of each limit after its first three parts: when one limit may have a new peak, the
figures of the others are not computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

from headgate.core.decision import Decision
from headgate.replay.tally import BOUND, NEXT, PEAK, REQUESTS, LimitTally

Observer = Callable[[int, Decision], None]

_HEAD: Final = """\
def make(tallies):
    ({tallies}) = tallies
{entries}
    def observe(at_us, decision):
        verdict = decision.verdict
        is_lazy = decision.reading.read is not None
        ({subjects}) = verdict[1]
        ({costs}) = verdict[2]
"""
_ENTRY: Final = (
    "    get#, interval#, capacity# = tally#.entries.get, tally#.interval_us, tally#.capacity\n"
    "    figures#, quota# = tally#.figures, tally#.quota\n"
)
_LIMIT: Final = f"""\
        entry = get#(subject#)
        if entry is None:
            tally#.add_subject(subject#, at_us, decision.figures[#][1], cost#)
        else:
            entry[{REQUESTS}] += 1
            used = entry[{BOUND}] + cost#
            if used > entry[{PEAK}]:
                used = capacity# - (
                    figures#(verdict[4 + 2 * #], verdict[0], quota#)[0] if is_lazy else decision.figures[#][1]
                )
                if used > entry[{PEAK}]:
                    entry[{PEAK}] = used
            entry[{BOUND}] = used
            free_us = entry[{NEXT}]
            free_us = (free_us if free_us > at_us else at_us) + cost# * interval#
            entry[{NEXT}] = free_us
            if free_us - at_us > tally#.worst_us:
                tally#.worst_us = free_us - at_us
"""


def observer_of(tallies: Sequence[LimitTally]) -> Observer:
    """Return the function that counts decisions of a plan whose limits have these tallies."""
    observer: Observer = _maker(len(tallies))(tuple(tallies))
    return observer


@cache
def _maker(limits: int) -> Callable[..., Observer]:
    def repeat(text: str) -> str:
        return "".join(text.replace("#", str(at)) for at in range(limits))

    tallies, subjects, costs = map(repeat, ("tally#, ", "subject#, ", "cost#, "))
    head = _HEAD.format(tallies=tallies, entries=repeat(_ENTRY), subjects=subjects, costs=costs)
    source = f"{head}{repeat(_LIMIT)}\n    return observe\n"
    namespace: dict[str, Any] = {}
    exec(compile(source, f"<headgate observer of {limits} limits>", "exec"), namespace)
    maker: Callable[..., Observer] = namespace["make"]
    return maker
