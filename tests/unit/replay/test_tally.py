"""Subjects beyond the bound are folded: counted without their names."""

from __future__ import annotations

import pytest

from headgate.replay import tally
from headgate.replay.record import LogRecord
from headgate.replay.report import Report, RuleReport, report_of
from headgate.replay.run import Run
from headgate.rules.rule import Rule
from headgate.rules.snapshot import Snapshot

BOUND = 100
SECOND = 1_000_000


@pytest.fixture(autouse=True)
def small_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally, "MAX_SUBJECTS", BOUND)


def replay(records: list[LogRecord], quota: str) -> Report:
    run = Run(Snapshot([Rule(id="r", quota=quota, dimension="ip")]))
    for at_us, facts, cost in records:
        run.decide(at_us, facts, cost)
    return report_of(run)


def limited(*requests: tuple[str, int], quota: str = "4/minute fixed_window") -> RuleReport:
    """Replay so many requests of each address, one address after the other, within a minute."""
    records = [LogRecord(0, {"ip": address}) for address, count in requests for _ in range(count)]
    (rule,) = replay(records, quota).rules
    return rule


def address(number: int) -> str:
    return f"10.0.{number // 250}.{number % 250}"


def test_up_to_the_bound_all_are_told_apart() -> None:
    rule = limited(*((address(number), 1) for number in range(BOUND)))
    assert (rule.all_subjects, rule.requests, rule.approximate) == (BOUND, BOUND, False)


def test_beyond_the_bound_subjects_and_requests_are_still_counted() -> None:
    rule = limited(*((address(number), 1 + number % 4) for number in range(10 * BOUND)))
    assert (rule.all_subjects, rule.requests, rule.approximate) == (10 * BOUND, 25 * BOUND, True)
    assert rule.used == {"p50": 0.75, "p95": 1.0, "p99": 1.0, "max": 1.0}
    assert rule.refused == rule.subjects == 0


def test_those_who_were_refused_most_keep_their_names() -> None:
    first = [(address(0), 50), (address(1), 40)]
    records = [
        LogRecord(0, {"ip": name})
        for name, count in [*first, *((address(number), 1) for number in range(2, 10 * BOUND))]
        for _ in range(count)
    ]
    report = replay(records, "4/minute fixed_window")
    assert [(one.subject, one.requests, one.refused) for one in report.top] == [
        (address(0), 50, 46),
        (address(1), 40, 36),
    ]


def test_the_bound_holds_when_everybody_is_refused() -> None:
    """Subjects that were refused are folded, too, once there are many of them."""
    run = Run(Snapshot([Rule(id="r", quota="1/minute fixed_window", dimension="ip")]))
    for number in range(10 * BOUND):
        for _ in range(2):
            run.decide(0, {"ip": address(number)})
        (limit,) = run.rules["r"].limits
        assert len(limit.entries) <= BOUND
    rule = limited(*((address(number), 2) for number in range(10 * BOUND)), quota="1/minute fixed_window")
    assert (rule.refused, rule.subjects, rule.all_subjects, rule.requests) == (1_000, 1_000, 1_000, 2_000)


def test_a_request_that_was_held_back_is_counted_after_its_subject_was_folded() -> None:
    rule = Rule(id="r", quota="1/minute fixed_window", dimension="ip", action="throttle", max_delay=5)
    run = Run(Snapshot([rule]))
    verdicts: list[bool] = []
    for _ in range(3):  # one passes, and two are held back until the next minute, which has room for one of them
        run.decide(58 * SECOND, {"ip": "192.0.2.7"}, settled=lambda verdict: verdicts.append(verdict.allowed))
    for number in range(2 * BOUND):
        run.decide(58 * SECOND, {"ip": address(number)})
    (limit,) = run.rules["r"].limits
    assert "192.0.2.7" not in limit.entries
    run.finish()
    assert verdicts == [True, False]
    assert limit.entries["192.0.2.7"][tally.REFUSED] == 1
    (told,) = report_of(run).rules
    assert (told.requests, told.refused, told.delayed, told.subjects) == (2 * BOUND + 3, 1, 1, 1)
