"""Tries changed rules on recorded events: counts the decisions that would change.

Only refusals are recorded, and what shadow rules would have refused. Each event shows what had been allowed until then:
the limit minus what remained. The real engine adds what the changed rules would have allowed of the earlier events. So
the result is exact for a rule whose limit or action changes, and whose window and algorithm stay. For other rules, what
had been allowed is taken as it was. Events of rules that limit concurrency are ignored: they do not show when requests
ended.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from headgate.core.cost import REQUESTS, Cost
from headgate.core.quota import CONCURRENCY
from headgate.db.events import Cursor, Event, EventFilter, Events
from headgate.limiter.limiter import Limiter
from headgate.replay.report import time_text
from headgate.replay.run import NO_BOUND, LogClock, copy_for_replay
from headgate.rules.snapshot import Snapshot
from headgate.stores.memory import MemoryStore

MAX_EVENTS: Final = 50_000  # the latest ones are tried
PAGE: Final = 1_000
_FACTS: Final = ("user", "ip", "api_key", "tenant", "endpoint", "method", "tier")


def try_events(events: Events, snapshot: Snapshot, since_us: int | None, until_us: int | None) -> dict[str, Any]:
    """Return how many recorded decisions the rules would change. Raises `DatabaseError`."""
    found = _read(events, EventFilter(since_us=since_us, until_us=until_us))
    trial = _Trial(snapshot)
    for event in reversed(found):
        trial.decide(event)
    return {
        "since": None if since_us is None else time_text(since_us),
        "until": None if until_us is None else time_text(until_us),
        "events": sum(event.weight for event in found),
        "refused": sum(event.weight for event in found if not event.allowed),
        "newly_allowed": trial.newly_allowed.total(),
        "newly_refused": trial.newly_refused.total(),
        "rules": [
            {"id": rule, "newly_allowed": trial.newly_allowed[rule], "newly_refused": trial.newly_refused[rule]}
            for rule in sorted(trial.newly_allowed.keys() | trial.newly_refused.keys())
        ],
        "sampled": any(event.weight > 1 for event in found),
        "left_out": trial.left_out,
        "truncated": len(found) >= MAX_EVENTS,
    }


class _Trial:
    def __init__(self, snapshot: Snapshot) -> None:
        self._clock = LogClock()
        store = MemoryStore(max_keys=NO_BOUND, clock=self._clock)
        self._limiter = Limiter(copy_for_replay(snapshot), store=store, clock=self._clock)
        self._rules = {rule.id: rule for rule in snapshot.rules}
        self.left_out = 0
        self.newly_allowed: Counter[str] = Counter()  # by the rule that refused
        self.newly_refused: Counter[str] = Counter()  # by the shadow rule

    def decide(self, event: Event) -> None:
        rule = self._rules.get(event.rule)
        if rule is not None and rule.quota.algorithm == CONCURRENCY:
            self.left_out += event.weight
            return
        cost: Cost = event.cost if rule is None or rule.unit == REQUESTS else {rule.unit: event.cost}
        self._clock.at_us = event.at_us
        facts = {**event.facts, **{name: value for name in _FACTS if (value := getattr(event, name)) is not None}}
        for _ in range(event.weight):
            allowed = self._allows(event, facts, cost)
            if allowed and not event.allowed:
                self.newly_allowed[event.rule] += 1
                self._limiter.decide(facts, cost=cost)
            elif not allowed and event.allowed:
                self.newly_refused[event.rule] += 1

    def _allows(self, event: Event, facts: dict[str, str], cost: Cost) -> bool:
        decision = self._limiter.decide(facts, cost=cost, peek=True)
        if not decision.plan.limits:
            return decision.allowed
        used = event.limit - event.remaining  # by requests that were really allowed
        for limit, outcome, costs in zip(decision.plan.limits, decision.outcomes, decision.costs, strict=True):
            left = outcome.remaining - (used if limit.rule == event.rule else 0)
            if limit.enforced and left < costs:
                return False
        return True


def _read(events: Events, wanted: EventFilter) -> list[Event]:
    """Return the latest events, the last first."""
    found: list[Event] = []
    after: Cursor | None = None
    while len(found) < MAX_EVENTS:
        page = events.page(wanted, after=after, max_items=PAGE)
        found += page
        if len(page) < PAGE:
            break
        after = Cursor(page[-1].at_us, page[-1].id)
    return found
