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
from headgate.core.check import NEVER, NOT_WAITING
from headgate.core.decision import Decision
from headgate.core.quota import CONCURRENCY, Quota
from headgate.core.reading import Reading
from headgate.errors import StoreFull

# Takes subjects, costs, peek and extras, and returns a decision.
MemoryProgram = Callable[..., Decision]

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
            slot, arrived = "", NOT_WAITING
            if extras is not None:
                idempotency, penalty, reservation, slot, arrived = extras
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
        decided, peek, slot, arrived = [], False, "", NOT_WAITING
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
@if table#.quota is not quota#: table#.use(quota#, now)
@before# = get#(subject#)
@wait#, after# = admit#(before#, now, quota#, cost#TICKET#)
allowed = not (REFUSED)
if not allowed or peek:  # nothing is charged; outdated state that admit found may still be replaced
    pass
    @if peek or not wait#: after# = before#
QUEUES
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
decision._figures = decision._order = decision._state = None
"""


READER: Final = """\
def make(limits):
    (@(figures#, quota#),) = limits

    def read(verdict):
        now, _, _, @wait#, state#, = verdict
        @remaining#, reset# = figures#(state#, now, quota#)
        return (@(wait#, remaining#, reset#),)

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


def reader(limits: Sequence[tuple[Any, Any, Any]]) -> Callable[[Any], tuple[tuple[int, int, int], ...]]:
    """Return the function that computes the figures of a verdict: from index 3, wait and state of each limit."""
    figures = tuple(
        (_known_figures if quota.algorithm == CONCURRENCY else table.algorithm.figures, quota)
        for table, _, quota in limits
    )
    if not figures:
        return lambda _: ()
    made: Callable[[Any], tuple[tuple[int, int, int], ...]] = _reader_maker(len(figures))(figures)
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
    admit = ADMIT.replace("QUEUES\n", _queue_lines(enforced, slots)).replace("SLOTS\n", _slot_lines(enforced, slots))
    template = re.sub(r"^( *)ADMIT\n", lambda found: indent(admit, found[1]), TEMPLATE, flags=re.MULTILINE)
    template = template.replace("NOW", "time_ns() // 1_000" if real_time else "now_us()")
    template = template.replace("NOT_WAITING", str(NOT_WAITING))  # a constant is read faster than a name
    name = f"<headgate memory program, enforced limits: {enforced!r}, slots: {slots!r}>"
    return _compile_template(template, enforced, name, slots)


def _queue_lines(enforced: tuple[bool, ...], slots: tuple[int, ...]) -> str:
    """Return the lines that find out whether a request keeps a place in the queues: it waits, and lacks only slots."""
    if not slots:
        return ""
    others = [f"wait{at}" for at, is_enforced in enumerate(enforced) if is_enforced and at not in slots]
    queued = [at for at in slots if enforced[at]]
    reasons = " or ".join(["allowed", "peek", *others, *[f"wait{at} == NEVER" for at in queued]])
    lines = [f"queues = arrived != NOT_WAITING and not ({reasons})\n"]
    lines += [f"if queues and cost{at} and after{at} is None: after{at} = SlotSet()\n" for at in queued]
    return "".join(lines)


def _slot_lines(enforced: tuple[bool, ...], slots: tuple[int, ...]) -> str:
    """Return the lines that take slots or queue for them, and then replace each state by its figures."""
    lines = []
    for at in slots:
        lines += [
            f"if slot and allowed and not peek and cost{at} and not wait{at}:\n",
            f"    after{at} = take(after{at}, now, quota{at}, cost{at}, slot, arrived)\n",
            "else:\n",
        ]
        if enforced[at]:
            lines += [
                f"    if queues and cost{at}: line_up(after{at}, now, cost{at}, slot, arrived)\n",
                f"    elif arrived > 0 and not peek: leave(after{at}, slot)\n",
            ]
        lines.append(f"    after{at} = figures(after{at}, now, quota{at})\n")
    return "".join(lines)


@cache
def _reader_maker(limits: int) -> Callable[..., Any]:
    """Return the function that makes readers of this many limits."""
    return _compile_template(READER, (True,) * limits, f"<headgate reader of {limits} limits>")


def _compile_template(
    template: str, enforced: tuple[bool, ...], name: str, slots: tuple[int, ...] = ()
) -> Callable[..., Any]:
    """Return the function that a template defines for this combination of enforced and shadow limits."""
    source = "\n".join(expanded for line in template.splitlines() for expanded in _expand(line, enforced, slots))
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)  # for tracebacks
    names = {
        "Decision": Decision,
        "time_ns": time_ns,
        "SlotSet": concurrency.SlotSet,
        "take": concurrency.take,
        "figures": concurrency.figures,
        "line_up": concurrency.line_up,
        "leave": concurrency.leave,
        "NEVER": NEVER,
        "StoreFull": StoreFull,
    }
    namespace: dict[str, Any] = dict(names)
    exec(compile(source, name, "exec"), namespace)
    maker: Callable[..., Any] = namespace["make"]
    return maker


def _expand(line: str, enforced: tuple[bool, ...], slots: tuple[int, ...]) -> Iterator[str]:
    """Yield a line of the template as it is, once per limit, or with a part of it repeated per limit."""
    numbers = range(len(enforced))
    line = line.replace("REFUSED", " or ".join(f"wait{at}" for at in numbers if enforced[at]) or "False")
    line = line.replace("NEW", " or ".join(f"before{at} is None" for at in numbers) or "False")
    start, found, repeated = line.partition("@")
    if not found:
        yield line
    elif not start.strip():
        for at in numbers:
            ticket = ", slot, arrived" if at in slots else ""  # by which a concurrency limit knows a waiting request
            yield start + repeated.replace("TICKET#", ticket).replace("#", str(at))
    else:
        item, _, end = repeated.rpartition(",")
        yield start + "".join(f"{item.replace('#', str(at))}, " for at in numbers) + end
