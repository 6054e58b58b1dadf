"""Names of facts, and requests to which no rule applies."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest

from headgate import InvalidCheck, InvalidRule, Limiter, Rule
from headgate.http.problem import problem
from headgate.rules import Exemption, Snapshot
from headgate.rules.facts import WELL_KNOWN, FactNames
from headgate.rules.sources.document import parse_toml, snapshot_of
from headgate.testing import FakeClock


def rule(**fields: Any) -> Rule:
    return Rule(id="r", quota="5/minute", **fields)


@pytest.mark.parametrize(
    ("fields", "field", "complaint"),
    [
        ({"dimension": "IP"}, "dimension", "unknown fact 'IP'; did you mean 'ip'?"),
        ({"dimension": "user+endpiont"}, "dimension", "unknown fact 'endpiont'; did you mean 'endpoint'?"),
        ({"dimension": "apikey"}, "dimension", "did you mean 'api_key'?"),
        ({"dimension": "shoe_size"}, "dimension", 'declare it with [headgate] facts = ["shoe_size"] or'),
        ({"match": {"contry": "DE"}}, "match", "unknown fact 'contry'; did you mean 'country'?"),
    ],
)
def test_a_rule_with_an_unknown_fact_is_refused_when_rules_are_loaded(
    fields: dict[str, Any], field: str, complaint: str
) -> None:
    for load in (lambda: Snapshot([rule(**fields)]), lambda: Limiter([rule(**fields)])):
        with pytest.raises(InvalidRule) as caught:
            load()
        (found,) = caught.value.problems
        assert (found.where, found.field) == ("rule 'r'", field)
        assert complaint in found.message


@pytest.mark.parametrize(
    ("dimension", "meant"),
    [("user,ip", "user+ip"), ("user, ip", "user+ip"), ("user + ip", "user+ip"), ("user/ip", "user+ip")],
)
def test_facts_are_joined_with_a_plus(dimension: str, meant: str) -> None:
    with pytest.raises(InvalidRule, match=re.escape(f"did you mean '{meant}'")):
        rule(dimension=dimension)


def test_a_declared_fact_is_as_good_as_a_well_known_one() -> None:
    snapshot = Snapshot([rule(dimension="shoe_size", match={"colour": "red"})], facts=["shoe_size", "colour"])
    limiter = Limiter(snapshot)
    assert limiter.check(shoe_size=43, colour="red").rule == "r"
    with pytest.raises(InvalidCheck, match="unknown fact 'shoesize'; did you mean 'shoe_size'"):
        limiter.check(shoesize=43)


def test_a_file_declares_facts_and_says_what_is_wrong_where() -> None:
    text = b'[headgate]\nfacts = ["plan"]\n[[rules]]\nid = "a"\nlimit = 1\nwindow = 1\ndimension = "%s"\n'
    assert snapshot_of(parse_toml(text % b"plan"), version="1").facts == ("plan",)
    with pytest.raises(InvalidRule, match=r"f\.toml: rule 'a': dimension: unknown fact 'plans'; did you mean 'plan'"):
        snapshot_of(parse_toml(text % b"plans"), version="1", file="f.toml")


@pytest.mark.parametrize("facts", ["plan", [1], [""], {"a": 1}, None])
def test_facts_that_are_no_names(facts: Any) -> None:
    with pytest.raises(InvalidRule, match=r"\[headgate\]: facts: must be"):
        Snapshot([rule()], facts=facts)


@pytest.mark.parametrize("snapshot", [Snapshot([rule()]), Snapshot([]), Snapshot([rule()], enabled=False)])
def test_a_check_with_an_unknown_fact_is_an_error_and_charges_nothing(snapshot: Snapshot) -> None:
    limiter = Limiter(snapshot)
    for _ in range(2):  # not only when a shape is seen for the first time
        with pytest.raises(InvalidCheck, match="unknown fact 'usr'; did you mean 'user'"):
            limiter.check(usr="alice")
        with pytest.raises(InvalidCheck, match="unknown fact 'usr'"):
            limiter.check(usr="alice", user="alice")
    assert limiter.peek("alice").remaining in (0, 5)


def test_an_exempt_request_is_looked_at_all_the_same() -> None:
    limiter = Limiter(Snapshot([rule()], exemptions=[Exemption(type="ip", value="192.0.2.1")]))
    assert limiter.check(ip="192.0.2.1").reason == "exempt"
    with pytest.raises(InvalidCheck, match="unknown fact 'usr'"):
        limiter.check(ip="192.0.2.1", usr="alice")


def test_what_envoy_states_twice_is_known() -> None:
    names = FactNames()
    assert "generic_key_2" in names
    assert "user_17" in names
    assert "usr_2" not in names
    assert all(name in names for name in WELL_KNOWN)


def test_a_request_without_a_rule_is_logged_once_for_its_shape(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="headgate")
    limiter = Limiter([rule(endpoints=["/api/*"])])
    assert not caplog.records  # making a limiter is no request
    for path in ("/health", "/health", "/login"):
        assert limiter.check(user="alice", endpoint=path).reason == "no_rule"
    limiter.check(ip="192.0.2.1", endpoint="/api/x")
    assert [record.getMessage() for record in caplog.records] == [
        "no rule applies to requests with the facts endpoint, user (such as {'endpoint': '/health'}): "
        "they are allowed, and not limited",
        "no rule applies to requests with the facts endpoint, ip (such as {'endpoint': '/api/x'}): "
        "they are allowed, and not limited",
    ]


def test_new_rules_do_not_log_it_again(caplog: pytest.LogCaptureFixture) -> None:
    first = Snapshot([rule()])
    Limiter(first).check(ip="192.0.2.1")
    Limiter(Snapshot([rule(cost=2)], previous=first)).check(ip="192.0.2.1")
    assert len(caplog.records) == 1


def test_unmatched_requests_are_refused_if_the_rules_say_so(caplog: pytest.LogCaptureFixture) -> None:
    limiter = Limiter(Snapshot([rule()], unmatched="refuse"), clock=FakeClock(0))
    assert limiter.check("alice").allowed
    for _ in range(2):
        refused = limiter.check(ip="192.0.2.1")
        assert (refused.allowed, refused.reason, refused.rule) == (False, "no_rule", None)
        assert (refused.status, refused.retry_after, refused.state) == (403, None, "throttled")
    assert problem(refused)["status"] == 403
    assert "No rate limit covers this request" in problem(refused)["detail"]
    assert [record.getMessage().endswith('refused, as unmatched = "refuse"') for record in caplog.records] == [True]
    assert [one.allowed for one in limiter.check_many(["alice", {"ip": "192.0.2.1"}])] == [True, False]
    assert not limiter.reserve(ip="192.0.2.1", cost=1)
    assert limiter.wait(ip="192.0.2.1", timeout=60).reason == "no_rule"


@pytest.mark.parametrize(
    "snapshot", [Snapshot([], unmatched="refuse"), Snapshot([rule()], unmatched="refuse", enabled=False)]
)
def test_without_rules_nothing_is_unmatched(snapshot: Snapshot) -> None:
    assert Limiter(snapshot).check(ip="192.0.2.1").allowed


def test_unmatched_is_one_of_two_words() -> None:
    with pytest.raises(InvalidRule, match=r"unmatched: must be one of allow, refuse, got 'deny'"):
        Snapshot([rule()], unmatched="deny")  # type: ignore[arg-type]
