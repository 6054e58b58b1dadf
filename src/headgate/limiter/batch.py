"""Batches of requests, and single requests with several descriptions. No I/O: the limiter does that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from headgate.core.check import Extras, Outcome
from headgate.core.cost import Cost
from headgate.core.decision import Decision, decision_with
from headgate.core.reading import Reading, WarningStates
from headgate.errors import IdempotencyConflict
from headgate.limiter.engine import Engine
from headgate.limiter.prepared_check import KnownUser, PreparedCheck
from headgate.rules.penalties import IDENTITIES
from headgate.rules.plan import RulePlan


class BatchedRequest(NamedTuple):
    """One request of a batch. `facts` must be strings; they are not checked."""

    facts: dict[str, str]
    cost: Cost = 1
    idempotency_key: str | None = None


class RequestPart(NamedTuple):
    """One description of a request: its facts, and its cost under the rules that apply to them.

    The rules are those of `plan`, if it is set, else those of the snapshot in force.
    """

    facts: dict[str, str]
    cost: Cost = 1
    plan: RulePlan | None = None


class DecidedTogether(NamedTuple):
    """The decision on a request with several descriptions: one for each part, by its own limits alone.

    `whole` is one decision on all of their limits; None if the parts say more than it can, as for blocked clients.
    """

    parts: list[Decision]
    whole: Decision | None = None


class Together(NamedTuple):
    """A request with several descriptions: as one request with all of their limits, and as its parts."""

    whole: PreparedCheck
    parts: list[PreparedCheck]
    places: tuple[tuple[int, ...], ...]  # by part: the indexes of its limits in the whole

    def split_decision(self, engine: Engine, decision: Decision | None) -> DecidedTogether:
        """Return a decision for each part, from the decision on the whole; None: no store was called.

        Their charges cannot be refunded: parts may share a limit, and an allowed part may belong to a refused request.
        """
        if decision is not None and len(self.parts) == 1:
            decision.settled = True
            own = engine.conclude_one(self.parts[0], decision)
            return DecidedTogether([own], own)
        decisions = []
        for part, places in zip(self.parts, self.places, strict=True):
            if decision is None or not part.sent:
                decisions.append(engine.decide_unsent(part))
                continue
            block = getattr(decision, "block", None)
            if block is not None and not decision.outcomes:  # the client was blocked before
                own = Decision.of(False, decision.at_us, part.plan)
            else:
                own = _part_of(decision, part, places, engine.states)
            if block is not None and not own.allowed:
                own.block = block
            own.settled = True
            decisions.append(own if part.extras is None else engine.conclude_one(part, own))
        return DecidedTogether(decisions, decision if self.whole.extras is None else None)


def _part_of(whole: Decision, part: PreparedCheck, places: tuple[int, ...], states: WarningStates) -> Decision:
    """Return the decision on a part, which reads its outcomes from the whole when they are needed."""
    plan = part.plan
    key = (_part_of, places, states)
    reading: Reading | None = plan.prepared.get(key)
    if reading is None:

        def read(verdict: tuple[int, tuple[str, ...], tuple[int, ...], Decision]) -> tuple[Outcome, ...]:
            outcomes = verdict[3].outcomes
            return tuple([outcomes[at] for at in places])

        reading = plan.prepared[key] = Reading(plan, states, read)
    decision = decision_with(reading, (whole.verdict[0], part.subjects, part.costs, whole), True)
    decision.allowed = whole.allowed or not any(
        limit.enforced and outcome.wait_us for limit, outcome in zip(plan.limits, decision.outcomes, strict=True)
    )
    return decision


def prepare_together(engine: Engine, parts: Sequence[RequestPart], known: Sequence[KnownUser] | None) -> Together:
    """Prepare one request with several descriptions: either every limit is charged, or none is.

    A limit that several parts share is charged once, with the highest cost among them. A penalty applies to the most
    specific identity of all parts. Raises `InvalidCheck`.
    """
    prepared: list[PreparedCheck] = []
    for at, (facts, cost, plan) in enumerate(parts):
        applying = plan or engine.plan(facts, None if known is None else known[at])[1]
        if applying.slots:
            applying = applying.rates
        if applying.notice is not None:
            engine.log_unmatched(applying, facts)
        charged, costs = applying.price(cost)
        prepared.append(PreparedCheck(charged, charged.subjects(facts), costs))
    extras = None
    if engine.snapshot.terms is not None and any(one.plan.enforced for one in prepared):
        identities: dict[str, str] = {}
        for part in parts:
            for fact in IDENTITIES:
                if fact in part.facts:
                    identities.setdefault(fact, part.facts[fact])
        penalty = engine.penalty_of(identities)
        if penalty is not None:
            extras = Extras(None, penalty)
            at_us, block = engine.block_of(penalty.client)
            prepared = [
                one._replace(extras=extras, at_us=at_us, block=block if one.plan.enforced else None) for one in prepared
            ]
    if len(prepared) == 1:
        return Together(prepared[0], prepared, (prepared[0].plan.places,))
    sent = [one for one in prepared if one.sent]
    whole_plan, own = engine.combined.whole(tuple([one.plan for one in sent]))
    subjects: tuple[str, ...] = sum([one.subjects for one in sent], ())
    whole_costs: tuple[int, ...] = sum([one.costs for one in sent], ())
    if whole_plan is None:  # parts may share a limit
        whole_plan, own, subjects, whole_costs = _merge(engine, sent)
    places = iter(own)
    return Together(
        PreparedCheck(whole_plan, subjects, whole_costs, False, extras),
        prepared,
        own if len(sent) == len(prepared) else tuple([next(places) if one.sent else () for one in prepared]),
    )


def _merge(
    engine: Engine, parts: list[PreparedCheck]
) -> tuple[RulePlan, tuple[tuple[int, ...], ...], tuple[str, ...], tuple[int, ...]]:
    """Merge parts that may share a limit. Returns the plan, the parts' indexes in it, the subjects and the costs."""
    order: dict[tuple[str, str], int] = {}
    costs: list[int] = []
    places = []
    for one in parts:
        own = []
        for limit, subject, cost in zip(one.plan.limits, one.subjects, one.costs, strict=True):
            place = order.setdefault((limit.key_template, subject), len(order))
            if place == len(costs):
                costs.append(cost)
            elif costs[place] < cost:
                costs[place] = cost
            own.append(place)
        places.append(tuple(own))
    plan = engine.combined.merge(tuple([one.plan for one in parts]), tuple(places))
    return plan, tuple(places), tuple([subject for _, subject in order]), tuple(costs)


def decide_each(requests: Sequence[PreparedCheck], decide: Callable[[PreparedCheck], Any]) -> list[Decision]:
    """Decide requests one after the other. Raises the first `IdempotencyConflict` after all others are decided."""
    decisions: list[Decision] = []
    conflict: IdempotencyConflict | None = None
    for one in requests:
        try:
            decisions.append(decide(one))
        except IdempotencyConflict as error:
            conflict = conflict or error
    if conflict is not None:
        raise conflict
    return decisions
