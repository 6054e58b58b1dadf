"""What is asked of what was given, and what is said of what was decided."""

from __future__ import annotations

from typing import Any

import pytest
import typer

from headgate.cli.check import facts_of, summary


def test_a_subject_is_a_user() -> None:
    assert facts_of(subject="alice", ip="192.0.2.7", tier=None) == {"user": "alice", "ip": "192.0.2.7"}


def test_any_fact_can_be_given_by_name() -> None:
    assert facts_of(subject=None, fact=["country=DE", "note=a=b", "empty="]) == {
        **{"country": "DE", "note": "a=b", "empty": ""},
    }


@pytest.mark.parametrize(
    ("given", "option", "message"),
    [
        ({"subject": "alice", "user": "bob"}, "--user", "already 'alice'"),
        ({"fact": ["country"]}, "--fact", "must be NAME=VALUE.*'country'"),
        ({"fact": ["=DE"]}, "--fact", "must be NAME=VALUE.*'=DE'"),
        ({"ip": "192.0.2.7", "fact": ["ip=192.0.2.8"]}, "--fact", "'ip' is given twice"),
        ({"fact": ["a=1", "a=2"]}, "--fact", "'a' is given twice"),
        ({"fact": ["cost=0"]}, "--fact", "'cost'"),
    ],
)
def test_what_contradicts_itself_is_named(given: dict[str, Any], option: str, message: str) -> None:
    with pytest.raises(typer.BadParameter, match=message) as error:
        facts_of(**given)
    assert error.value.param_hint == option


DECISION: dict[str, Any] = {
    **{"allowed": True, "limit": 1_000, "remaining": 999, "reset_at": 1.0, "reset_after": 60.0, "retry_after": 0.0},
    **{"delay": 0.0, "rule": "search", "state": "normal", "reason": "within_limit", "limits": []},
}


@pytest.mark.parametrize(
    ("figures", "text"),
    [
        ({}, "allowed by search: 999 of 1,000 left, all of them in 1 min"),
        ({"delay": 0.5}, "allowed by search: 999 of 1,000 left, all of them in 1 min, its turn is in 0.5 s"),
        (
            {"allowed": False, "remaining": 0, "retry_after": 17.2, "reason": "over_limit"},
            "refused by search: 0 of 1,000 left, all of them in 1 min, retry after 17 s",
        ),
        (
            {"allowed": False, "remaining": 5, "retry_after": None, "reset_after": 0.0, "reason": "over_limit"},
            "refused by search: 5 of 1,000 left, the cost never fits",
        ),
        ({"rule": None, "reason": "no_rule"}, "allowed: no rule applies"),
        ({"rule": None, "reason": "exempt"}, "allowed: exempt from all rules"),
        (
            {"reason": "shadow", "remaining": 0},
            "allowed by search (it is over the limit of a rule that only logs or annotates): "
            "0 of 1,000 left, all of them in 1 min",
        ),
    ],
)
def test_a_decision_in_a_line(figures: dict[str, Any], text: str) -> None:
    assert summary({**DECISION, **figures}) == text
