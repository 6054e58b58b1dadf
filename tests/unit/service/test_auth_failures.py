"""Bad tokens are counted and logged; a flood of them fills no log."""

from __future__ import annotations

import logging

import pytest

from headgate.errors import Forbidden, InvalidCheck, Unauthenticated
from headgate.service.auth_failures import LOG_SECONDS, AuthFailures


@pytest.fixture
def now() -> list[float]:
    return [0.0]


@pytest.fixture
def failures(now: list[float]) -> AuthFailures:
    return AuthFailures(lambda: now[0])


def test_each_kind_is_counted_from_zero(failures: AuthFailures) -> None:
    assert set(failures.counts.values()) == {0}  # so that the first failure is an increase
    failures.record("envoy", Unauthenticated("it has expired", reason="expired", token="ci"), "192.0.2.1")
    failures.record("grpc", Unauthenticated("it is not known"), None)
    failures.record("http", Forbidden("it is not for check"), "192.0.2.1")
    failures.record("http", InvalidCheck("cost: must be a number"), "192.0.2.1")
    failures.record("soap", Unauthenticated("it is not known"), None)
    found = {key: count for key, count in failures.counts.items() if count}
    assert found == {
        ("envoy", "expired"): 1,
        ("grpc", "unknown"): 1,
        ("http", "forbidden"): 1,
        ("other", "unknown"): 1,
    }


def test_there_is_a_line_a_minute_for_each_kind(
    failures: AuthFailures, now: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    expired = Unauthenticated("this token has expired", reason="expired", token="ci")
    with caplog.at_level(logging.WARNING, "headgate"):
        for _ in range(1_000):
            failures.record("envoy", expired, "192.0.2.1")
        failures.record("grpc", expired, "192.0.2.1")
        now[0] += LOG_SECONDS
        failures.record("envoy", expired, "192.0.2.9")
    assert [record.getMessage() for record in caplog.records] == [
        "authentication failed (envoy, expired): this token has expired (its name is 'ci'); from 192.0.2.1; "
        "0 more of this kind since the last such line",
        "authentication failed (grpc, expired): this token has expired (its name is 'ci'); from 192.0.2.1; "
        "0 more of this kind since the last such line",
        "authentication failed (envoy, expired): this token has expired (its name is 'ci'); from 192.0.2.9; "
        "999 more of this kind since the last such line",
    ]
