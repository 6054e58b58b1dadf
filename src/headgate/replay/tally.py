"""Tally: the counts of one limit during a replay, by subject.

A subject's entry is a list, for speed: it is updated for each request and limit.

    PEAK      the largest use of the limit at any time
    BOUND     an upper bound of the current use, which grows only by requests' costs; exact when it may be a new peak
    NEXT      when all requests would have been served at the limit's rate, in microseconds: shows the needed burst
    REQUESTS  the number of requests
    REFUSED   how many of them the limit refused, or would have refused as a shadow
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import nlargest
from itertools import islice
from typing import Final, NamedTuple

from headgate.algorithms import ALGORITHMS
from headgate.core.check import Check
from headgate.core.quota import Quota

PEAK, BOUND, NEXT, REQUESTS, REFUSED = range(5)
MAX_SUBJECTS: Final = 500_000  # of one limit, tracked separately
KEPT: Final = 4  # one in this many stays separate when others are folded, if that many were refused
STEPS: Final = 1_000  # resolution of the use of a limit for folded subjects

Entry = list[float]


class LimitTally:
    """The counts of one quota of a rule. A rule has several quotas if users have overrides."""

    def __init__(self, limit: Check) -> None:
        self.rule = limit.rule
        self.quota: Quota = limit.quota
        self.figures = ALGORITHMS[limit.quota.algorithm].figures
        self.is_shadow = not limit.enforced
        self.capacity = limit.quota.capacity
        self.interval_us = limit.quota.window_us / limit.quota.limit  # between two requests at the limit's rate
        self.entries: dict[str, Entry] = {}
        self.worst_us = 0.0  # the longest time that serving all requests would have taken
        self.folded: list[int] = []  # subjects no longer tracked separately, by their use of the limit
        self.folded_requests = 0
        self.folded_hit = 0  # folded subjects that were refused

    def add_subject(self, subject: str, at_us: int, remaining: int, cost: int) -> Entry:
        """Create the entry of a subject at its first request."""
        if len(self.entries) >= MAX_SUBJECTS:
            self._fold()
        used = self.capacity - remaining
        taken_us = cost * self.interval_us
        self.worst_us = max(self.worst_us, taken_us)
        entry = self.entries[subject] = [used, used, at_us + taken_us, 1, 0]
        return entry

    @property
    def burst_needed(self) -> int:
        """The burst with which no request would have been refused, at the limit's rate."""
        return -int(-self.worst_us // self.interval_us)

    def count_refusal(self, subject: str) -> None:
        """Count a request of a subject as refused."""
        entry = self.entries.get(subject)
        if entry is None:  # it was folded while the request was delayed: the request is counted there
            if len(self.entries) >= MAX_SUBJECTS:
                self._fold()
            entry = self.entries[subject] = [self.capacity, self.capacity, 0, 0, 0]
        entry[REFUSED] += 1

    def _fold(self) -> None:
        """Fold the older half of the subjects: keep only how far they used the limit.

        The subjects refused most stay, as the report names them.
        """
        if not self.folded:
            self.folded = [0] * (STEPS + 1)
        oldest = list(islice(self.entries.items(), MAX_SUBJECTS // 2))
        refused = [one for one in oldest if one[1][REFUSED]]
        kept = {subject for subject, _ in nlargest(MAX_SUBJECTS // KEPT, refused, key=lambda one: one[1][REFUSED])}
        for subject, entry in oldest:
            if subject in kept:
                continue
            del self.entries[subject]
            self.folded[int(STEPS * self.share(entry))] += 1
            self.folded_requests += int(entry[REQUESTS])
            self.folded_hit += entry[REFUSED] > 0

    def share(self, entry: Entry) -> float:
        """Return the largest share of the limit that a subject used."""
        return min(1.0, entry[PEAK] / self.capacity)


class Folded(NamedTuple):
    """Subjects that are no longer tracked separately."""

    steps: list[int]  # their number, by their use of the limit
    requests: int
    hit: int  # the number that were refused


@dataclass(slots=True)
class RuleTally:
    """The counts of one rule."""

    rule: str
    limits: list[LimitTally] = field(default_factory=list)
    refused: int = 0
    delayed: int = 0
    penalised: int = 0
    shadow: int = 0

    def subjects(self) -> Iterator[tuple[str, float, int, int]]:
        """Yield each subject, the largest share of the limit that it used, its requests, and how many were refused."""
        if len(self.limits) == 1:
            only = self.limits[0]
            for subject, entry in only.entries.items():
                yield subject, only.share(entry), int(entry[REQUESTS]), int(entry[REFUSED])
            return
        together: dict[str, list[float]] = {}
        for limit in self.limits:
            for subject, entry in limit.entries.items():
                found = together.setdefault(subject, [0.0, 0, 0])
                found[0] = max(found[0], limit.share(entry))
                found[1] += entry[REQUESTS]
                found[2] += entry[REFUSED]
        for subject, (share, requests, refused) in together.items():
            yield subject, share, int(requests), int(refused)

    def total_folded(self) -> Folded:
        """Return the totals of subjects that are no longer tracked separately."""
        steps = [0] * (STEPS + 1)
        for limit in self.limits:
            for step, count in enumerate(limit.folded):
                steps[step] += count
        requests = sum(limit.folded_requests for limit in self.limits)
        return Folded(steps, requests, sum(limit.folded_hit for limit in self.limits))
