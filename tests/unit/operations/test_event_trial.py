"""Changed rules, tried on recorded events."""

from __future__ import annotations

from typing import Any, cast

from headgate import Rule
from headgate.db.events import Event, Events
from headgate.operations.event_trial import try_events
from headgate.rules.snapshot import Snapshot

AT_US = 1_790_000_000_000_000


class Recorded:
    """Events that are there already."""

    def __init__(self, *events: Event) -> None:
        self._events = list(events)

    def page(self, *_: object, **__: object) -> list[Event]:
        return self._events


def event(rule: str, *, limit: int, remaining: int, cost: int) -> Event:
    return Event(
        id=f"{rule}-{cost}",
        at_us=AT_US,
        node="here",
        rule=rule,
        reason="over_limit",
        allowed=False,
        dimension="user",
        subject="alice",
        user="alice",
        ip=None,
        api_key=None,
        tenant=None,
        endpoint="/chat",
        method=None,
        tier=None,
        facts={},
        cost=cost,
        limit=limit,
        remaining=remaining,
        retry_after_us=1_000_000,
        weight=1,
    )


def tried(rules: list[Rule], *events: Event) -> dict[str, Any]:
    return try_events(cast(Events, Recorded(*events)), Snapshot(rules), None, None)


def test_the_cost_of_an_event_is_of_its_rules_unit() -> None:
    refused = event("tokens", limit=1_000, remaining=400, cost=600)
    rules = [Rule(id="requests", quota="5/minute"), Rule(id="tokens", quota="1000/minute", unit="tokens")]
    assert tried(rules, refused)["newly_allowed"] == 0
    rules[1] = Rule(id="tokens", quota="1200/minute", unit="tokens")
    assert tried(rules, refused)["newly_allowed"] == 1  # 600 were used, and 600 more fit


def test_events_of_slots_are_left_out() -> None:
    refused = event("slots", limit=1, remaining=0, cost=1)
    found = tried([Rule(id="slots", quota="1 concurrent")], refused)
    assert (found["refused"], found["left_out"], found["newly_allowed"]) == (1, 1, 0)
