"""Comparison: two sets of rules on the same requests, and the requests that they decide differently."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import nlargest
from typing import Final

from headgate.core.cost import Cost
from headgate.replay.report import TOP, ChangedReport, ComparisonReport, readable, time_text
from headgate.replay.run import Run, Verdict

MAX_CHANGED: Final = 500_000  # subjects tracked separately


@dataclass(slots=True)
class _Changed:
    """How often one subject of one rule was decided differently, and when."""

    first_us: int
    last_us: int
    requests: int = 1


class Comparison:
    """Decides each request twice: by `run`, with the new rules, and by `other`."""

    def __init__(self, run: Run, other: Run) -> None:
        self.run = run
        self.other = other
        self._newly_refused = self._newly_allowed = 0
        self._refused: dict[tuple[str, str], _Changed] = {}  # by rule and subject
        self._allowed: dict[tuple[str, str], _Changed] = {}

    def decide(self, at_us: int, facts: dict[str, str], cost: Cost) -> None:
        """Decide a request by both sets of rules."""
        pair: list[Verdict | None] = [None, None]

        def settle(index: int, verdict: Verdict) -> None:
            pair[index] = verdict
            mine, theirs = pair
            if mine is not None and theirs is not None:
                self._compare(at_us, mine, theirs)

        mine = self.run.decide(at_us, facts, cost, lambda verdict: settle(0, verdict))
        theirs = self.other.decide(at_us, facts, cost, lambda verdict: settle(1, verdict))
        pair[:] = mine, theirs
        if mine is not None and theirs is not None:
            self._compare(at_us, mine, theirs)

    def report(self) -> ComparisonReport:
        """Return the differences."""
        return ComparisonReport(
            refused=self.other.refused,
            newly_refused=self._newly_refused,
            newly_allowed=self._newly_allowed,
            newly_refused_subjects=len(self._refused),
            newly_allowed_subjects=len(self._allowed),
            top_refused=_top(self._refused, self.run),
            top_allowed=_top(self._allowed, self.other),
        )

    def _compare(self, at_us: int, mine: Verdict, theirs: Verdict) -> None:
        if mine.allowed == theirs.allowed:
            return
        step = self.run.bins.at(at_us)
        if theirs.allowed:
            self._newly_refused += 1
            step.newly_refused += 1
            _count(self._refused, mine, at_us)
        else:
            self._newly_allowed += 1
            step.newly_allowed += 1
            _count(self._allowed, theirs, at_us)


def _count(changed: dict[tuple[str, str], _Changed], verdict: Verdict, at_us: int) -> None:
    key = (verdict.rule or "", verdict.subject)
    found = changed.get(key)
    if found is None:
        if len(changed) < MAX_CHANGED:
            changed[key] = _Changed(at_us, at_us)
        return
    found.requests += 1
    found.first_us, found.last_us = min(found.first_us, at_us), max(found.last_us, at_us)


def _top(changed: dict[tuple[str, str], _Changed], run: Run) -> list[ChangedReport]:
    known = {rule.id: rule for rule in run.snapshot.rules}
    return [
        ChangedReport(
            rule=rule,
            dimension=known[rule].dimension if rule in known else "",
            subject=readable(known.get(rule), subject),
            requests=found.requests,
            first=time_text(found.first_us),
            last=time_text(found.last_us),
        )
        for (rule, subject), found in nlargest(TOP, changed.items(), key=lambda item: item[1].requests)
    ]
