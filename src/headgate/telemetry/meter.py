"""Counts the service's work, cheaply enough for every check. `metrics` exports the counts."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from math import isfinite
from typing import Final, Literal, NamedTuple

from headgate.core.decision import Decision
from headgate.core.plan import Reason
from headgate.errors import StoreError, StoreFull, StoreTimeout, StoreUnavailable
from headgate.rules.holder import Holder
from headgate.rules.snapshot import Snapshot
from headgate.stores.breaker import State

MAX_RULES: Final = 1_000  # counted by name
OTHER: Final = "other"  # all further rules, and anything else without a name
PROTOCOLS: Final = ("http", "grpc", "envoy", "authorize", OTHER)
KINDS: Final = {StoreTimeout: "timeout", StoreUnavailable: "unavailable", StoreFull: "full"}
SKEW_SECONDS: Final = 5.0  # a clock with a larger difference is counted

REQUEST_BOUNDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
CHECKS_BOUNDS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000)
STORE_BOUNDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25)
BATCH_BOUNDS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
LAG_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
SKEW_BOUNDS: Final = (0.5, 1.0, SKEW_SECONDS, 30.0, 300.0, 3_600.0)

Cause = tuple[str | None, Reason]  # the rule and the reason


class Histogram:
    """Counts values in buckets with inclusive upper bounds. Cheap to add to."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)  # the last: above all bounds
        self._total = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def read(self) -> tuple[list[tuple[float, int]], float]:
        """Return each bound with the number of values up to it, the last bound infinite; and the sum of all values."""
        counts, total = self._counts.copy(), self._total
        buckets, below = [], 0
        for bound, count in zip((*self._bounds, float("inf")), counts, strict=True):
            below += count
            buckets.append((bound, below))
        return buckets, total


class OpenConnections(NamedTuple):
    """The connections of one protocol."""

    now: Callable[[], int]  # open connections
    max_open: int  # the maximum


class Meter:
    """Counters that the service's planes and store update, and `/metrics` reads. Methods never block and never raise.

    Rules are counted by name while they are in the current snapshot of `holder`, at most `max_rules` of them. Belongs
    to the thread of one event loop; any thread may read.
    """

    def __init__(self, *, holder: Holder | None = None, max_rules: int = MAX_RULES) -> None:
        self._holder = holder
        self._max_rules = max_rules
        self._rules: set[str | None] = {None, OTHER}  # rules counted by name
        self._swept: Snapshot | None = None  # the snapshot whose missing rules were already removed
        self._allowed: dict[Cause, int] = {}
        self._refused: dict[Cause, int] = {}
        self._near_limit: dict[str | None, int] = {}
        self.requests = {protocol: Histogram(REQUEST_BOUNDS) for protocol in PROTOCOLS}
        self.checks = {protocol: Histogram(CHECKS_BOUNDS) for protocol in PROTOCOLS}
        self.responses: dict[tuple[str, str | int], int] = {}  # by protocol and status
        self.connections: dict[str, OpenConnections] = {}  # by protocol
        self.loop_lags = Histogram(LAG_BOUNDS)
        self.store_calls = Histogram(STORE_BOUNDS)
        self.store_batches = Histogram(BATCH_BOUNDS)
        self.store_errors = dict.fromkeys((*KINDS.values(), OTHER), 0)
        self.breakers: dict[str, State] = {}  # by server
        self.skews = Histogram(SKEW_BOUNDS)
        self.skewed_total = 0

    def record_decision(self, decision: Decision) -> None:
        """Count a decision."""
        reading = decision.reading
        allowed, causes = decision.allowed, reading.causes
        if allowed and causes is not None:
            at = decision.order[0]
            cause: Cause = causes[at]
            is_near = decision.figures[at][1] <= reading.low[at]
        else:
            cause = decision.cause()
            is_near = cause[1] == "within_limit" and decision.is_near_limit
        tallies = self._allowed if allowed else self._refused
        try:
            tallies[cause] += 1
        except KeyError:
            cause = self._begin(cause)
            tallies[cause] = tallies.get(cause, 0) + 1
        if is_near:
            self._near_limit[cause[0]] = self._near_limit.get(cause[0], 0) + 1

    def record_call(self, protocol: str, seconds: float, checks: int = 1) -> None:
        """Count a call to the data plane, by protocol: `http`, `grpc`, `envoy` or `authorize`."""
        if protocol not in self.requests:
            protocol = OTHER
        self.requests[protocol].add(seconds)
        self.checks[protocol].add(checks)

    def record_response(self, protocol: str, status: str | int) -> None:
        """Count a response by its status: HTTP's number, or the name of gRPC's code.

        `protocol` is one of `PROTOCOLS`, or `admin`.
        """
        try:
            self.responses[protocol, status] += 1
        except KeyError:
            self.responses[protocol, status] = 1

    def record_skew(self, seconds: float) -> None:
        """Count how far a caller's clock is ahead of the store's (negative: behind)."""
        seconds = abs(seconds)
        if isfinite(seconds):
            self.skews.add(seconds)
            self.skewed_total += seconds > SKEW_SECONDS

    def called(self, seconds: float, groups: int) -> None:
        """Count a call to the store: see `headgate.stores.protocol`."""
        self.store_calls.add(seconds)
        if groups:
            self.store_batches.add(groups)

    def failed(self, error: StoreError, seconds: float, groups: int) -> None:
        """Count a failed call to the store."""
        self.store_errors[KINDS.get(type(error), OTHER)] += 1
        if groups:  # 0: a reset, which is not a check
            self.store_calls.add(seconds)

    def breaker(self, node: str, state: State | Literal["gone"]) -> None:
        """Record the new state of a store server's circuit breaker, or its removal."""
        if state == "gone":
            self.breakers.pop(node, None)
        else:
            self.breakers[node] = state

    def tallies(self) -> Iterator[tuple[str, str, str, int]]:
        """Yield the count of each rule, decision (`allowed`, `refused`, `shadow`) and reason."""
        for (rule, reason), count in self._allowed.copy().items():
            yield rule or "", "shadow" if reason == "shadow" else "allowed", reason, count
        for (rule, reason), count in self._refused.copy().items():
            yield rule or "", "refused", reason, count

    def near_limit(self) -> Iterator[tuple[str, int]]:
        """Yield for each rule how many requests `within_limit` came near it."""
        for rule, count in self._near_limit.copy().items():
            yield rule or "", count

    def _begin(self, cause: Cause) -> Cause:
        """Return the cause under which to count a new one, or one without its own count."""
        rule, reason = cause
        if rule not in self._rules:
            if not self._has_room(rule):
                return OTHER, reason
            self._rules.add(rule)
            # Start all counts at 0 with the first check, so that the first refusal shows as an increase.
            self._allowed.setdefault((rule, "within_limit"), 0)
            self._refused.setdefault((rule, "over_limit"), 0)
            self._near_limit.setdefault(rule, 0)
        return cause

    def _has_room(self, rule: str | None) -> bool:
        if self._holder is not None:
            snapshot = self._holder.current
            if rule is None or snapshot.template(rule) is None:
                return False
            if len(self._rules) >= self._max_rules + 2 and snapshot is not self._swept:
                self._sweep(snapshot)
        return len(self._rules) < self._max_rules + 2  # the two are None and OTHER

    def _sweep(self, snapshot: Snapshot) -> None:
        """Make room by removing rules that are no longer in the snapshot."""
        self._swept = snapshot
        gone = {rule for rule in self._rules - {None, OTHER} if rule and snapshot.template(rule) is None}
        self._rules -= gone
        for tallies in (self._allowed, self._refused):
            for cause in [cause for cause in tallies if cause[0] in gone]:
                del tallies[cause]
        for rule in gone:
            self._near_limit.pop(rule, None)
