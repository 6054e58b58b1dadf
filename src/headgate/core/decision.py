"""Decision: the answer to the caller. A lazy view of a plan and of a program's answer."""

from __future__ import annotations

from itertools import count
from os import urandom
from typing import Any, Final, Literal, Self

from headgate.core.check import NEVER, REFUSAL, Block, Check, Outcome, Refusal
from headgate.core.plan import Plan, Reason
from headgate.core.quota import MICROSECONDS
from headgate.core.reading import Reading, WarningStates, indexes_in_warning
from headgate.core.verdict import FIGURES, LimitStatus, delay_us, hold_us, order_allowed, order_by_wait, status_of_limit

State = Literal["normal", "warning", "annotated", "throttled"]

_new: Final[Any] = tuple.__new__  # makes a named tuple in half the time of calling its class
_SEQUENCE = count()  # distinguishes the ids of decisions made at the same microsecond


class Decision:
    """The decision on a request, with the figures of the limit that binds it. Truthy when allowed.

    For a refused request, the binding limit is the one with the longest wait; for an allowed request, the one with the
    least remaining. Example for `100/minute`: after 30 requests, `limit=100, remaining=70, retry_after=0.0`. After 100
    requests, the next one has `allowed=False, remaining=0`, and `retry_after` is the seconds until it would pass, exact
    to the microsecond.

    A decision computes everything but `allowed` when you read it. `of` makes one from its parts, and `decision_with`
    from a program's answer. Programs on the hot path set the attributes directly.
    """

    __slots__ = (
        "_figures",
        "_id",
        "_order",
        "_state",
        "_warned",
        "allowed",
        "block",
        "reading",
        "settled",
        "slot",
        "verdict",
    )

    allowed: bool
    reading: Reading
    verdict: Any  # the program's answer: time, subjects, costs, and the outcomes or the data that they are read from
    settled: bool  # True: it charged nothing, or its charge was refunded or corrected; otherwise unset
    slot: Any  # the concurrency slots to release: see `headgate.limiter.slots`; unset if there are none
    block: Block  # a client's block: set only on the way from the store to the limiter
    _id: str
    _figures: tuple[tuple[int, int, int], ...] | None  # this and the next two are None until they are first read
    _order: tuple[int, ...] | None
    _state: State | None
    _warned: tuple[int, ...]  # the limits in warning; unset if there were none when the state was first read

    @classmethod
    def of(
        cls,
        allowed: bool,
        now_us: int,
        plan: Plan | None = None,
        outcomes: tuple[Outcome, ...] = (),
        *,
        costs: tuple[int, ...] | None = None,
        subjects: tuple[str, ...] = (),
        reason: Reason | None = None,
        states: WarningStates | None = None,
    ) -> Self:
        """Make a decision from known outcomes."""
        decision = cls()
        decision.allowed = allowed
        plan = plan or _NO_PLAN
        decision.reading = Reading.of_outcomes(plan, states, reason)
        decision.verdict = (now_us, subjects, plan.ones if costs is None else costs, outcomes)
        decision._figures = decision._order = decision._state = None
        return decision

    @property
    def plan(self) -> Plan:
        """The limits that applied."""
        return self.reading.plan

    @property
    def at_us(self) -> int:
        """The store's time of the decision, in microseconds since the epoch."""
        at_us: int = self.verdict[0]
        return at_us

    @property
    def id(self) -> str:
        """The id in problem details, events and logs: 30 hexadecimal digits that sort by time."""
        known: str | None = getattr(self, "_id", None)
        if known is None:
            self._id = known = f"{self.at_us:014x}{next(_SEQUENCE) % 2**32:08x}{urandom(4).hex()}"
        return known

    @property
    def subjects(self) -> tuple[str, ...]:
        """The subject of each of the plan's limits, in order; empty if the decision does not need them."""
        subjects: tuple[str, ...] = self.verdict[1]
        return subjects

    @property
    def costs(self) -> tuple[int, ...]:
        """The cost of the request to each limit."""
        costs: tuple[int, ...] = self.verdict[2]
        return costs

    @property
    def figures(self) -> tuple[tuple[int, int, int], ...]:
        """Wait, remaining and reset of each limit of the plan, in order, as `outcomes` names them."""
        known = self._figures
        if known is None:  # two threads may both get here: they read the same values
            read, verdict = self.reading.read, self.verdict
            self._figures = known = verdict[3] if read is None else read(verdict)
        return known

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """The store's answer for each limit of the plan, in order. Slower to read than `figures`."""
        known: tuple[Any, ...] = self.figures
        if known and known[0].__class__ is tuple:
            self._figures = known = tuple([_new(Outcome, one) for one in known])
        return known

    @property
    def order(self) -> tuple[int, ...]:
        """The indexes of the plan's limits, the most restrictive first. The first one binds."""
        reading = self.reading
        plan = reading.plan
        if len(plan.indexes) < 2:
            return plan.indexes
        known = self._order
        if known is None:
            figures = self.figures
            if self.allowed and not plan.shadows:  # all limits are enforced, and none makes the request wait
                known = reading.order
                if not reading.is_ordered(figures, known):
                    known = reading.order = order_allowed(figures)
            else:
                known = order_by_wait(figures, plan.limits)
            self._order = known
        return known

    @property
    def binding(self) -> tuple[Check | None, Outcome]:
        """The binding limit and its outcome; None and zeros when no limit applied."""
        limits = self.reading.plan.limits
        if not limits:
            return None, _NOTHING
        at = self.order[0]
        return limits[at], self.outcomes[at]

    @property
    def ranked(self) -> list[tuple[Check, Outcome]]:
        """All limits with their outcomes, the most restrictive first."""
        limits, outcomes = self.reading.plan.limits, self.outcomes
        return [(limits[at], outcomes[at]) for at in self.order]

    @property
    def enforced(self) -> list[tuple[Check, Outcome]]:
        """The limits that can refuse, with their outcomes, the most restrictive first."""
        ranked = self.ranked
        return [pair for pair in ranked if pair[0].enforced] if self.reading.plan.shadows else ranked

    def _binding_figures(self) -> tuple[int, int, int]:
        """Return wait, remaining and reset of the binding limit; zeros when no limit applied."""
        order = self.order
        return self.figures[order[0]] if order else _NOTHING

    @property
    def limit(self) -> int:
        """What `remaining` counts down from; 0 when no limit applied."""
        limits = self.reading.plan.limits
        return limits[self.order[0]].quota.capacity if limits else 0

    @property
    def remaining(self) -> int:
        """How much of the binding limit is left now."""
        return self._binding_figures()[1]

    @property
    def reset_after(self) -> float:
        """Seconds until the whole limit is available again."""
        return self._binding_figures()[2] / MICROSECONDS

    @property
    def reset_at(self) -> float:
        """The Unix time, on the store's clock, at which the whole binding limit is available again."""
        return self.at_us / MICROSECONDS + self.reset_after

    @property
    def retry_after(self) -> float | None:
        """Seconds until this request would pass if no other request came: 0 when allowed, None for never."""
        if self.allowed:
            return 0.0
        if self.reading.plan.refuses:
            return None
        wait_us = self._binding_figures()[0]
        return None if wait_us == NEVER else wait_us / MICROSECONDS

    @property
    def delay(self) -> float:
        """Seconds until this request's turn in a leaky bucket; 0 for other algorithms and for refusals."""
        if not self.allowed:
            return 0.0
        delays = map(delay_us, self.reading.plan.limits, self.outcomes, self.costs)
        return max(delays, default=0) / MICROSECONDS

    @property
    def hold(self) -> float:
        """Seconds to delay an allowed request: the part of `delay` that rules with action `throttle` cause."""
        plan = self.reading.plan
        if not plan.holds or not self.allowed:
            return 0.0
        return max(map(hold_us, plan.limits, self.outcomes, self.costs)) / MICROSECONDS

    @property
    def rule(self) -> str | None:
        """The id of the binding rule; None when no rule applied."""
        limits = self.reading.plan.limits
        return limits[self.order[0]].rule if limits else None

    @property
    def status(self) -> int:
        """The HTTP status: 200, the refusing rule's, 503 if the store could not decide, or 403 if no rule applies."""
        if self.allowed:
            return 200
        if self.reading.plan.refuses:
            return 403
        return 503 if self.reading.reason == "fail_closed" else self._refusal.status

    @property
    def message(self) -> str:
        """The refusing rule's message for the client; empty if the rule has none."""
        return self._refusal.message

    @property
    def max_delay(self) -> float:
        """Seconds for which a refused request may be delayed and retried (action `throttle`); 0 for other rules."""
        return self._refusal.max_delay_us / MICROSECONDS

    @property
    def state(self) -> State:
        """`throttled` (refused), `annotated`, `warning` or `normal`.

        It is `annotated` when a rule with action `annotate` is over its limit, and `warning` from 80 % used until below
        70 %. The limiter sets the percentages. It records which limits are in warning when you first read this, and
        only then. The decision keeps the state that it first returned.
        """
        state = self._state
        if state is not None:
            return state
        reading = self.reading
        states = reading.states
        state = "normal" if self.allowed else "throttled"
        if (states is not None and states.warned) or reading.is_low(self.figures, reading.low):
            self._warned = indexes_in_warning(reading, self.subjects, self.outcomes, self.at_us)
            if self._warned and self.allowed:
                state = "warning"
        if reading.plan.annotates and self.annotated:
            state = "annotated"
        self._state = state
        return state

    @property
    def in_warning(self) -> tuple[int, ...]:
        """The indexes of the plan's limits in warning, whatever the `state`, which this reads first."""
        return getattr(self, "_warned", ()) if self.state != "normal" else ()

    @property
    def is_near_limit(self) -> bool:
        """Whether the request was allowed and 80 % or more of its binding limit is now used.

        The limiter sets the percentage. Unlike `state`, this records nothing and depends on this decision alone.
        """
        figures = self.figures
        if not self.allowed or not figures:
            return False
        index = self.order[0]
        return figures[index][1] <= self.reading.low[index]

    @property
    def annotated(self) -> tuple[str, ...]:
        """The rules with action `annotate` that are over their limits, for an allowed request."""
        limits = self.reading.plan.limits
        if not self.allowed or not self.reading.plan.annotates:
            return ()
        return tuple(
            limit.rule
            for limit, outcome in zip(limits, self.outcomes, strict=False)
            if outcome.wait_us and limit.refusal.annotates
        )

    @property
    def reason(self) -> Reason:
        """The reason: `over_limit`, `within_limit`, `shadow` (only a shadow rule would refuse), or a special case."""
        reading = self.reading
        if reading.reason is not None:
            return reading.reason
        plan = reading.plan
        if not plan.limits:
            return plan.reason or "no_rule"
        if not self.allowed:
            return "over_limit"
        is_shadow = plan.shadows and any(wait_us for wait_us, _, _ in self.figures)
        return "shadow" if is_shadow else "within_limit"

    def cause(self) -> tuple[str | None, Reason]:
        """Return the rule that decided and the `reason`, for metrics. Computes figures only if it needs them.

        The rule is the binding one; for the reason `shadow`, it is the shadow rule that would have refused.
        """
        causes = self.reading.causes
        if self.allowed and causes is not None:
            return causes[self.order[0]]
        reason = self.reason
        if reason == "shadow":  # enforced limits come first, and none of them refuses
            return next(limit.rule for limit, outcome in self.ranked if outcome.wait_us), reason
        return self.rule, reason

    @property
    def limits(self) -> tuple[LimitStatus, ...]:
        """One status per applied rule, the most restrictive first."""
        limits, outcomes, costs = self.reading.plan.limits, self.outcomes, self.costs
        return tuple(status_of_limit(limits[at], outcomes[at], costs[at]) for at in self.order)

    @property
    def _refusal(self) -> Refusal:
        limit, _ = self.binding
        return REFUSAL if self.allowed or limit is None else limit.refusal

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as plain data for JSON. A refusal includes its `decision_id`."""
        figures: dict[str, Any] = {name: getattr(self, name) for name in FIGURES}
        figures["limits"] = [
            status._replace(quota=str(status.quota))._asdict()  # type: ignore[arg-type]
            for status in self.limits
        ]
        return figures if self.allowed else {**figures, "decision_id": self.id}

    def __bool__(self) -> bool:
        return self.allowed

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the decision without its limiter. Only the original can be refunded."""
        plan = self.plan
        fields = (self.allowed, self.at_us, self.outcomes, self.costs, self.subjects, self.reading.reason)
        known = {"_state": self.state, "_warned": self.in_warning, "settled": True}
        return _restore, (plan.limits, plan.reason, fields, known if self.allowed else {**known, "_id": self.id})

    def __eq__(self, other: object) -> bool:
        """Return whether both decide the same, ignoring their ids."""
        if not isinstance(other, Decision):
            return NotImplemented
        return self.as_dict() | {"decision_id": ""} == other.as_dict() | {"decision_id": ""}

    def __hash__(self) -> int:
        return hash((self.allowed, self.at_us, self.outcomes))

    def __repr__(self) -> str:
        figures = ", ".join(f"{name}={getattr(self, name)!r}" for name in FIGURES)
        return f"Decision({figures})"


_NO_PLAN = Plan(())


def _restore(
    limits: tuple[Check, ...], unlimited: Reason | None, fields: tuple[Any, ...], known: dict[str, Any]
) -> Decision:
    """Rebuild a pickled decision."""
    allowed, at_us, outcomes, costs, subjects, reason = fields
    plan = Plan(limits, unlimited)
    decision = Decision.of(allowed, at_us, plan, outcomes, costs=costs, subjects=subjects, reason=reason)
    for name, value in known.items():
        setattr(decision, name, value)
    return decision


_NOTHING = Outcome(0, 0, 0)


def decision_with(reading: Reading, verdict: tuple[Any, ...], allowed: bool) -> Decision:
    """Make the decision from a program's answer: see `Decision.verdict`."""
    decision = Decision()
    decision.allowed = allowed
    decision.reading = reading
    decision.verdict = verdict
    decision._figures = decision._order = decision._state = None
    return decision
