"""Replays a log, and returns a report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from time import perf_counter
from typing import Final

from headgate.core.cost import REQUESTS
from headgate.core.quota import CONCURRENCY
from headgate.replay.comparison import Comparison
from headgate.replay.fields import UNIT_COST
from headgate.replay.log import Log, OnProgress
from headgate.replay.ordering import TooSmall
from headgate.replay.record import LogRecord
from headgate.replay.report import Report, report_of
from headgate.replay.run import Run
from headgate.rules.penalties import IDENTITIES
from headgate.rules.rule import Rule
from headgate.rules.snapshot import Snapshot
from headgate.rules.sources.collection import collection_paused

CHUNK: Final = 5_000  # requests between two reports of progress


def wanted_facts(*snapshots: Snapshot) -> frozenset[str]:
    """Return the facts that rules, exemptions and penalties use, and `cost.UNIT` for the units that rules count."""
    wanted: set[str] = set()
    for snapshot in snapshots:
        for rule in snapshot.rules:
            wanted |= _needed_facts(rule).keys()
        wanted |= {exemption.type for exemption in snapshot.exemptions}
        if snapshot.has_users:
            wanted.add("user")
        if snapshot.penalties.enabled:
            wanted |= set(IDENTITIES)
    return frozenset(wanted)


def units_by_rule(*snapshots: Snapshot) -> dict[str, str]:
    """Return the units, by rule id, of rules that do not count requests."""
    return {rule.id: rule.unit for snapshot in snapshots for rule in snapshot.rules if rule.unit != REQUESTS}


def missing_facts(snapshot: Snapshot, facts: frozenset[str]) -> list[dict[str, str]]:
    """Return the enabled rules that need facts that a log lacks: they apply to none of its requests."""
    missing = []
    for rule in snapshot.rules:
        if rule.quota.algorithm == CONCURRENCY and rule.enabled:
            missing.append({"rule": rule.id, "fact": "the end of requests", "why": "concurrency"})
            continue
        for fact, why in _needed_facts(rule).items():
            has_tier = fact == "tier" and (
                snapshot.default_tier is not None or ("user" in facts and snapshot.has_users)
            )
            if rule.enabled and fact not in facts and not has_tier:
                missing.append({"rule": rule.id, "fact": fact, "why": why})
    return missing


def _needed_facts(rule: Rule) -> Mapping[str, str]:
    """Return the facts and costs without which a rule never applies, each with the field that needs it."""
    needed = dict.fromkeys(rule.match, "match") | dict.fromkeys(rule.facts, "dimension")
    for fact, asks in (("endpoint", rule.endpoints), ("method", rule.methods), ("tier", rule.tiers)):
        if asks:
            needed[fact] = f"{fact}s"
    if rule.unit != REQUESTS:
        needed[f"{UNIT_COST}{rule.unit}"] = "unit"
    return needed


def replay(
    log: Log, snapshot: Snapshot, *, against: Snapshot | None = None, progress: OnProgress | None = None
) -> Report:
    """Decide all requests of a log by `snapshot`, and by `against` if given.

    Ctrl-C ends it with a report of what was replayed so far. Raises `InvalidLog`.
    """
    start = perf_counter()
    hold_us = None
    while True:
        run = Run(snapshot)
        comparison = None if against is None else Comparison(run, Run(against))
        complete = True
        try:
            _run_all(log.records(hold_us), run, comparison, lambda done: progress and progress(done, log.progress))
        except TooSmall as error:
            hold_us = error.next_hold_us(log.sort_window_us)
            continue
        except KeyboardInterrupt:
            complete = False
        finally:
            log.close()
        break
    report = report_of(run)
    report.complete = complete
    report.seconds = round(perf_counter() - start, 3)
    remarks = log.remarks
    report.unreadable, report.unreadable_lines = remarks.unreadable, list(remarks.unreadable_lines)
    report.late, report.late_lines = remarks.late, list(remarks.late_lines)
    report.files = [
        {"name": file.name, "format": found.name} for file, found in zip(log.files, log.formats, strict=True)
    ]
    report.missing = missing_facts(snapshot, log.facts)
    report.against = None if comparison is None else comparison.report()
    return report


def _run_all(
    records: Iterator[LogRecord], run: Run, comparison: Comparison | None, report_progress: Callable[[int], object]
) -> None:
    decide = run.decide
    try:
        with collection_paused():  # reference counting frees records and decisions
            while chunk := list(islice(records, CHUNK)):
                if comparison is None:
                    for at_us, facts, cost in chunk:
                        decide(at_us, facts, cost)
                else:
                    for at_us, facts, cost in chunk:
                        comparison.decide(at_us, facts, cost)
                report_progress(run.requests)
    finally:
        run.finish()
        if comparison is not None:
            comparison.other.finish()
