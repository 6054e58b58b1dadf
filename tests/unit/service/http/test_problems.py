"""Every exception has an answer, and none tells what is not for callers."""

from __future__ import annotations

import inspect
import json
import logging

import pytest

from headgate import Limiter, errors
from headgate.errors import (
    ChangeConflict,
    DatabaseUnavailable,
    Forbidden,
    HeadgateError,
    IdempotencyConflict,
    InvalidCheck,
    InvalidQuota,
    InvalidRule,
    InvalidSettings,
    InvalidStore,
    NotFound,
    Problem,
    RateLimited,
    StoreTimeout,
    Unauthenticated,
)
from headgate.service.http.problems import HttpError, problem_of
from headgate.testing import FakeClock

CASES: list[tuple[HeadgateError, int]] = [
    (InvalidCheck("cost: must be a whole number, got 'x'"), 400),
    (IdempotencyConflict.of("k"), 422),
    (InvalidQuota("limit: must be …"), 422),
    (InvalidRule(Problem("rule 'a'", "limit", "must be 1 or more, got 0")), 422),
    (NotFound("there is no rule 'x'"), 404),
    (ChangeConflict("rule 'x' was changed meanwhile"), 409),
    (Unauthenticated("this token is not known"), 401),
    (Forbidden("this needs the role admin"), 403),
]


@pytest.mark.parametrize(("error", "status"), CASES, ids=lambda value: type(value).__name__)
def test_callers_are_told_what_was_wrong_with_their_request(error: HeadgateError, status: int) -> None:
    answer = problem_of(error)
    assert answer.status == answer.body["status"] == status
    assert answer.body["detail"] == str(error)
    assert answer.body["title"]


def test_every_exception_of_headgate_has_an_answer_of_its_own() -> None:
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, HeadgateError)]
    refused = Limiter("1/minute", clock=FakeClock()).check("alice", cost=2)
    for kind in kinds:
        error = kind(refused) if kind is RateLimited else kind("what it says")
        if kind not in (HeadgateError, InvalidSettings, InvalidStore):  # the root, and those raised before requests
            assert problem_of(error).status != 500, kind


def test_a_missing_token_is_asked_for() -> None:
    assert problem_of(Unauthenticated("a bearer token is needed")).headers == {"WWW-Authenticate": "Bearer"}


def test_all_that_is_wrong_with_rules_is_listed() -> None:
    error = InvalidRule(Problem("rule 'a'", "limit", "must be 1 or more, got 0"), Problem("", "", "no rules", "x.toml"))
    body = problem_of(error).body
    assert body["problems"] == [
        {"where": "rule 'a'", "field": "limit", "message": "must be 1 or more, got 0"},
        {"where": "", "field": "", "message": "no rules"},
    ]
    assert "2 problems" in body["detail"]


@pytest.mark.parametrize("error", [StoreTimeout("redis://:hunter2@db:6379"), DatabaseUnavailable("postgresql://u:p@h")])
def test_what_is_unavailable_is_told_without_its_address(error: HeadgateError) -> None:
    status, headers, body = problem_of(error)
    assert status == 503
    assert headers == {"Retry-After": "1"}
    assert str(error) not in json.dumps(body)


def test_what_is_unexpected_has_an_id_by_which_the_log_has_it(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "headgate"):
        status, _, body = problem_of(ZeroDivisionError("secret figures"))
    assert status == 500
    assert "secret figures" not in json.dumps(body)
    assert body["id"] in caplog.text
    assert "ZeroDivisionError: secret figures" in caplog.text


def test_a_limit_of_the_api_itself_is_a_refusal() -> None:
    limiter = Limiter("1/minute fixed_window", clock=FakeClock(start=30.5))
    limiter.check("alice")
    status, headers, body = problem_of(RateLimited(limiter.check("alice")))
    assert status == 429
    assert headers == {"Retry-After": "30"}
    assert body["violated-policies"] == ["default"]


def test_http_errors_bring_their_own_members() -> None:
    status, headers, body = problem_of(HttpError(405, "only POST", {"Allow": "POST"}, allowed=["POST"]))
    assert (status, headers) == (405, {"Allow": "POST"})
    assert body == {
        "type": "about:blank",
        "title": "Method Not Allowed",
        "status": 405,
        "detail": "only POST",
        "allowed": ["POST"],
    }


def test_what_the_caller_sent_does_not_come_back_at_length() -> None:
    assert len(problem_of(IdempotencyConflict.of("k" * 1_000_000)).encode()) < 2_000
