"""Why rules apply to a request, or do not."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from headgate import AsyncLimiter, Limiter, Rule
from headgate.rules.exemptions import Exemption
from headgate.rules.explanation import MAX_EXPLAINED, Explanation, RuleExplanation
from headgate.rules.penalties import Penalties
from headgate.rules.snapshot import Snapshot
from headgate.rules.users import Override, Tier, User
from headgate.testing import FakeClock

START = 1_790_000_000.0


def limiter(*rules: Rule, **parts: Any) -> Limiter:
    return Limiter(Snapshot(rules, **parts), clock=FakeClock(START))


def of(explanation: Explanation, rule: str) -> RuleExplanation:
    return next(one for one in explanation.rules if one.rule == rule)


@pytest.mark.parametrize(
    ("rule", "facts", "message"),
    [
        ({"enabled": False}, {}, "the rule is switched off"),
        ({"endpoints": ["/a", "/b/*"]}, {"endpoint": "/c"}, "endpoints: /c is not one of /a, /b/*"),
        ({"endpoints": ["/a"]}, {}, "endpoints: it is for /a, but the request has no endpoint"),
        ({"methods": ["GET"]}, {"method": "post"}, "methods: POST is not one of GET"),
        ({"tiers": ["paid"]}, {"tier": "free"}, "tiers: free is not one of paid"),
        ({"match": {"country": "DE"}}, {"country": "FR"}, "country must be DE, but is FR"),
        ({"match": {"country": "DE"}}, {}, "country must be DE, but is unknown"),
        ({"dimension": "tenant"}, {}, "it counts by tenant, which the request does not have"),
    ],
)
def test_the_condition_that_failed_is_named(rule: dict[str, Any], facts: dict[str, Any], message: str) -> None:
    explained = limiter(Rule(id="r", quota="5/minute", **rule)).explain(user="alice", **facts)
    (one,) = explained.rules
    assert not one.applies
    assert [str(unmet) for unmet in one.unmet] == [message]
    assert explained.decision is not None
    assert explained.decision["reason"] == "no_rule"


@pytest.mark.parametrize(
    ("winner", "because"),
    [
        ({"priority": 1, "endpoints": ["/a/*"]}, "priority 1 comes before 100"),
        ({"endpoints": ["/a/b"]}, "/a/b is more specific than /a/*"),
        ({"endpoints": ["/a/*"], "methods": ["GET"]}, "it has more conditions: 1 against 0"),
        ({"endpoints": ["/a/*"]}, "they are equal but for their ids, and its id comes first"),
    ],
)
def test_the_rule_that_it_lost_to_is_named_and_why(winner: dict[str, Any], because: str) -> None:
    explained = limiter(
        Rule(id="loser", quota="5/minute", group="g", endpoints=["/a/*"]),
        Rule(id="another", quota="9/minute", group="g", **winner),
    ).explain(user="alice", endpoint="/a/b", method="GET")
    lost = of(explained, "loser")
    assert (lost.applies, lost.lost_to, lost.lost_because) == (False, "another", because)
    assert of(explained, "another").applies


def test_tier_and_override_say_where_they_come_from() -> None:
    expires = datetime.fromtimestamp(START + 60, UTC)
    made = limiter(
        Rule(id="paid", quota="5/minute", tiers=["paid"]),
        tiers=[Tier(name="free"), Tier(name="paid")],
        users=[User(id="alice", tier="paid", overrides=[Override(rule="paid", limit=50, expires=expires)])],
        default_tier="free",
    )
    own = made.explain(user="alice")
    assert (own.tier, own.tier_source) == ("paid", "user")
    rule = of(own, "paid")
    assert (rule.quota, rule.rule_quota) == ("50/1m sliding_window_counter", "5/1m sliding_window_counter")
    assert rule.override == {
        **{"user": "alice", "limit": 50, "window": None, "burst": None},
        "expires": "2026-09-21T14:14:20+00:00",
    }
    assert (made.explain(user="bob").tier, made.explain(user="bob").tier_source) == ("free", "default")
    stated = made.explain(user="bob", tier="paid")
    assert (stated.tier, stated.tier_source, of(stated, "paid").override) == ("paid", "request", None)


def test_it_charges_nothing_and_tells_the_state_and_the_key() -> None:
    made = limiter(Rule(id="r", quota="10/minute gcra", cost=2))
    made.check(user="alice", cost=3)
    for _ in range(3):
        rule = of(made.explain(user="alice"), "r")
        assert rule.state is not None
        assert (rule.state.used, rule.state.remaining, rule.state.limit) == (6, 4, 10)
        assert rule.state.allowed
        assert (rule.subject, rule.cost, rule.key) == ("alice", 2, "user:{alice}:r:gcra")
    assert made.peek(user="alice").remaining == 4


def test_what_would_let_it_pass_is_right() -> None:
    clock = FakeClock(START)
    rules = Snapshot(
        [
            Rule(id="free", quota="10/minute gcra", tiers=["free"]),
            Rule(id="paid", quota="100/minute gcra", tiers=["paid"]),
            Rule(id="trial", quota="1/minute gcra", tiers=["trial"]),
        ],
        default_tier="free",
    )
    made = Limiter(rules, clock=clock)
    made.check(user="alice", cost=8)
    explained = made.explain(user="alice", cost=5)
    remedies = {remedy.kind: remedy for remedy in explained.remedies}
    assert remedies["tier"].value == "paid"
    assert made.peek(user="alice", cost=5, tier="paid").allowed
    assert remedies["cost"].value == 2
    assert made.peek(user="alice", cost=2).allowed
    wait = remedies["wait"].value
    assert isinstance(wait, float)
    assert remedies["wait"].at == datetime.fromtimestamp(START + wait, UTC).isoformat()
    clock.advance(wait)
    assert made.explain(user="alice", cost=5).remedies == []
    assert made.check(user="alice", cost=5).allowed


def test_what_never_passes_has_no_time_at_which_it_does() -> None:
    explained = limiter(Rule(id="r", quota="10/minute")).explain(user="alice", cost=11)
    assert [remedy.kind for remedy in explained.remedies] == ["cost"]


def test_the_cost_that_would_pass_is_told_by_unit() -> None:
    made = limiter(
        Rule(id="requests", quota="5/minute"),
        Rule(id="tokens", quota="1000/minute", unit="tokens"),
        Rule(id="money", quota="50/minute", unit="usd_micros", cost=2),
    )
    made.check(user="alice", cost={"tokens": 600})
    explained = made.explain(user="alice", cost={"requests": 1, "tokens": 2_000, "usd_micros": 30})
    (remedy,) = explained.remedies
    assert (remedy.kind, remedy.value) == ("cost", {"requests": 1, "tokens": 400, "usd_micros": 25})
    assert made.peek(user="alice", cost={"requests": 1, "tokens": 400, "usd_micros": 25}).allowed
    made.check(user="alice", cost={"tokens": 400})
    assert "cost" not in {one.kind for one in made.explain(user="alice", cost={"tokens": 1}).remedies}


def test_an_explanation_has_no_decision_id_as_no_event_has_it() -> None:
    explained = limiter(Rule(id="r", quota="10/minute")).explain(user="alice", cost=11)
    assert explained.decision is not None
    assert not explained.decision["allowed"]
    assert "decision_id" not in explained.decision


def test_an_exemption_is_named() -> None:
    made = limiter(
        Rule(id="r", quota="1/minute", dimension="ip"),
        exemptions=[Exemption(type="user", value="bob"), Exemption(type="ip", value="10.0.0.0/8")],
    )
    explained = made.explain(ip="10.1.2.3")
    assert explained.exemption == Exemption(type="ip", value="10.0.0.0/8")
    assert explained.decision is not None
    assert explained.decision["reason"] == "exempt"
    assert made.explain(ip="192.0.2.1").exemption is None


def test_a_client_that_is_blocked_is_told_so() -> None:
    penalties = Penalties(enabled=True, violation_threshold=1, multipliers=[1])
    made = limiter(Rule(id="r", quota="1/minute"), penalties=penalties)
    for _ in range(2):
        made.check(user="alice")
    explained = made.explain(user="alice")
    assert explained.decision is not None
    assert explained.decision["reason"] == "penalty"
    assert [remedy.kind for remedy in explained.remedies] == ["wait"]


def test_of_many_rules_those_that_lack_least_are_told() -> None:
    rules = [Rule(id=f"r{n}", quota="5/minute", endpoints=[f"/{n}"], methods=["POST"]) for n in range(200)]
    explained = limiter(*rules, Rule(id="z", quota="1/minute")).explain(user="a", endpoint="/150", method="GET")
    assert len(explained.rules) == MAX_EXPLAINED
    assert explained.omitted == 201 - MAX_EXPLAINED
    assert [one.rule for one in explained.rules[:2]] == ["z", "r150"]


def test_it_is_plain_data() -> None:
    explained = limiter(Rule(id="r", quota="1/minute"), Rule(id="s", quota="1/minute", tiers=["x"])).explain("alice")
    table = explained.as_dict()
    assert table["rules"][0]["state"]["remaining"] == 1
    assert table["rules"][1]["unmet"][0]["field"] == "tiers"
    assert table["decision"]["allowed"] is True


async def explained_async() -> dict[str, Any]:
    async with AsyncLimiter([Rule(id="r", quota="1/minute")], clock=FakeClock(START)) as made:
        await made.check("alice")
        return (await made.explain("alice")).as_dict()


def test_both_limiters_explain_alike() -> None:
    import asyncio

    made = Limiter([Rule(id="r", quota="1/minute")], clock=FakeClock(START))
    made.check("alice")
    one, other = asyncio.run(explained_async()), made.explain("alice").as_dict()
    assert one == other
