"""History: past refusals and usage."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from headgate.db.events import Cursor, Event, EventFilter, Events, Refusals, Top
from headgate.db.usage import Traffic, UsageHistory, UsageStep
from headgate.operations.caller import Caller
from headgate.operations.usage import Period

__all__ = ["Cursor", "Event", "EventFilter", "History", "Refusals", "Top", "Traffic", "UsageStep"]


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
        self, caller: Caller, *, since_us: int, until_us: int, rule: str | None = None, max_items: int = 10
    ) -> Sequence[Top]:
        """Return the subjects with the most events, of all rules or of one."""
        caller.require("events")
        return self._events.top(rule=rule, since_us=since_us, until_us=until_us, max_items=max_items)

    def refusals(self, caller: Caller, fact: str, subject: str, period: Period) -> Sequence[Refusals]:
        """Return a subject's refusals in each step of a period, without empty steps."""
        caller.require("events")
        span = {"since_us": period.since_us, "until_us": period.until_us}
        return self._events.refusals(fact, subject, **span, step=period.step)

    def top_rules(self, caller: Caller, *, since_us: int, until_us: int, max_items: int = 10) -> Sequence[UsageStep]:
        """Return the rules that refused most, with their counts in the period."""
        caller.require("events")
        return self._usage.top(since_us=since_us, until_us=until_us, max_items=max_items)

    def usage(self, caller: Caller, rules: Collection[str], period: Period) -> Sequence[UsageStep]:
        """Return rules' counts in each step of a period, without empty steps. The empty id is all checks, each once."""
        caller.require("events")
        return self._usage.series(rules, since_us=period.since_us, until_us=period.until_us, step=period.step)

    def traffic(self, caller: Caller, rules: Collection[str], period: Period) -> Sequence[Traffic]:
        """Return rules' numbers of checks and refusals in each step of a period, without empty steps."""
        caller.require("events")
        return self._usage.traffic(rules, since_us=period.since_us, until_us=period.until_us, step=period.step)
