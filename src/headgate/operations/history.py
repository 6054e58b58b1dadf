"""History: past refusals and usage, in periods and steps of time."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple

from headgate.core.quota import MICROSECONDS, duration_us
from headgate.db.events import Cursor, Event, EventFilter, Events, Refusals, Top
from headgate.db.records import time_text
from headgate.db.usage import HOUR_SECONDS, MINUTE_SECONDS, Traffic, UsageHistory, UsageStep
from headgate.errors import InvalidQuota, InvalidRule, Problem
from headgate.operations.caller import Caller

__all__ = ["Cursor", "Event", "EventFilter", "History", "Period", "Refusals", "Top", "Traffic", "UsageStep"]

STEPS: Final = (60, 300, 900, 3_600, 4 * 3_600, 86_400)  # seconds: the choices for a default step
GOOD_POINTS: Final = 300  # in a series with the default step
MAX_POINTS: Final = 10_000
DEFAULT_SECONDS: Final = 3_600


class Period(NamedTuple):
    """A period from `since_us` until before `until_us`, in steps of `step` seconds."""

    since_us: int
    until_us: int
    step: int


def default_step(seconds: float) -> int:
    """Return the step for a period of some seconds."""
    return next((one for one in STEPS if seconds / one <= GOOD_POINTS), STEPS[-1])


def period(now_us: int, *, since_us: int | None, until_us: int | None, step: str | None) -> Period:
    """Return a period, by default the last hour in minutes. Raises `InvalidRule` for an invalid parameter."""
    until_us = now_us if until_us is None else until_us
    since_us = max(0, until_us - DEFAULT_SECONDS * MICROSECONDS) if since_us is None else since_us
    if since_us >= until_us:
        raise InvalidRule(Problem("query", "since", "must be before until"))
    length = (until_us - since_us) / MICROSECONDS
    seconds = default_step(length) if step is None else _step(step)
    if length / seconds > MAX_POINTS:
        raise InvalidRule(Problem("query", "step", f"would make more than {MAX_POINTS:,} points: choose a longer one"))
    return Period(since_us, until_us, seconds)


class History:
    """Queries of past events and usage. They need the scope `events`. Every method raises `DatabaseError`."""

    def __init__(self, events: Events, usage: UsageHistory) -> None:
        self._events = events
        self._usage = usage

    def events(
        self, caller: Caller, wanted: EventFilter, *, after: Cursor | None = None, max_items: int = 100
    ) -> Sequence[Event]:
        """Return events, the latest first. For the next page, pass the last one's time and id as `after`."""
        caller.require("events")
        return self._events.page(wanted, after=after, max_items=max_items)

    def top_subjects(
        self, caller: Caller, period: Period, *, rule: str | None = None, max_items: int = 10
    ) -> Sequence[Top]:
        """Return the subjects with the most events in a period, of all rules or of one."""
        caller.require("events")
        return self._events.top(rule=rule, since_us=period.since_us, until_us=period.until_us, max_items=max_items)

    def refusals(self, caller: Caller, fact: str, subject: str, period: Period) -> Sequence[Refusals]:
        """Return a subject's refusals in each step of a period, without empty steps."""
        caller.require("events")
        return self._events.refusals(fact, subject, **period._asdict())

    def top_rules(self, caller: Caller, period: Period, *, max_items: int = 10) -> Sequence[UsageStep]:
        """Return the rules that refused most in a period, with their counts in it."""
        caller.require("events")
        return self._usage.top(since_us=period.since_us, until_us=period.until_us, max_items=max_items)

    def usage(self, caller: Caller, rules: Collection[str], period: Period) -> Sequence[UsageStep]:
        """Return rules' counts in each step of a period, without empty steps. The empty id is all checks, each once."""
        caller.require("events")
        return self._usage.series(rules, **period._asdict())

    def traffic(self, caller: Caller, rules: Collection[str], period: Period) -> Sequence[Traffic]:
        """Return rules' numbers of checks and refusals in each step of a period, without empty steps."""
        caller.require("events")
        return self._usage.traffic(rules, **period._asdict())


def usage_table(usage: UsageStep) -> dict[str, Any]:
    """Return one step as the API shows it."""
    table = usage._asdict()
    for name in ("at_us", "rule", "p50_us", "p99_us"):
        del table[name]
    times = {name: _seconds(value) for name, value in (("p50", usage.p50_us), ("p99", usage.p99_us))}
    return {"at": time_text(usage.at_us), **table, **times}


def _step(step: str) -> int:
    try:
        seconds = int(step) if step.isascii() and step.isdigit() else duration_us(step) / MICROSECONDS
    except InvalidQuota as error:
        raise InvalidRule(Problem("query", "step", str(error).partition(": ")[2] or str(error))) from error
    if seconds < MINUTE_SECONDS or seconds % MINUTE_SECONDS or (seconds > HOUR_SECONDS and seconds % HOUR_SECONDS):
        message = f"must be whole minutes, and above an hour whole hours, as in 1m, 15m, 1h or 1d; got {step!r}"
        raise InvalidRule(Problem("query", "step", message))
    return int(seconds)


def _seconds(us: float | None) -> float | None:
    return None if us is None else round(us / MICROSECONDS, 7)
