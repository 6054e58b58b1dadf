"""Plans of rules: how they find the subjects of a request."""

from __future__ import annotations

from itertools import combinations, permutations

import pytest

from headgate import Rule
from headgate.core.key import join_facts
from headgate.rules import Snapshot
from headgate.testing import FakeClock

FACTS = {"user": "al:ice", "ip": "192.0.2.7", "endpoint": "/a//b/?x", "method": "get", "tier": "it's {free}"}
PARTS = {**FACTS, "endpoint": "/a/b", "method": "GET"}
DIMENSIONS = [*FACTS, *("+".join(facts) for size in (2, 3) for facts in permutations(FACTS, size))]


@pytest.mark.parametrize("endpoints", [[], ["/a/b"], ["/a/*"]], ids=str)
def test_subjects_are_the_facts_of_each_rule_joined(endpoints: list[str]) -> None:
    rules = [Rule(id=name, quota="5/minute", dimension=name, endpoints=endpoints) for name in DIMENSIONS]
    plan = Snapshot(rules).plan(FACTS, FakeClock())
    parts = {**PARTS, "endpoint": endpoints[0]} if endpoints else PARTS
    expected = {name: [parts[fact] for fact in name.split("+")] for name in DIMENSIONS}
    found = dict(zip([one.rule.id for one in plan.applied], plan.subjects(FACTS), strict=True))
    assert found == {name: one[0] if len(one) == 1 else join_facts(tuple(one)) for name, one in expected.items()}


def test_a_rule_for_all_has_one_subject_beside_others() -> None:
    for names in combinations(("global", "user", "user+ip"), 2):
        plan = Snapshot([Rule(id=name, quota="5/minute", dimension=name) for name in names]).plan(FACTS, FakeClock())
        assert len(set(plan.subjects(FACTS))) == 2
        assert plan.subjects(FACTS)[[one.rule.id for one in plan.applied].index(names[0])] == (
            "" if names[0] == "global" else FACTS["user"]
        )
