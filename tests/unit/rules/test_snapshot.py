"""Which rules apply to a request: matching, alternatives, tiers, exemptions; and what a snapshot refuses to hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import FrozenInstanceError
from datetime import UTC, datetime
from typing import Any

import pytest

from headgate import InvalidRule, Quota, Rule
from headgate.rules import Exemption, Override, Penalties, Snapshot, Tier, User
from headgate.testing import FakeClock

CLOCK = FakeClock(1_700_000_000)
QUOTA = Quota(10, "1m")


def rule(id: str, **fields: Any) -> Rule:  # noqa: A002
    return Rule(id=id, quota=QUOTA, **fields)


def applied(rules: Sequence[Rule], **facts: str) -> list[str]:
    return ids(Snapshot(rules), **facts)


def ids(snapshot: Snapshot, **facts: str) -> list[str]:
    return [rule.id for rule in snapshot.plan(facts, CLOCK).rules]


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("/api/search", "/api/search", True),
        ("/api/search", "/api/search/", True),
        ("/api/search", "//api/./x/../search?q=1", True),
        ("/api/search", "/api/se%61rch", True),
        ("/api/search", "/api/searching", False),
        ("/api/search", "/api/search/deep", False),
        ("/api/search", "/api", False),
        ("/api/search", "/API/search", False),
        ("/users/{id}/posts", "/users/7/posts", True),
        ("/users/{id}/posts", "/users//posts", False),
        ("/users/{id}/posts", "/users/7/8/posts", False),
        ("/users/{id}/posts", "/users/7", False),
        ("/users/{id}", "/users/a%2Fb", True),
        ("/api/*", "/api", True),
        ("/api/*", "/api/", True),
        ("/api/*", "/api/a", True),
        ("/api/*", "/api/a/b/c", True),
        ("/api/*", "/apis", False),
        ("/api/*", "/x/../api/a", True),
        ("/*", "/", True),
        ("*", "/a/b", True),
        ("/", "/", True),
        ("/", "/a", False),
        ("/{x}/*", "/a", True),
        ("/{x}/*", "/", False),
    ],
)
def test_endpoints(pattern: str, path: str, fits: bool) -> None:
    assert applied([rule("a", endpoints=[pattern])], user="u", endpoint=path) == (["a"] if fits else [])


def test_a_rule_without_endpoints_applies_everywhere_and_one_with_them_needs_a_path() -> None:
    rules = [rule("all"), rule("some", endpoints=["/*"])]
    assert applied(rules, user="u") == ["all"]
    assert applied(rules, user="u", endpoint="/x") == ["some", "all"]


@pytest.mark.parametrize(
    ("methods", "method", "fits"),
    [
        (["GET"], "GET", True),
        (["GET"], "get", True),
        (["GET"], "gEt", True),
        (["GET"], "POST", False),
        (["GET"], "HEAD", True),
        (["HEAD"], "GET", False),
        (["POST"], "HEAD", False),
        (["GET", "POST"], "POST", True),
        (["GET"], None, False),
        ([], None, True),
        ([], "ANYTHING", True),
    ],
)
def test_methods(methods: list[str], method: str | None, fits: bool) -> None:
    facts = {"user": "u"} if method is None else {"user": "u", "method": method}
    assert applied([rule("a", methods=methods)], **facts) == (["a"] if fits else [])


def test_other_facts_match_by_value() -> None:
    rules = [rule("german", match={"country": "DE"}), rule("acme", match={"country": "DE", "tenant": "acme"})]
    assert applied(rules, user="u") == []
    assert applied(rules, user="u", country="FR") == []
    assert applied(rules, user="u", country="DE") == ["german"]
    assert sorted(applied(rules, user="u", country="DE", tenant="acme")) == ["acme", "german"]
    assert applied(rules, user="u", tenant="acme") == []


def test_a_rule_needs_every_fact_of_its_dimension() -> None:
    rules = [rule("joined", dimension="user+ip"), rule("all", dimension="global"), rule("key", dimension="api_key")]
    assert applied(rules) == ["all"]
    assert applied(rules, user="u") == ["all"]
    assert applied(rules, user="u", ip="192.0.2.1") == ["all", "joined"]
    assert applied(rules, api_key="k") == ["all", "key"]


def test_rules_that_are_not_enabled_apply_to_nobody() -> None:
    assert applied([rule("off", enabled=False), rule("on")], user="u") == ["on"]
    snapshot = Snapshot([rule("a")], enabled=False, exemptions=[Exemption(type="user", value="u")])
    plan = snapshot.plan({"user": "u"}, CLOCK)
    assert (plan.rules, plan.reason) == ((), "no_rule")


def test_of_a_group_the_first_alone_applies() -> None:
    rules = [
        rule("default", group="g"),
        rule("tier", group="g", tiers=["free"]),
        rule("wild", group="g", endpoints=["/api/*"]),
        rule("param", group="g", endpoints=["/api/{x}"]),
        rule("exact", group="g", endpoints=["/api/search"]),
        rule("other", group="h"),
        rule("single"),
    ]
    for shuffled in (rules, rules[::-1]):
        assert set(applied(shuffled, user="u", tier="free", endpoint="/api/search")) == {"exact", "other", "single"}
        assert set(applied(shuffled, user="u", tier="free", endpoint="/api/x")) == {"param", "other", "single"}
        assert set(applied(shuffled, user="u", tier="free", endpoint="/api/x/y")) == {"wild", "other", "single"}
        assert set(applied(shuffled, user="u", tier="free", endpoint="/x")) == {"tier", "other", "single"}
        assert set(applied(shuffled, user="u", tier="pro", endpoint="/x")) == {"default", "other", "single"}


def test_priority_comes_before_specificity_and_the_id_decides_the_rest() -> None:
    rules = [rule("exact", group="g", endpoints=["/a"]), rule("urgent", group="g", priority=1)]
    assert applied(rules, user="u", endpoint="/a") == ["urgent"]
    same = [rule("b", group="g"), rule("a", group="g"), rule("c", group="g")]
    assert applied(same, user="u") == ["a"]


def test_an_alternative_that_does_not_match_makes_way() -> None:
    rules = [
        rule("post", group="g", priority=1, methods=["POST"]),
        rule("key", group="g", priority=2, dimension="api_key"),
        rule("off", group="g", priority=3, enabled=False),
        rule("rest", group="g", priority=4),
    ]
    assert applied(rules, user="u", method="GET") == ["rest"]


def test_specificity_is_compared_segment_by_segment() -> None:
    rules = [rule("early", group="g", endpoints=["/a/*"]), rule("late", group="g", endpoints=["/{x}/b/c"])]
    assert applied(rules, user="u", endpoint="/a/b/c") == ["early"]


def test_a_rule_that_matches_by_several_patterns_applies_once_by_the_best() -> None:
    one = rule("a", endpoints=["/api/*", "/api/search", "/api/{x}"], dimension="user+endpoint")
    plan = Snapshot([one]).plan({"user": "u", "endpoint": "/api/search"}, CLOCK)
    assert [check.subject for check in plan.checks({"user": "u", "endpoint": "/api/search"}, 1)] == [
        "1:u11:/api/search"
    ]


def subjects(one: Rule, **facts: str) -> list[str]:
    return [check.subject for check in Snapshot([one]).plan(facts, CLOCK).checks(facts, 1)]


def test_the_endpoint_of_a_subject_is_the_pattern_that_matched() -> None:
    one = rule("a", dimension="user+endpoint", endpoints=["/users/{id}", "/api/*"])
    first = subjects(one, user="u", endpoint="/users/1")
    assert first == subjects(one, user="u", endpoint="/users/2") == ["1:u9:/users/{}"]
    assert subjects(one, user="u", endpoint="/api/a") == subjects(one, user="u", endpoint="/api/b/c")
    assert subjects(rule("a", dimension="endpoint", endpoints=["/api/*"]), endpoint="/api/x") == ["/api/*"]


def test_without_patterns_the_endpoint_of_a_subject_is_the_normal_path() -> None:
    one = rule("a", dimension="endpoint")
    assert subjects(one, endpoint="//a/%62/") == subjects(one, endpoint="/a/b") == ["/a/b"]
    assert subjects(one, endpoint="/a/c") == ["/a/c"]


def test_the_method_of_a_subject_is_in_capitals() -> None:
    assert subjects(rule("a", dimension="method"), method="get") == ["GET"]


def test_the_subject_of_all_is_one() -> None:
    assert subjects(rule("a", dimension="global"), user="u") == subjects(rule("a", dimension="global")) == [""]


def test_tiers_come_from_the_request_then_the_user_then_the_default() -> None:
    rules = [rule(tier, tiers=[tier]) for tier in ("free", "pro", "gold")]
    snapshot = Snapshot(rules, users=[User(id="paying", tier="pro"), User(id="plain")], default_tier="free")
    assert ids(snapshot, user="paying", tier="gold") == ["gold"]
    assert ids(snapshot, user="paying") == ["pro"]
    assert ids(snapshot, user="plain") == ["free"]
    assert ids(snapshot, user="stranger") == ["free"]
    assert ids(snapshot, user="paying", tier="unheard of") == []
    assert ids(Snapshot(rules), user="stranger") == []


def test_a_tier_can_be_a_subject_wherever_it_comes_from() -> None:
    snapshot = Snapshot([rule("a", dimension="tier")], users=[User(id="paying", tier="pro")], default_tier="free")
    for facts, subject in (
        ({"user": "paying"}, "pro"),
        ({"user": "x"}, "free"),
        ({"tier": "gold"}, "gold"),
        ({"tier": "silver"}, "silver"),
    ):
        assert [check.subject for check in snapshot.plan(facts, CLOCK).checks(facts, 1)] == [subject]


def test_the_exempt_are_not_asked_about() -> None:
    snapshot = Snapshot(
        [rule("a", dimension="global")],
        exemptions=[Exemption(type="ip", value="10.0.0.0/8"), Exemption(type="tenant", value="acme")],
    )
    for facts in ({"ip": "10.1.1.1"}, {"tenant": "acme", "ip": "192.0.2.1"}):
        plan = snapshot.plan(facts, CLOCK)
        assert (plan.applied, plan.reason) == ((), "exempt")
    assert snapshot.plan({"ip": "192.0.2.1"}, CLOCK).reason is None


def test_a_shadow_is_evaluated_and_not_enforced() -> None:
    plan = Snapshot([rule("a"), rule("b", action="log_only")]).plan({"user": "u"}, CLOCK)
    assert [(check.rule, check.enforced) for check in plan.checks({"user": "u"}, 1)] == [("a", True), ("b", False)]


def test_the_failure_mode_is_the_rule_s_then_the_snapshot_s_then_the_limiter_s() -> None:
    rules = [rule("own", failure_mode="local"), rule("none")]
    modes = [one.failure_mode for one in Snapshot(rules, failure_mode="closed").plan({"user": "u"}, CLOCK).applied]
    assert sorted(map(str, modes)) == ["closed", "local"]
    modes = [one.failure_mode for one in Snapshot(rules).plan({"user": "u"}, CLOCK).applied]
    assert sorted(map(str, modes)) == ["None", "local"]


def test_an_override_replaces_the_quota_of_one_user_until_it_expires() -> None:
    clock = FakeClock(1_700_000_000)
    expires = datetime.fromtimestamp(1_700_000_060, UTC)
    snapshot = Snapshot(
        [rule("a"), rule("b")], users=[User(id="vip", overrides=[Override(rule="a", limit=50, expires=expires)])]
    )

    def limits(user: str) -> dict[str, int]:
        return {check.rule: check.quota.limit for check in snapshot.plan({"user": user}, clock).limits}

    assert limits("vip") == {"a": 50, "b": 10}
    assert limits("other") == {"a": 10, "b": 10}
    clock.advance(59.999999)
    assert limits("vip") == {"a": 50, "b": 10}
    clock.advance(0.000001)
    assert limits("vip") == {"a": 10, "b": 10}


def test_an_override_counts_where_the_rule_does_unless_its_window_is_another() -> None:
    rules = [rule("a"), rule("b")]
    overrides = [Override(rule="a", limit=50), Override(rule="b", limit=50, window="1h")]
    snapshot = Snapshot(rules, users=[User(id="vip", overrides=overrides)])
    plain, vip = (
        {check.rule: check.key for check in snapshot.plan({"user": user}, CLOCK).checks({"user": "x"}, 1)}
        for user in ("other", "vip")
    )
    assert plain["a"] == vip["a"]
    assert plain["b"] != vip["b"]


def test_a_leaky_bucket_that_throttles_is_no_deeper_than_its_delay() -> None:
    quota = "10/second burst 100 leaky_bucket"
    snapshot = Snapshot(
        [
            Rule(id="throttle", quota=quota, action="throttle", max_delay="2s"),
            Rule(id="reject", quota=quota, max_delay="2s"),
            Rule(id="open", quota=quota, action="throttle"),
        ]
    )
    bursts = {check.rule: check.quota.burst for check in snapshot.plan({"user": "u"}, CLOCK).limits}
    assert bursts == {"throttle": 21, "reject": 100, "open": 100}


def test_what_is_remembered_is_bounded_and_knows_no_users() -> None:
    snapshot = Snapshot(
        [rule("a", endpoints=["/api/{x}"], dimension="user"), rule("b", match={"country": "DE"}, methods=["GET"])]
    )
    planner = snapshot.planner
    for number in range(20_000):
        facts = {"user": f"u{number}", "endpoint": f"/api/{number}", "country": f"c{number}", "method": f"M{number}"}
        assert snapshot.plan(facts, CLOCK).rules[0].id == "a"
    assert len(planner._plans) == 1
    assert len(planner._shelves) <= 2 * 4_096
    snapshot.plan({"user": "u", "endpoint": "/" + "x" * 10_000}, CLOCK)
    assert all(len(path) <= 256 for path in planner._shelves._young | planner._shelves._old)


def test_the_same_shape_has_the_same_plan() -> None:
    snapshot = Snapshot([rule("a", endpoints=["/api/{x}"])])
    first = snapshot.plan({"user": "u", "endpoint": "/api/1"}, CLOCK)
    assert snapshot.plan({"user": "v", "endpoint": "/api/2"}, CLOCK) is first


def test_requests_of_another_kind_never_get_a_plan_that_was_made_for_one() -> None:
    snapshot = Snapshot(
        [
            rule("read", methods=["GET"]),
            rule("free", tiers=["free"]),
            rule("german", match={"country": "DE"}),
            rule("address", dimension="ip"),
            rule("search", endpoints=["/search"]),
        ]
    )
    kinds: list[tuple[dict[str, str], set[str]]] = [
        ({"method": "HEAD"}, {"read"}),
        ({"method": "DELETE"}, set()),
        ({"method": "get"}, {"read"}),
        ({}, set()),
        ({"tier": "free"}, {"free"}),
        ({"tier": "pro"}, set()),
        ({"country": "DE"}, {"german"}),
        ({"country": "FR"}, set()),
        ({"ip": "192.0.2.1"}, {"address"}),
        ({"endpoint": "/search"}, {"search"}),
        ({"endpoint": "/other"}, set()),
        ({"method": "HEAD", "tier": "free", "endpoint": "/search"}, {"read", "free", "search"}),
    ]
    for order in (kinds, kinds[::-1]):
        for facts, expected in order:
            assert set(ids(snapshot, user="u", **facts)) == expected, facts


def test_a_snapshot_does_not_change() -> None:
    rules = [rule("a")]
    snapshot = Snapshot(rules)
    rules.append(rule("b"))
    assert [one.id for one in snapshot.rules] == ["a"]
    with pytest.raises(FrozenInstanceError):
        snapshot.rules = ()  # type: ignore[misc]


def test_settings_are_kept() -> None:
    snapshot = Snapshot([], trusted_proxies=["10.0.0.0/8", "::1"], failure_mode="fail_closed")  # type: ignore[list-item, arg-type]
    assert [str(network) for network in snapshot.trusted_proxies] == ["10.0.0.0/8", "::1/128"]
    assert snapshot.failure_mode == "closed"
    assert snapshot.penalties == Penalties()
    assert snapshot.trusted_proxy_depth == 1


@pytest.mark.parametrize(
    ("parts", "where", "field", "complaint"),
    [
        ({"rules": [rule("a"), rule("b"), rule("a")]}, "rule 'a'", "id", "used 2 times (numbers 1 and 3)"),
        ({"tiers": [Tier(name="x"), Tier(name="x")]}, "tier 'x'", "name", "used 2 times"),
        ({"users": [User(id="u"), User(id="u")]}, "user 'u'", "id", "used 2 times"),
        (
            {"rules": [rule("a", tiers=["gold"])], "tiers": [Tier(name="free"), Tier(name="pro")]},
            *("rule 'a'", "tiers", "'gold' is not one of the tiers (free, pro)"),
        ),
        ({"tiers": [Tier(name="pro")], "default_tier": "fre"}, "[headgate]", "default_tier", "'fre' is not one of"),
        (
            {"users": [User(id="u", overrides=[Override(rule="x", limit=1)])]},
            *("user 'u': override of rule 'x'", "rule", "no rule has this id"),
        ),
        (
            {"rules": [rule("a", dimension="ip")], "users": [User(id="u", overrides=[Override(rule="a", limit=1)])]},
            *("user 'u': override of rule 'a'", "rule", "it counts by ip, not by user"),
        ),
        (
            {
                "rules": [rule("a")],
                "users": [User(id="u", overrides=[Override(rule="a", limit=1), Override(rule="a", limit=2)])],
            },
            *("user 'u': override of rule 'a'", "rule", "used 2 times"),
        ),
        (
            {"rules": [rule("a")], "users": [User(id="u", overrides=[Override(rule="a", limit=1, burst=2**50)])]},
            *("user 'u': override of rule 'a'", "burst", "more than 100 years"),
        ),
        ({"enabled": "yes"}, "[headgate]", "enabled", "must be true or false"),
        ({"default_tier": 5}, "[headgate]", "default_tier", "got 5"),
        ({"failure_mode": "maybe"}, "[headgate]", "failure_mode", "must be one of open, closed, local"),
        ({"trusted_proxies": "10.0.0.0/8"}, "[headgate]", "trusted_proxies", "must be a list of networks"),
        ({"trusted_proxies": ["10.0.0.1/8"]}, "[headgate]", "trusted_proxies", "write '10.0.0.0/8'"),
        ({"trusted_proxies": [5]}, "[headgate]", "trusted_proxies", "got 5"),
        ({"trusted_proxy_depth": 0}, "[headgate]", "trusted_proxy_depth", "from 1 to 100"),
    ],
)
def test_what_does_not_fit_together_is_named(parts: dict[str, Any], where: str, field: str, complaint: str) -> None:
    with pytest.raises(InvalidRule) as caught:
        Snapshot(**({"rules": []} | parts))
    (problem,) = caught.value.problems
    assert (problem.where, problem.field) == (where, field)
    assert complaint in problem.message


def test_shards_do_not_go_with_penalties() -> None:
    hot = Rule(id="hot", quota="100/s", shards=8)
    assert Snapshot([hot, Rule(id="b", quota="1/s")], penalties=Penalties()).sharded == {"hot": 8}
    with pytest.raises(InvalidRule, match="rule 'hot': shards: cannot be above 1 while penalties are enabled"):
        Snapshot([hot], penalties=Penalties(enabled=True))
