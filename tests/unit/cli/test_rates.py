"""Rates out of pages of metrics."""

from __future__ import annotations

import pytest

from headgate.cli.rates import Rate, RuleKey, Tally, rates, tallies_of

PAGE = """\
# HELP python_info Python platform information
# TYPE python_info gauge
python_info{implementation="CPython"} 1.0
# HELP headgate_checks_total Requests that were decided.
# TYPE headgate_checks_total counter
headgate_checks_total{decision="allowed",reason="no_rule",rule=""} 4.0
headgate_checks_total{decision="allowed",reason="exempt",rule=""} 6.0
headgate_checks_total{decision="allowed",reason="within_limit",rule="search"} 10.0
headgate_checks_total{decision="allowed",reason="fail_open",rule="search"} 2.0
headgate_checks_total{decision="refused",reason="over_limit",rule="search"} 3.0
headgate_checks_total{decision="shadow",reason="shadow",rule="a \\"strange\\" \u2028 one"} 1.0
headgate_checks_per_request_bucket{le="1.0",protocol="http"} 7.0
"""


def test_counts_by_rule_and_by_reason_where_there_is_none() -> None:
    assert tallies_of(PAGE) == {
        RuleKey("", "no_rule"): Tally(allowed=4),
        RuleKey("", "exempt"): Tally(allowed=6),
        RuleKey("search"): Tally(allowed=12, refused=3),
        RuleKey('a "strange" \u2028 one'): Tally(shadow=1),
    }


def test_a_page_without_checks_has_none() -> None:
    assert tallies_of("") == {}


def test_what_is_no_page_of_metrics_is_said_to_be_none() -> None:
    with pytest.raises(ValueError, match="could not convert"):
        tallies_of('headgate_checks_total{rule="a} x')


def test_rates_are_what_was_added_the_busiest_first() -> None:
    before = {RuleKey("a"): Tally(10, 5), RuleKey("b"): Tally(1)}
    after = {RuleKey("a"): Tally(12, 5), RuleKey("b"): Tally(1), RuleKey("c"): Tally(0, 8, 2), RuleKey("d"): Tally()}
    assert rates(before, after, 2.0) == [
        Rate("c", "", 5.0, 0.0, 4.0, 1.0, 10),
        Rate("a", "", 1.0, 1.0, 0.0, 0.0, 17),
        Rate("b", "", 0.0, 0.0, 0.0, 0.0, 1),
    ]


def test_after_a_restart_counts_begin_anew() -> None:
    assert rates({RuleKey("a"): Tally(1_000, 50)}, {RuleKey("a"): Tally(3, 60)}, 1.0) == [
        Rate("a", "", 63.0, 3.0, 60.0, 0.0, 63)
    ]
