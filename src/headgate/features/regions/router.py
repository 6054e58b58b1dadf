"""Router: where each check of a group is decided, and with which quota. No I/O: it yields the calls to make.

Our own store decides all of its checks in one atomic step. A group that also needs the central region is charged here
first, and there only if it fits; if it does not, the charge here is undone. So it is never charged too little, but for
a moment it may be charged too much.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from time import monotonic_ns, time_ns
from typing import Any, Final

from headgate.core.check import (
    NEVER,
    Answer,
    Charge,
    Check,
    Group,
    Outcome,
    OutcomeAt,
    RepeatedResult,
    Result,
    SharedResult,
)
from headgate.core.clock import Clock
from headgate.core.quota import BUCKETS, Quota
from headgate.core.reservation import ClaimedAdjustments
from headgate.errors import IdempotencyConflict, StoreError
from headgate.features.regions.counts import Counts
from headgate.features.regions.division import by_weight
from headgate.features.regions.link import HERE, Duty, Link, Steps, StoreCall
from headgate.features.regions.region import Region, RegionStatus
from headgate.features.regions.regional_settlement import settle_by_region
from headgate.features.regions.routed_group import (
    RoutedGroup,
    call_all,
    charges_of,
    each_answer,
    name_region,
    outcome_given_back,
    refuses,
    unasked_outcome,
    violation_of,
    with_block,
)
from headgate.features.regions.shares import RegionShares
from headgate.rules.holder import Holder
from headgate.rules.rule import MIN_AUTO_US, FailureMode, Spread
from headgate.stores.memory import MemoryStore

QUOTAS: Final = 4_096  # to remember


class Router:
    """The router of one limiter. `notify` is called when there is new work for the background."""

    def __init__(
        self,
        region: Region,
        holder: Holder,
        clock: Clock | None,
        failure_mode: FailureMode,
        notify: Callable[[Duty], None],
    ) -> None:
        self.region = region
        self.now_us: Callable[[], int] = clock.now_us if clock is not None else lambda: monotonic_ns() // 1_000
        self.ticks: tuple[Callable[[], int], int] = (monotonic_ns, 1_000) if clock is None else (clock.now_us, 1)
        self._clock = clock
        self._holder = holder
        self._failure_mode = failure_mode
        self._weights = dict(region.weights)
        self.central = HERE if region.central == region.name else region.central
        interval_us = round(region.interval * 1e6)
        self.links = {name: Link(name, interval_us, self.now_us) for name in region.others}
        self.shares = RegionShares(region, self.links, self.now_us, lambda: notify(self.shares))
        self.counts = Counts(region, self.links, self.now_us, self._notify_exchanges)
        self._notify = notify
        self._interval_us = interval_us
        self._quotas: dict[tuple[Quota, int], Quota] = {}
        self._weighed: dict[Quota, Quota | None] = {}
        self._fallback = MemoryStore(clock=clock)
        self._fallbacks = 0

    @property
    def duties(self) -> list[Duty]:
        return [self.shares, *self.counts.exchanges]

    def spread_of(self, check: Check) -> Spread:
        """Return how regions share a check's rule, as far as it makes a difference here."""
        mode = self._holder.current.spread.get(check.rule, "separate")
        if mode == "central" and self.central == HERE:
            return "separate"
        if mode == "quota_auto" and check.quota.window_us < MIN_AUTO_US:  # of an override
            return "quota"
        return mode

    def is_spread(self, group: Group) -> bool:
        """Return whether regions share any rule of a group."""
        spread = self._holder.current.spread
        return any(check.rule in spread for check in group.checks)

    def share(self, quota: Quota) -> Quota | None:
        """Return this region's share of a quota by weight; None if it is nothing."""
        if quota in self._weighed:
            return self._weighed[quota]
        limit = by_weight(quota.limit, self._weights)[self.region.name]
        burst = by_weight(quota.burst, self._weights)[self.region.name] if quota.algorithm in BUCKETS else limit
        share = None
        if limit and burst:
            window = timedelta(microseconds=quota.window_us)
            share = Quota(limit, window, burst=burst, algorithm=quota.algorithm)
        if len(self._weighed) >= QUOTAS:
            self._weighed = {}
        self._weighed[quota] = share
        return share

    def with_limit(self, quota: Quota, limit: int) -> Quota | None:
        """Return a window algorithm's quota with another limit; None: nothing may pass."""
        if limit == quota.limit:
            return quota
        if limit <= 0:
            return None
        found = self._quotas.get((quota, limit))
        if found is None:
            if len(self._quotas) >= QUOTAS:
                self._quotas = {}
            found = Quota(limit, timedelta(microseconds=quota.window_us), algorithm=quota.algorithm)
            self._quotas[quota, limit] = found
        return found

    def refuse(self, mode: Spread, check: Check) -> Outcome:
        """Return the outcome when nothing may pass here."""
        quota = check.quota
        if check.cost == 0:
            return Outcome(0, 0, 0)
        if check.cost > quota.limit or mode == "quota":
            return Outcome(NEVER, 0, 0)
        wait_us = self._interval_us
        if mode == "synced":
            wait_us = quota.window_us - self.store_us() % quota.window_us
            if quota.algorithm == "sliding_window_counter":  # the others' counts fade
                wait_us = min(wait_us, max(self._interval_us, quota.window_us // quota.limit))
        return Outcome(wait_us, 0, wait_us)

    def store_us(self) -> int:
        """Return our own store's time, as far as it is known."""
        known_us = self.counts.store_us(self.now_us())
        if known_us is not None:
            return known_us
        return time_ns() // 1_000 if self._clock is None else self._clock.now_us()

    def decide(self, groups: Sequence[Group]) -> Steps[list[Answer]]:
        """Decide groups. The answer to a group may be a `StoreError`, which does not affect the others."""
        routes = [self._route(group) for group in groups]
        yield from self._call_first(routes)
        rest = [route for route in routes if route.far is not None and route.answer is None]
        if rest:
            yield from self._call_central(rest)
        for route in routes:
            if route.answer is None:
                route.answer = self._combine(route, {})
        return [route.answer for route in routes if route.answer is not None]

    def refund(
        self, charges: Sequence[Charge], method: str, surcharges: Sequence[Check] = ()
    ) -> Steps[list[int] | None]:
        """Undo charges, and make others, in the stores where they belong. Raises the first `StoreError`.

        Returns how much of each charge `adjust` refunded; None if that is unknown.
        """
        by_region: dict[str, tuple[list[Charge], list[Check]]] = {}
        for charge in charges:
            by_region.setdefault(self._home(charge.check), ([], []))[0].append(charge)
        for check in surcharges:
            by_region.setdefault(self._home(check), ([], []))[1].append(check)
        asks = [
            StoreCall(region, method, (some, more) if method == "adjust" else (some,))
            for region, (some, more) in by_region.items()
        ]
        answers = yield from call_all(asks)
        refunded: dict[int, int] = {}
        for (some, _), units in zip(by_region.values(), answers, strict=True):
            if units is not None:
                refunded.update(zip(map(id, some), units, strict=True))
        return [refunded[id(charge)] for charge in charges] if len(refunded) == len(charges) else None

    def settle(self, settled: Sequence[ClaimedAdjustments]) -> Steps[list[list[int]]]:
        """Settle claimed reservations: see `settle_by_region`."""
        return settle_by_region(settled, lambda check: self._home(check) == HERE, self.refund)

    def reset(self, checks: Sequence[Check], clients: Sequence[Any]) -> Steps[None]:
        """Reset keys in every region that has them. Raises the first `StoreError`."""
        everywhere = [check for check in checks if self.spread_of(check) in ("quota", "quota_auto", "synced")]
        here = [check for check in checks if self._home(check) == HERE]
        far = [check for check in checks if self._home(check) != HERE]
        asks = [StoreCall(HERE, "reset", (here, clients))]
        for name in self.links:
            some = everywhere + (far if name == self.central else [])
            if some:
                asks.append(StoreCall(name, "reset", (some,)))
        yield from call_all(asks)
        self.counts.forget(everywhere)

    def status(self) -> RegionStatus:
        return RegionStatus(
            region=self.region.name,
            peers={name: link.status() for name, link in self.links.items()},
            fallbacks=self._fallbacks,
            grants=self.shares.live,
            grant_failures=self.shares.failures,
            synced_keys=self.counts.keys,
            synced_bound=self.counts.bound,
            synced_excess=self.counts.excess,
        )

    def reset_after_fork(self) -> None:
        """Make new locks in a forked child, which lacks the threads that held the old ones. Shares stay valid."""
        self.shares.reset_after_fork()
        self.counts.reset_after_fork()

    def _notify_exchanges(self) -> None:
        for exchange in self.counts.exchanges:
            self._notify(exchange)

    def _home(self, check: Check) -> str:
        return self.central if self.spread_of(check) == "central" else HERE

    def _route(self, group: Group) -> RoutedGroup:
        """Return where the checks of a group go."""
        route = RoutedGroup(group)
        here: list[Check] = []
        far: list[Check] = []
        refused = False
        for index, check in enumerate(group.checks):
            mode = self.spread_of(check)
            if mode == "central":
                far.append(check)
                route.far_indexes.append(index)
                continue
            quota = self._quota(mode, check, peek=group.peek)
            if quota is None:
                route.known[index] = outcome = self.refuse(mode, check)
                refused = refused or (outcome.wait_us != 0 and check.enforced)
                continue
            if mode in ("quota", "quota_auto"):
                route.quotas[index] = quota
            here.append(check if quota is check.quota else check._replace(quota=quota))
            route.here_indexes.append(index)
        if here or group.penalty is not None or not far:
            route.here = group._replace(checks=tuple(here), peek=group.peek or refused)
        if far and (group.peek or not refused):
            route.far = group._replace(checks=tuple(far), penalty=None)
        elif far:
            route.known.update(route.unasked_outcomes())
        return route

    def _quota(self, mode: Spread, check: Check, *, peek: bool) -> Quota | None:
        """Return the quota with which our own store decides a check; None: nothing may pass."""
        if mode == "separate":
            return check.quota
        if mode == "quota":
            return self.share(check.quota)
        at_us = self.now_us()
        if mode == "synced":
            return self.with_limit(check.quota, self.counts.limit(self.counts.follow(check, at_us), check.quota, at_us))
        held = self.shares.follow(check)
        if held is None:
            return self.with_limit(check.quota, self.shares.floor(check.quota))
        if not peek:
            held.demand += check.cost
        return self.with_limit(check.quota, held.limit(at_us))

    def _call_first(self, routes: list[RoutedGroup]) -> Steps[None]:
        """Call our own store, and the central region for groups that are entirely its own; peeks go to both at once."""
        here = [route for route in routes if route.here is not None and (route.here.checks or route.here.penalty)]
        first = next((index for index, route in enumerate(routes) if route.waits), len(routes))
        far = [route for route in routes[:first] if route.far is not None]  # later groups must not overtake it
        far += [route for route in routes[first:] if route.far is not None and route.group.peek]
        asks = []
        if here:
            asks.append(StoreCall(HERE, "check", ([route.here for route in here],)))
        if far:
            asks.append(StoreCall(self.central, "check", ([route.far for route in far],)))
        answers = iter((yield asks) if asks else [])
        for route, one in zip(here, each_answer(next(answers), here) if here else (), strict=True):
            if isinstance(one, Result):
                route.decided = one
                if self.counts.wants_time:
                    self.counts.note_answer(one.now_us, self.now_us())
                if one.block is not None and not one.outcomes:
                    route.answer = one  # the client was blocked before
            else:
                route.answer = one
        for route, one in zip(far, each_answer(next(answers), far) if far else (), strict=True):
            if route.answer is not None:
                continue
            if isinstance(one, StoreError) and route.here is not None:
                route.answer = self._combine(route, route.unasked_outcomes())
            elif isinstance(one, Result):
                route.answer = self._combine(route, dict(zip(route.far_indexes, one.outcomes, strict=True)), one)
            else:
                route.answer = name_region(one, self.central)

    def _call_central(self, routes: list[RoutedGroup]) -> Steps[None]:
        """Call the central region for groups that fit here or have nothing here; undo those that do not fit there."""
        fitting = []
        for route in routes:
            if route.here is not None and route.decided is not None and refuses(route.here, route.decided):
                route.answer = self._combine(route, route.unasked_outcomes())
            else:
                fitting.append(route)
        if not fitting:
            return
        (answers,) = yield [StoreCall(self.central, "check", ([route.far for route in fitting],))]
        refused = [
            route
            for route, answer in zip(fitting, each_answer(answers, fitting), strict=True)
            if not self._allowed_there(route, answer)
        ]
        undone = [charge for route in refused for charge in charges_of(route)]
        penalised = [route for route in refused if route.group.penalty is not None and isinstance(route.answer, Result)]
        asks = [StoreCall(HERE, "refund", (undone,))] if undone else []
        if penalised:
            asks.append(StoreCall(HERE, "check", ([violation_of(route) for route in penalised],)))
        answers = (yield asks) if asks else []
        if penalised and not isinstance(answers[-1], StoreError):
            for route, result in zip(penalised, answers[-1], strict=True):
                if isinstance(route.answer, Result) and isinstance(result, Result):
                    route.answer = with_block(route.answer, result)

    def _allowed_there(self, route: RoutedGroup, answer: Answer) -> bool:
        """Record the central region's answer to a group that fits here."""
        assert route.far is not None
        result = answer
        if (
            isinstance(answer, StoreError) and route.here is not None
        ):  # else the whole group went there, and this is the answer
            result = self._fall_back(route.far, answer)
        if not isinstance(result, Result):
            route.answer = name_region(result, self.central)
            return False
        route.answer = self._combine(route, dict(zip(route.far_indexes, result.outcomes, strict=True)), result)
        return not refuses(route.far, result)

    def _fall_back(self, group: Group, error: StoreError) -> Result | StoreError | IdempotencyConflict:
        """Return the result by the failure modes of the central region's rules; the error, if one of them refuses."""
        self._fallbacks += 1
        snapshot = self._holder.current
        modes = [snapshot.failure_mode_of(check.rule) or self._failure_mode for check in group.checks]
        if any(mode == "closed" and check.enforced for mode, check in zip(modes, group.checks, strict=True)):
            return error
        local = tuple(check for check, mode in zip(group.checks, modes, strict=True) if mode == "local")
        try:
            results = self._fallback.check([Group(local, group.peek)])
        except StoreError:  # no memory left to count in
            return Result(0, tuple(map(unasked_outcome, group.checks)))
        assert isinstance(results[0], Result)
        counted = iter(results[0].outcomes)
        outcomes = [
            next(counted) if mode == "local" else unasked_outcome(check)
            for check, mode in zip(group.checks, modes, strict=True)
        ]
        return Result(results[0].now_us, tuple(outcomes))

    def _combine(self, route: RoutedGroup, far: Mapping[int, Outcome], elsewhere: Result | None = None) -> Answer:
        """Combine the parts of the answer to a group."""
        decided = route.decided
        outcomes = {**route.known, **far}
        if decided is not None:
            back = route.far is not None and elsewhere is not None and refuses(route.far, elsewhere)
            for index, outcome in zip(route.here_indexes, decided.outcomes, strict=True):
                check = route.group.checks[index]
                outcomes[index] = outcome_given_back(check, outcome) if back and not route.group.peek else outcome
        now_us = decided.now_us if decided is not None else elsewhere.now_us if elsewhere else self.store_us()
        block = decided.block if decided is not None else None
        if route.far is not None and decided is not None and elsewhere is not None:
            for index in route.far_indexes:  # another clock charged it, and must undo it
                outcomes[index] = OutcomeAt.of(outcomes[index], elsewhere.now_us)
        result = Result(now_us, tuple(outcomes[index] for index in range(len(route.group.checks))), block)
        repeated = isinstance(decided, RepeatedResult) or isinstance(elsewhere, RepeatedResult)
        if route.quotas or repeated:
            kind = RepeatedResult if repeated else SharedResult
            return kind.of(result, tuple(route.quotas.get(index) for index in range(len(route.group.checks))))
        return result
