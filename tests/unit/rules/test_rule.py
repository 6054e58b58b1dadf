"""Rules are checked when they are built, every field, and say what is wrong with each."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, replace
from datetime import timedelta
from typing import Any

import pytest

from headgate import InvalidRule, Quota, Rule
from headgate.rules.snapshot import Snapshot


def test_defaults() -> None:
    rule = Rule(id="a", quota="100/minute")
    assert rule.quota == Quota(100, "1m")
    assert (rule.dimension, rule.facts, rule.action, rule.priority) == ("user", ("user",), "reject", 100)
    assert (rule.endpoints, rule.methods, rule.tiers, rule.match) == ((), (), (), {})
    assert (rule.max_delay, rule.group, rule.sync, rule.failure_mode) == (None, None, "exact", None)
    assert rule.shards == 1
    assert (rule.cost, rule.status, rule.message, rule.name, rule.enabled) == (1, 429, "", "", True)


def test_every_field_is_kept() -> None:
    fields: dict[str, Any] = {
        "id": "search",
        "quota": Quota(10, "1s", algorithm="gcra"),
        "name": "Search",
        "dimension": "user+endpoint",
        "endpoints": ("/search", "/users/{id}"),
        "methods": ("GET", "POST"),
        "tiers": ("free",),
        "match": {"country": "DE"},
        "action": "throttle",
        "max_delay": 2.0,
        "priority": -1,
        "group": "search",
        "sync": "leased",
        "shards": 1,
        "failure_mode": "closed",
        "cost": 3,
        "status": 503,
        "message": "Later.",
        "enabled": False,
    }
    rule = Rule(**fields)
    assert {name: getattr(rule, name) for name in fields} == fields


def test_values_are_kept_in_one_form() -> None:
    rule = Rule(
        id="a",
        quota="1/s",
        methods=["get", "GET", "Post"],
        endpoints=["/a/{x}", "/a/{y}"],
        match={"version": 2},
        max_delay=timedelta(milliseconds=1500),
        failure_mode="fail_closed",  # type: ignore[arg-type]
    )
    assert rule.methods == ("GET", "POST")
    assert rule.endpoints == ("/a/{x}", "/a/{y}")
    assert len(rule.patterns) == 1
    assert rule.match == {"version": "2"}
    assert rule.max_delay == 1.5
    assert rule.failure_mode == "closed"


@pytest.mark.parametrize(
    ("field", "value", "complaint"),
    [
        ("id", "", "must be a non-empty string"),
        ("id", 5, "must be a non-empty string"),
        ("id", "a\nb", "without control characters"),
        ("quota", 5, "must be a Quota, or a notation"),
        ("quota", "often", "cannot read 'often' as a quota"),
        ("quota", "0/minute", "limit: must be a whole number"),
        ("quota", "1/s; 5/m", "cannot read"),
        ("name", None, "must be a string, got None"),
        ("dimension", "", "cannot read ''"),
        ("dimension", "user+", "cannot read 'user+'"),
        ("dimension", "user+user", "cannot read 'user+user'"),
        ("dimension", "user + ip", "cannot read 'user + ip'"),
        ("dimension", "global+user", "cannot read 'global+user'"),
        ("dimension", 5, "cannot read 5"),
        ("endpoints", "/api", "must be a list of patterns, got '/api'"),
        ("endpoints", ["api"], "got 'api'"),
        ("endpoints", [5], "got 5"),
        ("endpoints", 5, "must be a list of patterns, got 5"),
        ("methods", "GET", "must be a list of methods, got 'GET'"),
        ("methods", ["GET /"], "got 'GET /'"),
        ("methods", [""], "got ''"),
        ("methods", [1], "got 1"),
        ("tiers", "free", "must be a list of tiers, got 'free'"),
        ("tiers", [""], "got ''"),
        ("match", ["country"], "must be a table of facts"),
        ("match", {"": "x"}, "must name facts, got ''"),
        ("match", {"country": True}, "'country' must be a string or an integer, got True"),
        ("match", {"country": 1.5}, "got 1.5"),
        ("match", {"endpoint": "/x"}, "its own field: endpoints"),
        ("match", {"method": "GET"}, "its own field: methods"),
        ("match", {"tier": "free"}, "its own field: tiers"),
        ("action", "block", "must be one of reject, throttle, annotate, log_only, got 'block'"),
        ("action", None, "got None"),
        ("max_delay", -1, "must be from 0 to 366 days, got -1"),
        ("max_delay", "soon", "cannot read 'soon' as a duration"),
        ("max_delay", True, "cannot read True"),
        ("priority", 1.5, "must be a whole number from -2^53+1 to 2^53-1, got 1.5"),
        ("priority", True, "got True"),
        ("group", "", "must be a non-empty string"),
        ("group", 5, "got 5"),
        ("sync", "eventual", "must be one of exact, leased, got 'eventual'"),
        ("shards", 0, "must be a whole number from 1 to 64, got 0"),
        ("shards", 65, "got 65"),
        ("shards", True, "got True"),
        ("regions", "all", "must be one of separate, central, quota, quota_auto, synced, got 'all'"),
        ("failure_mode", "maybe", "must be one of open, closed, local, got 'maybe'"),
        ("failure_mode", 5, "got 5"),
        ("cost", 0, "must be a whole number from 1 to 2^53-1, got 0"),
        ("cost", "1", "got '1'"),
        ("status", 200, "must be a whole number from 400 to 599, got 200"),
        ("status", 600, "got 600"),
        ("message", 5, "must be a string, got 5"),
        ("enabled", "yes", "must be true or false, got 'yes'"),
    ],
)
def test_a_wrong_field_is_named_with_its_value(field: str, value: object, complaint: str) -> None:
    fields: dict[str, Any] = {"id": "a", "quota": "1/s", field: value}
    with pytest.raises(InvalidRule) as caught:
        Rule(**fields)
    (problem,) = caught.value.problems
    assert problem.field == field
    assert problem.where == f"rule {fields['id']!r}"
    assert complaint in problem.message
    assert str(caught.value) == f"{problem.where}: {field}: {problem.message}"


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(InvalidRule) as caught:
        Rule(id="a", quota="1/s sliding_window_log", sync="leased", cost=0, endpoints=["x", "/ok", "y"], status=1)
    assert [problem.field for problem in caught.value.problems] == ["endpoints", "endpoints", "cost", "status", "sync"]
    assert len(str(caught.value).splitlines()) == 5


@pytest.mark.parametrize(
    ("regions", "quota", "why"),
    [
        ("synced", "1/s gcra", "a gcra cannot be synced: it drains"),
        ("synced", "1/s token_bucket", "a token_bucket cannot be synced: it drains"),
        ("synced", "1/s leaky_bucket", "a leaky_bucket cannot be synced: it drains"),
        ("synced", "1/s sliding_window_log", "a sliding_window_log cannot be synced: it has no count for each window"),
        ("quota_auto", "1/m gcra", "the shares of a gcra cannot be moved"),
        ("quota_auto", "1/m token_bucket", "the shares of a token_bucket cannot be moved"),
        ("quota_auto", "1/m leaky_bucket", "the shares of a leaky_bucket cannot be moved"),
        ("quota_auto", "1/9s", "a window of less than 10 seconds ends before its shares can be divided again"),
    ],
)
def test_what_regions_cannot_share_is_refused_with_the_reason(regions: Any, quota: str, why: str) -> None:
    with pytest.raises(InvalidRule, match=f"rule 'a': regions: {why}"):
        Rule(id="a", quota=quota, regions=regions)
    with pytest.raises(InvalidRule, match=rf"rule 'a': regions: not set, and \[headgate\] says '{regions}': {why}"):
        Snapshot([Rule(id="a", quota=quota)], regions=regions)
    assert Snapshot([Rule(id="a", quota=quota, regions="separate")], regions=regions).spread == {}


def test_rules_are_shared_as_they_say_else_as_the_settings_say() -> None:
    rules = [Rule(id="a", quota="1/m"), Rule(id="b", quota="1/m", regions="central")]
    assert Snapshot(rules).spread == {"b": "central"}
    assert Snapshot(rules, regions="synced").spread == {"a": "synced", "b": "central"}


def test_a_log_cannot_be_leased() -> None:
    with pytest.raises(InvalidRule, match=r"rule 'a': sync: a sliding_window_log cannot be leased"):
        Rule(id="a", quota="1/s sliding_window_log", sync="leased")
    assert Rule(id="a", quota="1/s gcra", sync="leased").sync == "leased"


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"quota": "7/s"}, "must not be above the limit (7), which they divide, got 8"),
        ({"quota": "100/s burst 7"}, "must not be above the burst (7), which they divide, got 8"),
        ({"quota": "100/s leaky_bucket"}, "a leaky_bucket cannot have shards"),
        ({"quota": "100/s", "sync": "leased"}, "a leased rule cannot have shards"),
        ({"quota": "9/y burst 890"}, "the burst takes too long to fill when divided into 8 shards"),
    ],
)
def test_shards_that_make_no_sense(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidRule) as caught:
        Rule(id="a", shards=8, **fields)
    (problem,) = caught.value.problems
    assert (problem.where, problem.field) == ("rule 'a'", "shards")
    assert complaint in problem.message


def test_rules_are_values() -> None:
    rule = Rule(id="a", quota="1/s", match={"country": "DE"}, endpoints=["/a"])
    assert rule == Rule(id="a", quota="1/s", match={"country": "DE"}, endpoints=["/a"])
    assert rule != replace(rule, match={"country": "FR"})
    assert len({rule, copy.deepcopy(rule), pickle.loads(pickle.dumps(rule))}) == 1
    with pytest.raises(FrozenInstanceError):
        rule.cost = 2  # type: ignore[misc]


def test_a_changed_copy_is_checked_too() -> None:
    rule = Rule(id="a", quota="1/s", endpoints=["/a"], max_delay="2s")
    assert replace(rule, quota=Quota(5, 1)) == Rule(id="a", quota="5/s", endpoints=["/a"], max_delay="2s")
    with pytest.raises(InvalidRule, match="cost"):
        replace(rule, cost=0)


def test_the_key_knows_no_limit_so_that_a_change_keeps_the_counts() -> None:
    small, large = Rule(id="a", quota="1/s"), Rule(id="a", quota="5/h")
    assert small.key_template == large.key_template
