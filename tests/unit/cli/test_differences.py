"""Changes of rules as lines."""

from __future__ import annotations

from typing import Any

from headgate.cli.differences import lines_of, quota_of

RULE: dict[str, Any] = {
    **{"id": "search", "limit": 100, "window": 3600.0, "algorithm": "sliding_window_counter", "dimension": "user"},
    **{"tiers": [], "endpoints": ["/search"], "enabled": True, "message": ""},
}


def change(action: str, kind: str, subject: str, before: Any = None, after: Any = None) -> dict[str, Any]:
    return {"action": action, "kind": kind, "subject": subject, "before": before, "after": after}


def test_what_is_new_what_changes_and_what_goes() -> None:
    changed = {**RULE, "window": 60.0, "tiers": ["free"], "message": "No.", "max_delay": 0.25}
    lines = lines_of(
        [
            change("create", "rule", "search", after=RULE),
            change("update", "rule", "search", before=RULE, after=changed),
            change("update", "settings", "headgate", before=None, after={"default_tier": "free"}),
            change("create", "user", "alice", after={"id": "alice", "tier": "pro"}),
            change("delete", "rule", "search", before=RULE),
            change("delete", "tier", "free", before={"name": "free"}),
        ]
    )
    assert [line.text for line in lines] == [
        "+ rule search: 100/1h sliding_window_counter, by user",
        '~ rule search: window 1h → 1m, tiers [] → ["free"], message "" → No., max_delay none → 250ms',
        "~ settings headgate: default_tier none → free",
        "+ user alice: tier pro",
        "- rule search: 100/1h sliding_window_counter, by user",
        "- tier free",
        "6 changes",
    ]


def test_none_and_one_are_counted_as_people_do() -> None:
    assert [line.text for line in lines_of([])] == ["no difference"]
    assert [line.text for line in lines_of([change("delete", "tier", "free")])][-1] == "1 change"


def test_quotas_are_in_notation_also_those_of_another_version() -> None:
    assert quota_of({**RULE, "algorithm": "gcra", "burst": 200}) == "100/1h burst 200 gcra"
    assert quota_of({**RULE, "algorithm": "of_tomorrow"}) == "100/3600.0"


def test_calendars_and_units_are_in_a_quotas_notation() -> None:
    daily = {"algorithm": "fixed_window", "window": "day", "calendar": True, "tz": "Europe/Berlin", "anchor": 6}
    assert quota_of({**RULE, **daily, "unit": "tokens"}) == "100/calendar day tz Europe/Berlin anchor 6 (tokens)"
    assert quota_of({**RULE, "unit": "requests"}) == "100/1h sliding_window_counter"
