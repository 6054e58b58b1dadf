"""Rates per rule, computed from two reads of `/metrics`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

METRIC: Final = "headgate_checks_total"
BUILD: Final = "headgate_build_info"


class Tally(NamedTuple):
    """Checks that a rule decided since the service started, or between two reads."""

    allowed: int = 0
    refused: int = 0
    shadow: int = 0  # allowed, but a rule that only logs would have refused

    @property
    def checks(self) -> int:
        return sum(self)

    def since(self, before: Tally) -> Tally:
        """Return the difference. After a restart, counts start at zero, so it is all of them."""
        if any(now < then for now, then in zip(self, before, strict=True)):
            return self
        return Tally(*(now - then for now, then in zip(self, before, strict=True)))


class RuleKey(NamedTuple):
    """A rule, or the reason why there is none."""

    rule: str
    reason: str = ""  # if there is no rule: `no_rule`, `exempt`


class Rate(NamedTuple):
    """A rule's rates."""

    rule: str  # empty for checks without a rule; `reason` is why
    reason: str
    checks: float  # per second, as the next three
    allowed: float
    refused: float
    shadow: float
    total: int  # checks since the service started


def tallies_of(page: str) -> dict[RuleKey, Tally]:
    """Return the counts per rule on a page of metrics. Raises `ValueError` if it is not such a page."""
    wanted = [line for line in page.split("\n") if line.startswith((METRIC, f"# TYPE {METRIC}"))]
    found: dict[RuleKey, Tally] = {}
    for family in text_string_to_metric_families("\n".join([*wanted, ""])):
        for sample in family.samples:
            decision = sample.labels.get("decision", "")
            if sample.name == METRIC and decision in Tally._fields:
                rule = sample.labels.get("rule", "")
                key = RuleKey(rule, "" if rule else sample.labels.get("reason", ""))
                tally = found.get(key, Tally())
                found[key] = tally._replace(**{decision: getattr(tally, decision) + int(sample.value)})
    return found


def node_of(page: str) -> str:
    """Return the machine in a page of metrics; empty if it names none. Raises `ValueError`."""
    wanted = [line for line in page.split("\n") if line.startswith(BUILD)]
    samples = [one for family in text_string_to_metric_families("\n".join([*wanted, ""])) for one in family.samples]
    return samples[0].labels.get("node", "") if samples else ""


def rates(before: Mapping[RuleKey, Tally], after: Mapping[RuleKey, Tally], seconds: float) -> list[Rate]:
    """Return the rates of every rule with decisions, the busiest first."""

    def each() -> Iterator[Rate]:
        for key, tally in after.items():
            if tally.checks:
                new = tally.since(before.get(key, Tally()))
                allowed, refused, shadow = (count / seconds for count in new)
                yield Rate(*key, new.checks / seconds, allowed, refused, shadow, tally.checks)

    return sorted(each(), key=lambda rate: (-rate.checks, -rate.total, rate.rule))
