"""Matcher: one that is made from the matcher before finds what one made from scratch does."""

from __future__ import annotations

from random import Random
from typing import Any

from headgate import Rule
from headgate.rules import Snapshot
from headgate.testing import FakeClock

CLOCK = FakeClock()
PATTERNS: tuple[list[str], ...] = (
    ["*"],
    ["/a"],
    ["/a/*"],
    ["/a/{id}"],
    ["/a/{id}/b", "/c"],
    ["/a/{id}/*"],
    [],
    ["/c", "/d/*"],
)
PATHS = ("/", "/a", "/a/1", "/a/1/b", "/c", "/d/x/y", "/e")


def rule(chance: Random, name: str) -> Rule:
    options: dict[str, Any] = {"endpoints": chance.choice(PATTERNS)}
    if chance.random() < 0.3:
        options["tiers"] = [chance.choice(("free", "pro"))]
    if chance.random() < 0.3:
        options["match"] = {"country": chance.choice(("DE", "FR"))}
    return Rule(id=name, quota=f"{chance.randrange(1, 9)}/minute", **options)


def found(snapshot: Snapshot) -> list[list[str]]:
    requests = [
        {"user": "u", "endpoint": path, "tier": tier, "country": country}
        for path in PATHS
        for tier in ("free", "pro", "other")
        for country in ("DE", "FR", "IT")
    ]
    return [[str(one.id) for one in snapshot.plan(request, CLOCK).rules] for request in requests]


def test_a_snapshot_made_from_the_one_before_plans_as_one_made_from_scratch() -> None:
    chance = Random(5)
    rules = [rule(chance, f"rule-{number}") for number in range(40)]
    snapshot = Snapshot(rules)
    for turn in range(40):
        before, expected = snapshot, found(snapshot)
        rules = list(rules)
        for _ in range(chance.randrange(1, 3)):
            rules[chance.randrange(len(rules))] = rule(chance, f"changed-{turn}-{chance.random()}")
        if chance.random() < 0.3:
            rules.pop(chance.randrange(len(rules)))
        if chance.random() < 0.3:
            rules.append(rule(chance, f"new-{turn}"))
        snapshot = Snapshot(rules, previous=before)
        assert found(snapshot) == found(Snapshot(rules))
        assert found(before) == expected  # which may still be in use


def test_a_rule_that_only_some_share_is_not_found_when_it_is_gone() -> None:
    rules = [Rule(id=f"rule-{number}", quota="1/minute", endpoints=["/a"]) for number in range(20)]
    before = Snapshot(rules)
    after = Snapshot(rules[1:], previous=before)
    request = {"user": "u", "endpoint": "/a"}
    assert [len(one.plan(request, CLOCK).rules) for one in (before, after)] == [20, 19]
