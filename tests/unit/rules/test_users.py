"""Tiers, users and overrides are checked when they are built."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from headgate import InvalidRule, Quota
from headgate.rules import Override, Tier, User

LATER = datetime(2027, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("kind", "fields", "field", "complaint"),
    [
        (Tier, {"name": ""}, "name", "must be a non-empty string"),
        (Tier, {"name": 5}, "name", "got 5"),
        (User, {"id": ""}, "id", "must be a non-empty string"),
        (User, {"id": 5}, "id", "got 5"),
        (User, {"id": "a", "tier": ""}, "tier", "must be a non-empty string"),
        (User, {"id": "a", "tier": 5}, "tier", "got 5"),
        (User, {"id": "a", "overrides": "x"}, "overrides", "must be a list of overrides"),
        (User, {"id": "a", "overrides": [5]}, "overrides", "must be Override objects, got 5"),
        (Override, {"rule": "", "limit": 1}, "rule", "must be a non-empty string"),
        (Override, {"rule": "a", "limit": 0}, "limit", "from 1 to 2^53-1, got 0"),
        (Override, {"rule": "a", "limit": "1"}, "limit", "got '1'"),
        (Override, {"rule": "a", "limit": 1, "window": 0}, "window", "from 1 ms to 366 days, got 0"),
        (Override, {"rule": "a", "limit": 1, "window": "ever"}, "window", "cannot read 'ever'"),
        (Override, {"rule": "a", "limit": 1, "burst": 0}, "burst", "got 0"),
        (Override, {"rule": "a", "limit": 1, "expires": "2027"}, "expires", "must be a time like 2027-01-01T00:00:00Z"),
        (Override, {"rule": "a", "limit": 1, "expires": LATER.date()}, "expires", "must be a time like"),
        (Override, {"rule": "a", "limit": 1, "expires": LATER.replace(tzinfo=None)}, "expires", "needs a time zone"),
    ],
)
def test_a_wrong_field_is_named(kind: Any, fields: dict[str, Any], field: str, complaint: str) -> None:
    with pytest.raises(InvalidRule) as caught:
        kind(**fields)
    (problem,) = caught.value.problems
    assert problem.field == field
    assert complaint in problem.message


def test_an_override_replaces_the_limit_and_what_else_it_says() -> None:
    quota = Quota(100, "1h", algorithm="gcra")
    assert Override(rule="a", limit=500).applied_to(quota) == Quota(500, "1h", algorithm="gcra")
    assert Override(rule="a", limit=5, window="1m", burst=9).applied_to(quota) == Quota(
        5, "1m", burst=9, algorithm="gcra"
    )


def test_an_override_keeps_a_burst_that_the_rule_sets_apart() -> None:
    bursty = Quota(100, "1h", burst=120, algorithm="gcra")
    assert Override(rule="a", limit=500).applied_to(bursty).burst == 120


def test_expiry_is_a_moment_whatever_the_time_zone() -> None:
    east = Override(rule="a", limit=1, expires=LATER.astimezone(timezone(timedelta(hours=9))))
    assert east.expires_us == Override(rule="a", limit=1, expires=LATER).expires_us == 1_798_761_600_000_000
    assert not east.has_expired(1_798_761_600_000_000 - 1)
    assert east.has_expired(1_798_761_600_000_000)
    assert not Override(rule="a", limit=1).has_expired(2**53)
