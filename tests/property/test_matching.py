"""The trie finds what a naive matcher finds that looks at every rule; and no two subjects share a key."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Quota, Rule
from headgate.rules import Snapshot, User, explanation
from headgate.testing import FakeClock

CLOCK = FakeClock(1_700_000_000)
QUOTA = Quota(10, "1m")
DEFAULT_TIER = "free"
USERS = {"alice": "pro", "bob": "gold"}

WORDS = ["api", "users", "v1", "search", "x", "a.b", "caf%C3%A9", "~me"]
SPELLINGS = {"api": "%61pi", "search": "se%61rch/.", "~me": "%7eme", "caf%C3%A9": "café", "x": "y/../x", "v1": "/v1/"}
DECODED = {"%61pi": "api", "se%61rch": "search", "%7eme": "~me", "café": "caf%C3%A9"}
METHODS = ["GET", "POST", "HEAD", "PUT"]
TIERS = ["free", "pro", "gold"]
DIMENSIONS = ["user", "ip", "global", "user+endpoint", "tenant+method", "tier", "user+tier"]
MATCHES: list[dict[str, str]] = [
    {},
    {},
    {"country": "DE"},
    {"country": "FR"},
    {"app": "1"},
    {"country": "DE", "app": "1"},
]


# The naive matcher. It knows nothing of tries, shelves, shapes and caches.


def naive(rules: Iterable[Rule], facts: Mapping[str, str]) -> dict[str, str | None]:
    """The ids of the rules that apply, each with the pattern it applies by."""
    known = dict(facts)
    known.setdefault("tier", USERS.get(facts.get("user", ""), DEFAULT_TIER))
    found = []
    for rule in rules:
        patterns = [text for text in rule.endpoints if "endpoint" in known and naive_fit(text, known["endpoint"])]
        if (
            rule.enabled
            and (patterns or not rule.endpoints)
            and (not rule.methods or naive_method(known.get("method"), rule.methods))
            and (not rule.tiers or known["tier"] in rule.tiers)
            and all(known.get(name) == value for name, value in rule.match.items())
            and (rule.dimension == "global" or all(name in known for name in rule.dimension.split("+")))
        ):
            best = min(patterns, key=naive_rank, default=None)
            found.append((rule, best))
    found.sort(
        key=lambda pair: (
            pair[0].priority,
            [3] if pair[1] is None else naive_rank(pair[1]),
            -(len(pair[0].match) + bool(pair[0].tiers) + bool(pair[0].methods)),
            pair[0].id,
        )
    )
    taken: set[str] = set()
    applied = {}
    for rule, best in found:
        if rule.group is None or rule.group not in taken:
            applied[rule.id] = best
            taken.add(rule.group or "")
    return applied


def naive_method(method: str | None, methods: Iterable[str]) -> bool:
    return method is not None and (method.upper() in methods or (method.upper() == "HEAD" and "GET" in methods))


def naive_fit(pattern: str, path: str) -> bool:
    wanted, given_ = pattern.strip("/").split("/"), naive_segments(path)
    wanted = [] if wanted == [""] else wanted
    if wanted and wanted[-1] == "*":
        wanted = wanted[:-1]
        given_ = given_[: len(wanted)]
    return len(wanted) == len(given_) and all(
        want.startswith("{") or want == have for want, have in zip(wanted, given_, strict=True)
    )


def naive_segments(path: str) -> list[str]:
    segments: list[str] = []
    for segment in path.split("/"):
        if segment == "..":
            segments.pop()
        elif segment not in ("", "."):
            segments.append(DECODED.get(segment, segment))
    return segments


def naive_rank(pattern: str) -> list[int]:
    segments = [segment for segment in pattern.split("/") if segment]
    return [2 if segment == "*" else 1 if segment.startswith("{") else 0 for segment in segments]


# Random rules and requests, out of few words so that they meet often.


def random_rule(chance: random.Random, number: int) -> Rule:
    return Rule(
        id=f"rule-{number}",
        quota=QUOTA,
        dimension=chance.choice(DIMENSIONS),
        endpoints=[random_pattern(chance) for _ in range(chance.choice([0, 1, 1, 1, 2, 3]))],
        methods=chance.sample(METHODS, chance.choice([0, 0, 0, 1, 2])),
        tiers=chance.sample(TIERS, chance.choice([0, 0, 0, 1, 2])),
        match=chance.choice(MATCHES),
        priority=chance.choice([100, 100, 100, 1, 200]),
        group=chance.choice([None, None, "g1", "g2", "g3"]),
        enabled=chance.random() > 0.1,
    )


def random_pattern(chance: random.Random) -> str:
    depth = chance.choice([0, 1, 1, 2, 2, 3, 4])
    segments = [chance.choice([*WORDS, "{id}", "{name}", "{x}"]) for _ in range(depth)]
    return "/" + "/".join([*segments, "*"] if chance.random() < 0.25 else segments)


def random_facts(chance: random.Random) -> dict[str, str]:
    depth = chance.choice([0, 1, 1, 2, 2, 3, 4, 6])
    segments = [chance.choice([*WORDS, str(chance.randrange(10**6))]) for _ in range(depth)]
    if chance.random() < 0.3:
        segments = [SPELLINGS.get(segment, segment) for segment in segments]
    facts = {
        "user": chance.choice(["alice", "bob", f"user-{chance.randrange(10**6)}"]),
        "ip": "192.0.2.1",
        "tenant": "acme",
        "endpoint": "/" + "/".join(segments),
        "method": chance.choice([*METHODS, "get", "DELETE"]),
        "tier": chance.choice([*TIERS, "none such"]),
        "country": chance.choice(["DE", "FR", f"C{chance.randrange(1000)}"]),
        "app": chance.choice(["1", "2"]),
    }
    return {name: value for name, value in facts.items() if chance.random() > 0.25}


def snapshot_of(rules: Iterable[Rule]) -> Snapshot:
    users = [User(id=user, tier=tier) for user, tier in USERS.items()]
    return Snapshot(list(rules), users=users, default_tier=DEFAULT_TIER, facts=["app"])


def found(snapshot: Snapshot, facts: Mapping[str, str]) -> set[str]:
    return {rule.id for rule in snapshot.plan(facts, CLOCK).rules}


def test_the_trie_and_a_naive_matcher_agree_on_random_rules_and_requests(thorough: bool) -> None:
    chance = random.Random(20_240_607)
    batches = 100 if thorough else 25
    matched = 0
    for batch in range(batches):
        rules = [random_rule(chance, 100 * batch + number) for number in range(100)]
        snapshot = snapshot_of(rules)
        for _ in range(100):
            facts = random_facts(chance)
            expected = naive(rules, facts)
            assert found(snapshot, facts) == set(expected), facts
            matched += len(expected)
    assert matched > 300 * batches  # else the words do not meet, and this proves nothing


def test_every_rule_that_does_not_apply_has_a_reason_and_no_other_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explanation, "MAX_EXPLAINED", 1_000)
    chance = random.Random(5)
    lost = 0
    for batch in range(10):
        rules = [random_rule(chance, 100 * batch + number) for number in range(100)]
        snapshot = snapshot_of(rules)
        for _ in range(50):
            facts = random_facts(chance)
            applied = set(naive(rules, facts))
            explained, _ = explanation.explain_rules(snapshot, facts, CLOCK, snapshot.user(facts))
            for one in explained.rules:
                assert one.applies == (one.rule in applied)
                assert one.applies == (not one.unmet and one.lost_to is None), (facts, one)
                assert one.lost_to is None or one.lost_to in applied
                lost += one.lost_to is not None
    assert lost > 100  # else this says little of groups


def test_they_agree_on_many_rules_in_one_snapshot(thorough: bool) -> None:
    chance = random.Random(7)
    rules = [random_rule(chance, number) for number in range(10_000 if thorough else 3_000)]
    snapshot = snapshot_of(rules)
    for _ in range(60):
        facts = random_facts(chance)
        assert found(snapshot, facts) == set(naive(rules, facts)), facts


def test_a_plan_counts_by_the_pattern_that_the_naive_matcher_finds_best() -> None:
    chance = random.Random(11)
    compared = 0
    for batch in range(20):
        rules = [random_rule(chance, number) for number in range(100)]
        snapshot = snapshot_of(rules)
        for _ in range(100):
            facts = random_facts(chance)
            expected = naive(rules, facts)
            for check in snapshot.plan(facts, CLOCK).checks(facts, 1):
                pattern = expected[check.rule]
                rule = rules[int(check.rule.split("-")[1])]
                if rule.dimension == "user+endpoint" and pattern is not None:
                    shape = ["{}" if part.startswith("{") else part for part in pattern.split("/") if part]
                    text = "/" + "/".join(shape)
                    user = facts["user"]
                    assert check.subject == f"{len(user)}:{user}{len(text)}:{text}", (batch, facts, rule)
                    compared += 1
    assert compared > 250


NASTY = st.text(alphabet=st.sampled_from("ab:+{}*%/#@.~\x00é 01"), max_size=6) | st.text(max_size=200)


@given(st.lists(st.fixed_dictionaries({"user": NASTY, "ip": NASTY, "tenant": NASTY}), min_size=2, max_size=6))
def test_no_two_subjects_share_a_key(requests: list[dict[str, str]]) -> None:
    dimensions = ["user", "ip", "tenant", "user+ip", "ip+user", "user+ip+tenant", "user+tenant"]
    ids = ["a", "a:b", "a*", "{a}", "a%3Ab", "user"]
    rules = [
        Rule(id=f"{name}{number}", quota=QUOTA, dimension=dimension)
        for number, (name, dimension) in enumerate(product(ids, dimensions))
    ]
    snapshot = Snapshot(rules)
    owners: dict[str, tuple[str, ...]] = {}
    for facts in requests:
        for check in snapshot.plan(facts, CLOCK).checks(facts, 1):
            rule = next(rule for rule in rules if rule.id == check.rule)
            owner = (rule.id, *(facts[name] for name in rule.facts))
            assert owners.setdefault(check.key, owner) == owner


@given(NASTY.filter(bool), NASTY.filter(bool))
def test_no_two_rules_share_a_key(one: str, other: str) -> None:
    if one != other and one.isprintable() and other.isprintable():
        first, second = Rule(id=one, quota=QUOTA), Rule(id=other, quota=QUOTA)
        assert first.key_template != second.key_template
