"""What the counter makes of decisions: per rule and minute, each check once."""

from __future__ import annotations

from typing import Any

from headgate import Limiter, Rule
from headgate.audit.usage import TIMED_PER_SECOND, UsageCounter
from headgate.db.usage import ALL, COUNTS, NO_RULE, OTHER, TIMES
from headgate.testing import FakeClock

MINUTE_US = 60_000_000


def counted(counter: UsageCounter, *, rotate: bool = True) -> dict[str, dict[str, int]]:
    """What was counted, by rule; all but zeros, and no times."""
    if rotate:
        counter.rotate()
    found: dict[str, dict[str, int]] = {}
    for count in counter.take():
        figures = found.setdefault(count.rule, {})
        for name, value in zip(COUNTS, count.figures, strict=False):
            if value:
                figures[name] = figures.get(name, 0) + value
    return found


def decide(limiter: Limiter, counter: UsageCounter, times: int = 1, cost: int = 1, **facts: str) -> None:
    for _ in range(times):
        counter.add(cost, limiter.check(cost=cost, **facts))


def test_each_rule_counts_what_it_allowed_and_what_it_refused() -> None:
    clock = FakeClock(1_700_000_000.0)
    rules = [
        Rule(id="user", quota="3/minute", dimension="user"),
        Rule(id="all", quota="100/minute", dimension="global", cost=2),
    ]
    limiter, counter = Limiter(rules, clock=clock), UsageCounter(clock=clock)
    decide(limiter, counter, 5, user="alice")
    assert counted(counter) == {
        ALL: {"allowed": 3, "refused": 2, "cost": 3},
        "user": {"allowed": 3, "refused": 2, "cost": 3},
        "all": {"allowed": 3, "cost": 6},
    }
    assert counted(counter) == {}


def test_a_shadow_counts_what_it_would_have_refused() -> None:
    clock = FakeClock(1_700_000_000.0)
    rules = [
        Rule(id="shadow", quota="1/minute", dimension="global", action="log_only"),
        Rule(id="all", quota="100/minute", dimension="global"),
    ]
    limiter, counter = Limiter(rules, clock=clock), UsageCounter(clock=clock)
    decide(limiter, counter, 3)
    assert counted(counter) == {
        ALL: {"allowed": 1, "shadow": 2, "cost": 3},
        "shadow": {"allowed": 1, "shadow": 2, "cost": 1},
        "all": {"allowed": 3, "cost": 3},
    }


def test_requests_without_a_rule_are_counted_as_such() -> None:
    limiter, counter = Limiter([Rule(id="user", quota="3/minute", dimension="user")]), UsageCounter()
    decide(limiter, counter, 2, ip="192.0.2.7")
    assert counted(counter) == {ALL: {"allowed": 2, "cost": 2}, NO_RULE: {"allowed": 2, "cost": 2}}


def test_held_back_requests_are_counted_as_delayed() -> None:
    clock = FakeClock(1_700_000_000.0)
    rule = Rule(
        id="slow", quota="1/second burst 5 leaky_bucket", dimension="global", action="throttle", max_delay="10s"
    )
    limiter, counter = Limiter([rule], clock=clock), UsageCounter(clock=clock)
    decide(limiter, counter, 3)
    assert counted(counter)["slow"] == {"allowed": 3, "delayed": 2, "cost": 3}


def test_the_busiest_rules_are_counted_by_themselves_and_the_rest_together() -> None:
    clock = FakeClock(1_700_000_040.0)  # the beginning of a minute
    rules = [
        Rule(id=f"rule-{number}", quota="1000/minute", dimension="global", match={"country": str(number)})
        for number in range(5)
    ]
    limiter, counter = Limiter(rules, clock=clock), UsageCounter(max_rules=2, clock=clock)

    def minute() -> dict[str, Any]:
        for number in range(5):
            decide(limiter, counter, number + 1, country=str(number))
        found = counted(counter)
        clock.advance(60)
        return {rule: figures["allowed"] for rule, figures in found.items()}

    assert minute() == {ALL: 15, "rule-4": 5, "rule-3": 4, OTHER: 6}
    assert minute() == {ALL: 15, "rule-4": 5, "rule-3": 4, OTHER: 6}


def test_a_window_ends_with_its_minute() -> None:
    clock = FakeClock(1_700_000_040.0 + 55)
    limiter, counter = (
        Limiter([Rule(id="all", quota="100/minute", dimension="global")], clock=clock),
        UsageCounter(clock=clock),
    )
    decide(limiter, counter, 2)
    clock.advance(5)
    counter.tick()
    decide(limiter, counter, 3)
    counter.rotate()
    found = [(count.minute_us, count.figures[0]) for count in counter.take() if count.rule == "all"]
    assert found == [(1_700_000_040_000_000, 2), (1_700_000_040_000_000 + MINUTE_US, 3)]


def test_ticks_tell_what_happened_second_by_second() -> None:
    clock = FakeClock(1_700_000_040.0)
    limiter, counter = (
        Limiter([Rule(id="all", quota="3/minute", dimension="global")], clock=clock),
        UsageCounter(clock=clock),
    )
    for checks in (2, 0, 3):
        decide(limiter, counter, checks)
        clock.advance(1)
        counter.tick()
    found = [(second.at, second.allowed, second.refused) for second in counter.seconds]
    assert found == [(1_700_000_040, 2, 0), (1_700_000_041, 0, 0), (1_700_000_042, 1, 2)]


def test_a_tick_that_comes_early_or_twice_makes_no_gap() -> None:
    clock = FakeClock(1_700_000_040.0)
    limiter, counter = (
        Limiter([Rule(id="all", quota="9/minute", dimension="global")], clock=clock),
        UsageCounter(clock=clock),
    )
    decide(limiter, counter, 2)
    clock.advance(0.999)
    counter.tick()
    decide(limiter, counter, 1)
    clock.advance(0.002)
    counter.tick()
    clock.advance(1)
    counter.tick()
    assert [(second.at, second.allowed) for second in counter.seconds] == [(1_700_000_040, 2), (1_700_000_041, 1)]


def test_few_checks_are_all_timed_and_of_many_some() -> None:
    clock = FakeClock(1_700_000_040.0)
    limiter, counter = (
        Limiter([Rule(id="all", quota="1000000/minute", dimension="global")], clock=clock),
        UsageCounter(clock=clock),
    )
    plan = limiter.check().plan
    counter.add_time(plan, 0.0004)
    assert counter.untimed == 1
    decide(limiter, counter, TIMED_PER_SECOND * 4)
    clock.advance(1)
    counter.tick()
    counter.add_time(plan, 0.5)
    assert counter.untimed == 4
    assert (counter.seconds[0].p50_us, counter.seconds[0].p99_us) == (400.0, 400.0)
    counter.rotate()
    (times,) = [count.figures[len(COUNTS) :] for count in counter.take() if count.rule == ALL]
    assert [name for name, count in zip(TIMES, times, strict=True) if count] == ["us_500", "us_more"]
