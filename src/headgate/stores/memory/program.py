"""Programs of the memory store: a plan's limits as one function that admits all of them, or none.

The function's code is generated: a few lines per limit and no loop, for a plan of one limit as for a plan of ten.
`TEMPLATE` is the source: lines that begin with `@` are repeated for each limit, with its number for `#`. Only this code
in the memory store admits requests.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from textwrap import indent
from time import time_ns
from typing import Any, Final

from headgate.algorithms import concurrency
from headgate.core.check import Outcome
from headgate.core.decision import Decision
from headgate.core.quota import CONCURRENCY, Quota
from headgate.core.reading import Reading
from headgate.errors import StoreFull

# Takes subjects, costs, peek and extras, and returns a decision.
MemoryProgram = Callable[..., Decision]

_new: Any = tuple.__new__  # makes an Outcome in half the time of calling its class

TEMPLATE: Final = """\
def make(store, limits, reading, now_us):
    recall, keep, make_room = store.recall, store.keep, store.make_room
    open_reservation = store.open_reservation
    acquire, release = store.lock.acquire, store.lock.release
    (@(table#, admit#, quota#),) = limits
    tables = (@table#,)
    @states#, get# = table#.states, table#.states.get

    def check(subjects, costs, peek=False, extras=None):
        (@subject#,) = subjects
        (@cost#,) = costs
        now = NOW
        acquire()  # with try and finally: a with statement would take longer
        try:
            slot = ""
            if extras is not None:
                idempotency, penalty, reservation, slot = extras
                is_kept = idempotency is not None or penalty is not None
                if is_kept:
                    known = recall(reading, subjects, costs, now, peek, idempotency, penalty)
                    if known is not None:
                        return known
            ADMIT
            if extras is not None:
                if reservation and allowed and not peek:
                    pass
                    @if cost# and not wait#: open_reservation(table#, subject#, now, quota#, reservation)
                if is_kept:
                    keep(decision, peek, idempotency, penalty)
            return decision
        finally:
            release(None)

    def check_many(requests):
        decided, peek, slot = [], False, ""
        now = NOW
        acquire()
        try:
            for subjects, costs in requests:
                (@subject#,) = subjects
                (@cost#,) = costs
                try:
                    ADMIT
                except StoreFull as error:  # for others there may be room
                    decided.append(error)
                else:
                    decided.append(decision)
        finally:
            release(None)
        return decided

    check.many = check_many
    return check
"""

# Charges one request to all limits, or to none. Replaces `ADMIT` in the template.
ADMIT: Final = """\
# The sweep tells by the quota last asked with what still matters.
@table#.quota = quota#
@before# = get#(subject#)
@wait#, after# = admit#(before#, now, quota#, cost#)
allowed = not (REFUSED)
if not allowed or peek:  # nothing is charged; outdated state that admit found may still be replaced
    pass
    @if peek or not wait#: after# = before#
if NEW:
    befores = (@before#,)
    afters = (@after#,)
    make_room(tables, subjects, costs, befores, afters, now)
@if after# is not before#: states#[subject#] = after#
SLOTS
decision = Decision()
decision.allowed = allowed
decision.reading = reading
decision.verdict = (now, subjects, costs, @wait#, after#,)
decision._outcomes = decision._order = decision._state = None
"""


READER: Final = """\
def make(limits):
    (@(figures#, quota#),) = limits

    def read(verdict):
        now, _, _, @wait#, state#, = verdict
        @remaining#, reset# = figures#(state#, now, quota#)
        return (@new(Outcome, (wait#, remaining#, reset#)),)

    return read
"""


def compile_program(store: Any, limits: Sequence[tuple[Any, Any, Any]], reading: Reading, now_us: Any) -> MemoryProgram:
    """Return the function that decides these limits, each given as table, `admit` function and quota.

    `store` provides the lock, and the methods for less common requests: `recall`, `keep`, `make_room` and
    `open_reservation`.
    """
    enforced = tuple(limit.enforced for limit in reading.plan.limits)
    program: MemoryProgram = _maker(enforced, now_us is None, reading.plan.slots)(store, limits, reading, now_us)
    return program


def reader(limits: Sequence[tuple[Any, Any, Any]]) -> Callable[[Any], tuple[Outcome, ...]]:
    """Return the function that computes the outcomes of a verdict: from index 3, wait and state of each limit."""
    figures = tuple(
        (_known_figures if quota.algorithm == CONCURRENCY else table.algorithm.figures, quota)
        for table, _, quota in limits
    )
    if not figures:
        return lambda _: ()
    made: Callable[[Any], tuple[Outcome, ...]] = _reader_maker(len(figures))(figures)
    return made


def _known_figures(figures: tuple[int, int], now: int, quota: Quota) -> tuple[int, int]:  # noqa: ARG001
    """Return the figures of a limit of concurrency: a verdict has them, as the state itself changes in place."""
    return figures


@cache
def _maker(enforced: tuple[bool, ...], real_time: bool, slots: tuple[int, ...]) -> Callable[..., MemoryProgram]:
    """Return the function that makes programs for this combination of enforced and shadow limits.

    `slots` are the indexes of concurrency limits. Their states are changed in place, so a verdict has their figures
    instead.
    """
    taken = [
        f"if slot and allowed and not peek and cost{at} and not wait{at}:\n"
        f"    after{at} = take(after{at}, now, quota{at}, cost{at}, slot)\n"
        f"else:\n"
        f"    after{at} = figures(after{at}, now, quota{at})\n"
        for at in slots
    ]
    admit = ADMIT.replace("SLOTS\n", "".join(taken))
    template = re.sub(r"^( *)ADMIT\n", lambda found: indent(admit, found[1]), TEMPLATE, flags=re.MULTILINE)
    template = template.replace("NOW", "time_ns() // 1_000" if real_time else "now_us()")
    return _compile_template(template, enforced, f"<headgate memory program, enforced limits: {enforced!r}>")


@cache
def _reader_maker(limits: int) -> Callable[..., Any]:
    """Return the function that makes readers of this many limits."""
    return _compile_template(READER, (True,) * limits, f"<headgate reader of {limits} limits>")


def _compile_template(template: str, enforced: tuple[bool, ...], name: str) -> Callable[..., Any]:
    """Return the function that a template defines for this combination of enforced and shadow limits."""
    source = "\n".join(expanded for line in template.splitlines() for expanded in _expand(line, enforced))
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)  # for tracebacks
    names = {
        "Decision": Decision,
        "Outcome": Outcome,
        "new": _new,
        "time_ns": time_ns,
        "take": concurrency.take,
        "figures": concurrency.figures,
        "StoreFull": StoreFull,
    }
    namespace: dict[str, Any] = dict(names)
    exec(compile(source, name, "exec"), namespace)
    maker: Callable[..., Any] = namespace["make"]
    return maker


def _expand(line: str, enforced: tuple[bool, ...]) -> Iterator[str]:
    """Yield a line of the template as it is, once per limit, or with a part of it repeated per limit."""
    numbers = range(len(enforced))
    line = line.replace("REFUSED", " or ".join(f"wait{at}" for at in numbers if enforced[at]) or "False")
    line = line.replace("NEW", " or ".join(f"before{at} is None" for at in numbers) or "False")
    start, mark, repeated = line.partition("@")
    if not mark:
        yield line
    elif not start.strip():
        yield from (start + repeated.replace("#", str(at)) for at in numbers)
    else:
        item, _, end = repeated.rpartition(",")
        yield start + "".join(f"{item.replace('#', str(at))}, " for at in numbers) + end
