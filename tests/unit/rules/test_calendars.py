"""Rules of the calendar: in files, with overrides and anchors of users, and what cannot be one."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from headgate import InvalidQuota, InvalidRule, Limiter, Quota, Rule
from headgate.http.headers import render
from headgate.rules.snapshot import Snapshot
from headgate.rules.users import Override, User
from headgate.testing import FakeClock

BERLIN = ZoneInfo("Europe/Berlin")
MONTHLY = Rule(id="plan", quota="100/calendar month tz Europe/Berlin")


def at(year: int, month: int, day: int, hour: int = 0) -> float:
    return datetime(year, month, day, hour, tzinfo=BERLIN).timestamp()


def test_a_file_says_a_calendar_and_a_users_anchor(tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    file.write_text("""
        [[rules]]
        id = "plan"
        limit = 100
        window = "month"
        calendar = true
        tz = "Europe/Berlin"

        [[users]]
        id = "alice"
        anchor = 31
        overrides = [{ rule = "plan", limit = 500 }]
    """)
    limiter = Limiter(file, clock=FakeClock(at(2026, 2, 10)))
    bob, alice = limiter.check(user="bob"), limiter.check(user="alice")
    assert (bob.limit, bob.reset_at) == (100, at(2026, 3, 1))
    assert (alice.limit, alice.reset_at) == (500, at(2026, 2, 28))
    assert str(alice.limits[0].quota) == "500/calendar month tz Europe/Berlin anchor 31"


def test_a_period_that_ends_begins_another_while_plans_are_cached() -> None:
    clock = FakeClock(at(2026, 3, 28, 23))
    limiter = Limiter([Rule(id="daily", quota="2/calendar day tz Europe/Berlin")], clock=clock)
    assert [limiter.check(user="u").allowed for _ in range(3)] == [True, True, False]
    clock.advance(3_600)
    decision = limiter.check(user="u")
    assert (decision.allowed, decision.remaining) == (True, 1)
    assert decision.reset_after == 23 * 3_600  # the day on which clocks go forward
    clock.advance(23 * 3_600)
    assert limiter.check(user="u").reset_after == 24 * 3_600


def test_an_anchor_of_another_kind_does_not_concern_a_rule() -> None:
    weekly = Rule(id="weekly", quota="9/calendar week tz Europe/Berlin")
    rules = [MONTHLY, weekly, Rule(id="daily", quota="9/calendar day tz Europe/Berlin")]
    snapshot = Snapshot(rules, users=[User(id="alice", anchor="friday"), User(id="bob", anchor=15)])
    limiter = Limiter(snapshot, clock=FakeClock(at(2026, 2, 10)))  # a Tuesday

    def resets(user: str) -> dict[str, float]:
        decision = limiter.peek(user=user)
        return {one.rule: decision.at_us / 1e6 + one.reset_after for one in limiter.check(user=user).limits}

    assert resets("carol") == {"plan": at(2026, 3, 1), "weekly": at(2026, 2, 16), "daily": at(2026, 2, 11)}
    assert resets("alice") == {"plan": at(2026, 3, 1), "weekly": at(2026, 2, 13), "daily": at(2026, 2, 11)}
    assert resets("bob") == {"plan": at(2026, 2, 15), "weekly": at(2026, 2, 16), "daily": at(2026, 2, 11)}


def test_the_policy_says_no_window_where_windows_differ() -> None:
    limiter = Limiter([MONTHLY], clock=FakeClock(at(2026, 2, 28, 23)))
    fields = dict(render(limiter.check(user="u")))
    assert fields[b"ratelimit-policy"] == b'"plan";q=100'
    assert fields[b"ratelimit"] == b'"plan";r=99;t=3600'


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sync": "leased"}, "rule 'x': sync: a calendar's windows cannot be leased; use sync = 'exact'"),
        ({"shards": 4}, "rule 'x': shards: a calendar's windows cannot have shards; use 1"),
        ({"regions": "quota"}, "rule 'x': regions: regions cannot share the windows of a calendar"),
    ],
)
def test_what_a_calendar_cannot_be(fields: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidRule) as raised:
        Rule(id="x", quota="100/calendar day", **fields)  # type: ignore[arg-type]
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": "month", "algorithm": "gcra"}, "calendar: a gcra has no windows that begin with a day or a month"),
        ({"window": "15m"}, "window: must be one of day, week, month, year for a calendar, got '15m'"),
        ({"window": "day", "tz": "Mars/Base"}, "tz: unknown time zone 'Mars/Base'; write it like 'Europe/Berlin'"),
        ({"window": "day", "anchor": 24}, "anchor: for a day, must be the hour of the day from 0 to 23, got 24"),
        ({"window": "year", "anchor": 3}, "anchor: a calendar year begins on January 1, got 3"),
        ({"window": "day", "burst": 3}, "burst: not allowed for calendar windows, got 3"),
        ({"window": "day", "calendar": False, "tz": "UTC"}, "tz: only allowed for calendar windows"),
    ],
)
def test_mistakes_are_told_with_their_field(options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidQuota) as raised:
        Quota(5, **{"calendar": True, "algorithm": "fixed_window", **options})  # type: ignore[arg-type]
    assert message in str(raised.value)


def test_only_the_limit_of_a_calendar_can_be_overridden() -> None:
    with pytest.raises(InvalidQuota, match="window: a calendar rule"):
        Override(rule="plan", limit=5, window="1h").applied_to(MONTHLY.quota)


@pytest.mark.parametrize("anchor", [0, 0.5, "someday", 32, True])
def test_what_can_be_no_users_anchor(anchor: object) -> None:
    with pytest.raises(InvalidRule, match="user 'u': anchor: must be a day of the month from 1 to 31"):
        User(id="u", anchor=anchor)  # type: ignore[arg-type]
