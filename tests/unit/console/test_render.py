"""How figures, times, quotas and charts are written."""

from __future__ import annotations

from datetime import timedelta

import pytest

from headgate.console.render import ago, barchart, cost_text, quota_text, sparkline, subject_text, time_tag
from headgate.core.quota import Quota


def test_fifty_sparklines_fit_on_a_small_page() -> None:
    busy = sparkline([(10_000 + 37 * n % 900, 400 + 53 * n % 300) for n in range(60)])
    assert 50 * len(busy) < 60_000
    assert "polygon" in busy
    assert "no traffic" in sparkline([(0, 0)] * 60)


def test_bars_are_drawn_for_steps_that_had_any() -> None:
    assert barchart([(0, 0, 0)] * 96).count("<rect") == 0
    assert barchart([(0, 3, 2), (1, 0, 0), (2, 5, 0)]).count("<rect") == 3


@pytest.mark.parametrize(
    ("notation", "unit", "expected"),
    [
        ("1000/minute", "requests", "1,000 / 1m"),
        ("10/second burst 20", "requests", "10 / 1s, burst 20"),
        ("40000/minute", "tokens", "40,000 tokens / 1m"),
        ("5 concurrent ttl 60s", "requests", "5 at once"),
        ("1000/calendar month", "requests", "1,000 / calendar month"),
    ],
)
def test_quotas_are_written_as_people_say_them(notation: str, unit: str, expected: str) -> None:
    assert quota_text(Quota.parse(notation), unit) == expected


def test_subjects_of_several_facts_are_not_shown_as_json() -> None:
    assert subject_text('["alice", "/api/*"]') == "alice · /api/*"
    assert subject_text('["alice') == '["alice'
    assert subject_text("alice") == "alice"


def test_costs_name_their_units() -> None:
    assert cost_text(1_000) == "1,000"
    assert cost_text({"requests": 1, "tokens": 4_000}) == "1 request, 4,000 tokens"


def test_times_say_how_far_away_they_are() -> None:
    cases = {-90: "2 minutes ago", -60: "1 minute ago", 0: "now", 3_700: "in 1 hour", 200_000: "in 2 days"}
    assert {seconds: ago(timedelta(seconds=seconds)) for seconds in cases} == cases
    assert time_tag(1_793_523_600_000_000, "clock").endswith(">1 Nov, 09:00:00</time>")
