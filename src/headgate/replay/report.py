"""Report: the results of a replay as plain data, for the terminal, JSON and charts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from heapq import nlargest
from typing import Any, Final

from headgate.core.key import split_facts
from headgate.core.quota import MICROSECONDS
from headgate.replay.bins import Bin
from headgate.replay.run import Run
from headgate.replay.tally import STEPS, RuleTally
from headgate.rules.rule import Rule

TOP: Final = 20
_PERCENTILES: Final = (("p50", 0.50), ("p95", 0.95), ("p99", 0.99))


@dataclass(frozen=True, slots=True)
class _SubjectOfRule:
    rule: str
    dimension: str
    subject: str
    requests: int

    @property
    def who(self) -> str:
        """The subject with its dimension."""
        return f"{self.dimension} {self.subject}".strip()


@dataclass(frozen=True, slots=True)
class SubjectReport(_SubjectOfRule):
    """One subject of a rule."""

    refused: int  # for a log_only rule: would have been refused
    used: float  # the largest share of the limit that the subject used


@dataclass(frozen=True, slots=True)
class RuleReport:
    """The results of one rule."""

    id: str
    quota: str
    dimension: str
    action: str
    requests: int  # that it applied to
    refused: int
    delayed: int
    shadow: int  # would have been refused by an enforced rule
    penalised: int  # of `refused`: by a penalty that this rule started
    subjects: int  # that it refused, or would have refused
    all_subjects: int  # that it applied to
    used: dict[str, float]  # percentiles of the largest share of the limit that each subject used
    burst_needed: int
    approximate: bool  # whether there were too many subjects to track all of them


@dataclass(slots=True)
class StepReport(Bin):
    """The counts of one step of time."""

    at: str = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class ChangedReport(_SubjectOfRule):
    """A subject whose requests are decided differently."""

    first: str
    last: str


@dataclass(slots=True)
class ComparisonReport:
    """The differences from the rules that were compared with."""

    refused: int  # by the other rules
    newly_refused: int
    newly_allowed: int
    newly_refused_subjects: int
    newly_allowed_subjects: int
    top_refused: list[ChangedReport]
    top_allowed: list[ChangedReport]


@dataclass(frozen=True, slots=True)
class PointReport:
    """The result of one limit that was tried."""

    limit: int
    burst: int | None
    refused: int
    subjects: int
    share_of_requests: float
    share_of_subjects: float


@dataclass(frozen=True, slots=True)
class SuggestionReport:
    """The smallest limit that refuses at most a share."""

    rule: str
    of: str  # requests or subjects
    at_most: float
    requests: int  # that the rule applies to
    all_subjects: int
    limit: int | None  # None: even the largest limit tried refuses more
    burst: int | None  # None: the rule sets no burst
    quota: str
    now: PointReport  # the current rule
    found: PointReport | None
    curve: list[PointReport]  # all limits tried, in order


@dataclass(slots=True)
class Report:
    """The results of a replay. Times are ISO 8601 in UTC."""

    requests: int
    allowed: int
    refused: int
    delayed: int
    shadow: int
    penalised: int
    exempt: int
    unmatched: int
    unreadable: int
    late: int
    complete: bool  # whether the log was read to its end
    first: str | None
    last: str | None
    subjects: int  # refused, or would have been; each counted once over all rules
    all_subjects: int  # that rules applied to
    rules: list[RuleReport]
    top: list[SubjectReport]
    step_seconds: int
    timeline: list[StepReport]
    files: list[dict[str, Any]] = field(default_factory=list)
    unreadable_lines: list[str] = field(default_factory=list)
    late_lines: list[str] = field(default_factory=list)
    missing: list[dict[str, str]] = field(default_factory=list)
    seconds: float = 0.0  # the duration of the replay
    against: ComparisonReport | None = None
    suggestion: SuggestionReport | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data for JSON."""
        return asdict(self)


def time_text(at_us: int) -> str:
    """Format a time in microseconds as ISO 8601."""
    return datetime.fromtimestamp(at_us / MICROSECONDS, UTC).isoformat()


def readable(rule: Rule | None, subject: str) -> str:
    """Return a subject in readable form."""
    if rule is None or not rule.facts:
        return "" if rule is not None else subject
    return subject if len(rule.facts) == 1 else " ".join(split_facts(subject))


def report_of(run: Run) -> Report:
    """Return the report of a run."""
    known = {rule.id: rule for rule in run.snapshot.rules}
    rules, top = [], []
    people: dict[tuple[str, ...], _People] = {}  # by dimension: one client is one subject of many rules
    for tally in run.rules.values():
        rule = known[tally.rule]
        rule_report, worst = _rule_report(rule, tally, people.setdefault(rule.facts, _People()))
        rules.append(rule_report)
        top += worst
    return Report(
        requests=run.requests,
        allowed=run.requests - run.refused,
        refused=run.refused,
        delayed=run.delayed,
        shadow=run.shadow,
        penalised=run.penalised,
        exempt=run.exempt,
        unmatched=run.unmatched,
        unreadable=0,
        late=0,
        complete=True,
        first=time_text(run.first_us) if run.requests else None,
        last=time_text(run.clock.at_us) if run.requests else None,
        subjects=sum(len(one.hit) + one.folded_hit for one in people.values()),
        all_subjects=sum(len(one.seen) + one.folded for one in people.values()),
        rules=rules,
        top=nlargest(TOP, top, key=lambda one: (one.refused, one.requests)),
        step_seconds=run.bins.width_us // MICROSECONDS,
        timeline=[StepReport(**asdict(step), at=time_text(at_us)) for at_us, step in run.bins.items()],
    )


@dataclass(slots=True)
class _People:
    """The subjects of all rules that count by the same facts."""

    seen: set[str] = field(default_factory=set)
    hit: set[str] = field(default_factory=set)
    folded: int = 0  # no longer tracked separately: of the rule that has most of them
    folded_hit: int = 0


def _rule_report(rule: Rule, tally: RuleTally, people: _People) -> tuple[RuleReport, list[SubjectReport]]:
    shares: list[float] = []
    hit: list[SubjectReport] = []
    subjects, requests = 0, 0
    for subject, share, count, refused in tally.subjects():
        shares.append(share)
        requests += count
        people.seen.add(subject)
        if refused:
            subjects += 1
            people.hit.add(subject)
            hit.append(SubjectReport(rule.id, rule.dimension, readable(rule, subject), count, refused, round(share, 4)))
    folded = tally.total_folded()
    people.folded = max(people.folded, sum(folded.steps))
    people.folded_hit = max(people.folded_hit, folded.hit)
    for step, count in enumerate(folded.steps):
        shares += [step / STEPS] * count
    rule_report = RuleReport(
        id=rule.id,
        quota=str(rule.quota),
        dimension=rule.dimension,
        action=rule.action,
        requests=requests + folded.requests,
        refused=tally.refused,
        delayed=tally.delayed,
        shadow=tally.shadow,
        penalised=tally.penalised,
        subjects=subjects + folded.hit,
        all_subjects=len(shares),
        used=_percentiles(shares),
        burst_needed=max((limit.burst_needed for limit in tally.limits), default=0),
        approximate=any(folded.steps),
    )
    return rule_report, nlargest(TOP, hit, key=lambda one: (one.refused, one.requests))


def _percentiles(shares: Sequence[float]) -> dict[str, float]:
    if not shares:
        return dict.fromkeys((*(name for name, _ in _PERCENTILES), "max"), 0.0)
    ordered = sorted(shares)
    found = {name: round(ordered[min(len(ordered) - 1, int(part * len(ordered)))], 4) for name, part in _PERCENTILES}
    return {**found, "max": round(ordered[-1], 4)}
