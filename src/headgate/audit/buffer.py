"""Recorded events that are not yet on disk. All are counted at once; rows are kept as long as there are few.

Its size is bounded, which is why counting and sampling happen here, in the caller's thread. The thread that takes the
window does the rest of the work.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from threading import Lock
from typing import Final, NamedTuple

from headgate.audit.options import AuditOptions
from headgate.core.check import NEVER, Check, Outcome
from headgate.core.cost import Cost, amount_of
from headgate.core.decision import Decision
from headgate.core.key import dimension_of, split_facts
from headgate.core.verdict import restrictiveness
from headgate.db.events import ANNOTATE, MAX_TEXT, MINUTE_US, Event, kept_text
from headgate.rules.rule import GLOBAL

CLIENT: Final = ("user", "ip", "api_key", "tenant")  # the facts by which events of every rule are counted
COLUMNS: Final = (*CLIENT, "endpoint", "method", "tier")  # the facts with their own columns
OTHER: Final = "(other)"  # all subjects that there was no room for
MAX_FACTS: Final = 16  # without a column
MAX_DIMENSIONS: Final = 10_000  # cached; there are as many as rules
_dimension_of = lru_cache(MAX_DIMENSIONS)(dimension_of)


class EventKey(NamedTuple):
    """The key of a count: the events of one client at one rule in one minute."""

    minute_us: int
    rule: str
    reason: str
    dimension: str
    subject: str
    user: str | None
    ip: str | None
    api_key: str | None
    tenant: str | None


@dataclass(slots=True)
class FlushWindow:
    """The events recorded between two flushes."""

    recorded: int = 0
    tallies: dict[EventKey, list[int]] = field(default_factory=dict)  # count and cost
    rows: list[Event] = field(default_factory=list)  # without ids yet
    candidates: int = 0  # rows left after sampling each client


class Buffer:
    """Collects events. Safe to share between threads."""

    def __init__(self, node: str, options: AuditOptions) -> None:
        self._node = node
        self._options = options
        self._lock = Lock()
        self._window = FlushWindow()
        self.recorded = 0  # since its creation

    def add(self, facts: Mapping[str, str], cost: Cost, decision: Decision) -> None:
        """Count a decision, and sample it.

        A refusal is an event of the binding rule. A request that is allowed although over the limits of rules that do
        not enforce is an event of each of them, with reason `shadow` or `annotate`.
        """
        checks, outcomes, subjects = decision.plan.limits, decision.outcomes, decision.subjects
        if decision.allowed:
            indexes = [
                index
                for index, (check, outcome) in enumerate(zip(checks, outcomes, strict=True))
                if outcome.wait_us and not check.enforced
            ]
        elif len(checks) == 1:
            indexes = [0]
        else:
            indexes = [min(range(len(checks)), key=lambda one: restrictiveness((checks[one], outcomes[one])))]
        for index in indexes:
            subject = subjects[index] if subjects else ""
            self._add(
                facts, amount_of(cost, checks[index].refusal.unit), decision, checks[index], outcomes[index], subject
            )

    def take(self) -> FlushWindow | None:
        """Take the events recorded since the last call; None if there are none."""
        if not self._window.recorded:
            return None
        with self._lock:
            window, self._window = self._window, FlushWindow()
        return window

    def _add(
        self, facts: Mapping[str, str], cost: int, decision: Decision, check: Check, outcome: Outcome, subject: str
    ) -> None:
        at_us, key_template = decision.at_us, check.key_template
        reason = ANNOTATE if decision.allowed and check.refusal.annotates else decision.reason
        dimension = _dimension_of(key_template)
        if dimension == GLOBAL:
            subject = ""
        elif not subject or "+" in dimension:
            subject = _subject(facts, dimension, subject)
        fact = facts.get
        user, ip, api_key, tenant = fact("user"), fact("ip"), fact("api_key"), fact("tenant")
        client = EventKey(
            *(at_us - at_us % MINUTE_US, check.rule, reason, dimension, subject), *(user, ip, api_key, tenant)
        )
        if len(subject) + len(user or "") + len(ip or "") + len(api_key or "") + len(tenant or "") > MAX_TEXT:
            client = _shorten(client)
        options = self._options
        with self._lock:
            window = self._window
            self.recorded += 1
            window.recorded += 1
            tally = window.tallies.get(client)
            if tally is None:
                tally = self._new_tally(window, client)
            tally[0] += 1
            tally[1] += cost
            weight = _weight(tally[0], options.rows_per_client, options.one_in)
            if weight:
                window.candidates += 1
                weight *= _weight(window.candidates, options.rows, options.one_in)
            if weight:
                name = "" if decision.allowed else decision.id  # one decision may be an event of several shadow rules
                window.rows.append(_event(name, self._node, facts, cost, client, at_us, check, outcome, weight))

    def _new_tally(self, window: FlushWindow, client: EventKey) -> list[int]:
        if len(window.tallies) >= self._options.clients:
            # Absent facts stay absent.
            client = EventKey(*client[:4], client.subject and OTHER, *[name and OTHER for name in client[5:]])
        return window.tallies.setdefault(client, [0, 0])


def _weight(number: int, full: int, one_in: int) -> int:
    """Return how many events the event with this number represents: 1 for the first ones, 0 if it is dropped."""
    if number <= full:
        return 1
    return 0 if (number - full) % one_in else one_in


def _shorten(client: EventKey) -> EventKey:
    """Return the client with strings of bounded length."""
    return EventKey._make(kept_text(value) if isinstance(value, str) else value for value in client)


def _subject(facts: Mapping[str, str], dimension: str, subject: str) -> str:
    """Return the subject in readable form. Decisions without the store, such as of a blocked client, have none."""
    parts = split_facts(subject) if subject else tuple(facts.get(name, "") for name in dimension.split("+"))
    return parts[0] if len(parts) == 1 else json.dumps(parts, ensure_ascii=False)


def _event(
    name: str,
    node: str,
    facts: Mapping[str, str],
    cost: int,
    client: EventKey,
    at_us: int,
    check: Check,
    outcome: Outcome,
    weight: int,
) -> Event:
    others = ((name, value) for name, value in facts.items() if name not in COLUMNS)
    return Event(
        id=name,
        at_us=at_us,
        node=node,
        rule=kept_text(client.rule),
        reason=client.reason,
        allowed=not check.enforced,
        dimension=kept_text(client.dimension),
        subject=kept_text(client.subject),
        **{name: kept_text(facts[name]) if name in facts else None for name in COLUMNS},
        facts={kept_text(name): kept_text(value) for name, value in islice(others, MAX_FACTS)},
        cost=cost,
        limit=check.quota.capacity,
        remaining=outcome.remaining,
        retry_after_us=None if outcome.wait_us == NEVER else outcome.wait_us,
        weight=weight,
    )
