"""Meter: tallies by rule, decision and reason, bounded; and histograms."""

from __future__ import annotations

import pytest

from headgate import Decision, Limiter, Quota, Rule
from headgate.errors import StoreError, StoreFull, StoreTimeout, StoreUnavailable
from headgate.rules.holder import Holder
from headgate.rules.snapshot import Snapshot
from headgate.telemetry.meter import OTHER, Histogram, Meter

MINUTE = Quota.parse("1/minute")


def rules(*ids: str) -> Snapshot:
    return Snapshot(
        [Rule(id=one, quota=MINUTE, dimension="global", match={"only": one}) for one in ids], facts=["only"]
    )


def refused(limiter: Limiter, rule: str) -> Decision:
    """A refusal by one of `rules`."""
    while True:
        decision = limiter.check(only=rule)
        if not decision:
            assert decision.rule == rule
            return decision


def counts(meter: Meter) -> dict[tuple[str, str, str], int]:
    return {(rule, decision, reason): count for rule, decision, reason, count in meter.tallies() if count}


def test_decisions_are_counted_by_rule_decision_and_reason() -> None:
    listed = [
        Rule(id="real", quota=Quota.parse("2/minute")),
        Rule(id="shadow", quota=MINUTE, action="log_only"),
    ]
    limiter, meter = Limiter(listed), Meter()
    for _ in range(4):
        meter.record_decision(limiter.check(user="alice"))
    meter.record_decision(limiter.check(ip="192.0.2.7"))
    assert counts(meter) == {
        ("real", "allowed", "within_limit"): 1,
        ("shadow", "shadow", "shadow"): 1,
        ("real", "refused", "over_limit"): 2,
        ("", "allowed", "no_rule"): 1,
    }


def test_requests_near_their_limit_are_counted_by_the_rule_that_decided() -> None:
    listed = [
        Rule(id="wide", quota=Quota.parse("100/minute")),
        Rule(id="narrow", quota=Quota.parse("10/minute")),
        Rule(id="shadow", quota=Quota.parse("8/minute"), action="log_only"),
    ]
    limiter, meter = Limiter(listed), Meter()
    for _ in range(7):
        meter.record_decision(limiter.check(user="alice"))
    assert dict(meter.near_limit()) == {"narrow": 0}
    meter.record_decision(limiter.check(user="alice"))  # the eighth of ten
    assert dict(meter.near_limit()) == {"narrow": 1}
    for _ in range(4):  # two that a shadow would have refused, and two refusals: not within a limit
        meter.record_decision(limiter.check(user="alice"))
    assert dict(meter.near_limit()) == {"narrow": 1, "shadow": 0}


def test_requests_near_the_limits_of_further_rules_are_counted_together() -> None:
    old, new = rules("a", "b"), rules("c")
    holder = Holder(old)
    meter = Meter(holder=holder, max_rules=1)
    for rule in ("a", "b"):
        meter.record_decision(Limiter(old).check(only=rule))
    assert dict(meter.near_limit()) == {"a": 1, OTHER: 1}
    holder.swap(new)
    meter.record_decision(Limiter(new).check(only="c"))
    assert dict(meter.near_limit()) == {OTHER: 1, "c": 1}


def test_a_rule_that_was_met_has_a_count_of_refusals_to_rise_from() -> None:
    meter = Meter()
    meter.record_decision(Limiter("1/minute").check("alice"))
    assert ("default", "refused", "over_limit", 0) in list(meter.tallies())


def test_rules_beyond_the_bound_are_counted_together() -> None:
    snapshot = rules("a", "b", "c", "d")
    limiter, meter = Limiter(snapshot), Meter(holder=Holder(snapshot), max_rules=2)
    for rule in ("a", "b", "c", "d", "c", "a"):
        meter.record_decision(refused(limiter, rule))
    assert counts(meter) == {
        ("a", "refused", "over_limit"): 2,
        ("b", "refused", "over_limit"): 1,
        (OTHER, "refused", "over_limit"): 3,
    }


def test_rules_that_are_not_in_force_have_no_name() -> None:
    meter = Meter(holder=Holder(rules("a")))
    meter.record_decision(Limiter("1/minute", name="made-up-by-a-caller").check("alice"))
    assert counts(meter) == {(OTHER, "allowed", "within_limit"): 1}


def test_rules_that_have_gone_make_room_for_new_ones() -> None:
    old, new = rules("a", "b"), rules("b", "c")
    holder = Holder(old)
    meter = Meter(holder=holder, max_rules=2)
    for rule in ("a", "b"):
        meter.record_decision(refused(Limiter(old), rule))
    holder.swap(new)
    meter.record_decision(refused(Limiter(new), "c"))
    assert counts(meter) == {("b", "refused", "over_limit"): 1, ("c", "refused", "over_limit"): 1}
    meter.record_decision(refused(Limiter(old), "a"))  # begun before the swap
    assert counts(meter)[OTHER, "refused", "over_limit"] == 1


def test_calls_are_counted_by_protocol_and_an_unknown_one_as_other() -> None:
    meter = Meter()
    meter.record_call("grpc", 0.002, 100)
    meter.record_call("gopher", 0.002)
    assert meter.requests["grpc"].read()[1] == pytest.approx(0.002)
    assert meter.checks["grpc"].read()[1] == 100
    assert meter.checks[OTHER].read()[1] == 1
    assert set(meter.requests) == {"http", "grpc", "envoy", "authorize", OTHER}


def test_store_errors_are_counted_by_kind() -> None:
    meter = Meter()
    for error in (StoreTimeout("1"), StoreTimeout("2"), StoreUnavailable("3"), StoreFull("4"), StoreError("5")):
        meter.failed(error, 0.01, 1)
    assert meter.store_errors == {"timeout": 2, "unavailable": 1, "full": 1, OTHER: 1}


def test_only_calls_with_checks_have_a_batch_size() -> None:
    meter = Meter()
    meter.called(0.001, 30)
    meter.called(0.001, 0)
    assert meter.store_batches.read()[1] == 30
    assert meter.store_calls.read()[0][-1] == (float("inf"), 2)


def test_skews_above_five_seconds_are_counted_whichever_way() -> None:
    meter = Meter()
    for seconds in (0.0, 5.0, -5.0, 5.1, -7.0, float("nan"), float("inf")):
        meter.record_skew(seconds)
    assert meter.skewed_total == 2
    assert meter.skews.read()[1] == pytest.approx(22.1)


def test_a_bound_belongs_to_its_bucket() -> None:
    histogram = Histogram((1, 2))
    for value in (0.5, 1, 1.5, 2, 2.5):
        histogram.add(value)
    assert histogram.read() == ([(1, 2), (2, 4), (float("inf"), 5)], 7.5)
