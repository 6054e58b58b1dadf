"""Batches of requests, and single requests with several descriptions. No I/O: the limiter does that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from headgate.core.check import Extras
from headgate.core.cost import Cost
from headgate.core.decision import Decision, decision_with
from headgate.core.reading import Reading
from headgate.errors import IdempotencyConflict, InvalidCheck
from headgate.limiter.combined_plans import Indexes
from headgate.limiter.engine import Engine
from headgate.limiter.prepared_check import KnownUser, PreparedCheck
from headgate.rules.directory import UNKNOWN, Unknown
from headgate.rules.penalties import IDENTITIES
from headgate.rules.plan import NO_RULE, RulePlan
from headgate.rules.users import User

_new: Final[Any] = tuple.__new__  # makes a named tuple in half the time that calling its class takes


class BatchedRequest(NamedTuple):
    """One request of a batch. `facts` must be strings; they are not checked."""

    facts: dict[str, str]
    cost: Cost = 1
    idempotency_key: str | None = None
    varying: str | None = None  # the only fact in which it differs from the request before it; None: not known


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
    readings: Sequence[Reading | None]  # by part; None: the store is not asked about it, or it is the only one

    def split_decision(self, engine: Engine, decision: Decision | None) -> DecidedTogether:
        """Return a decision for each part, from the decision on the whole; None: no store was called.

        Their charges cannot be refunded: parts may share a limit, and an allowed part may belong to a refused request.
        """
        whole, parts, readings = self
        if decision is not None and len(parts) == 1:
            decision.settled = True
            own = decision if whole.extras is None else engine.conclude_one(whole, decision)
            return DecidedTogether([own], own)
        block = None if decision is None or whole.extras is None else getattr(decision, "block", None)
        decisions = []
        for part, reading in zip(parts, readings):  # noqa: B905 - strict takes as long as the loop
            if decision is None or reading is None:
                decisions.append(engine.decide_unsent(part))
                continue
            if block is not None and not decision.outcomes:  # the client was blocked before
                own = Decision.of(False, decision.at_us, part.plan)
            else:
                own = decision_with(reading, (decision.verdict[0], part[1], part[2], decision), True)
                if not decision.allowed:
                    own.allowed = _is_allowed(part, own)
            own.settled = True
            if block is not None and not own.allowed:
                own.block = block
            decisions.append(own if part[4] is None else engine.conclude_one(part, own))
        return DecidedTogether(decisions, decision if whole.extras is None else None)


def _is_allowed(part: PreparedCheck, decision: Decision) -> bool:
    """Return whether no limit of a part refuses the request."""
    outcomes = zip(part.plan.limits, decision.outcomes, strict=True)
    return not any(limit.enforced and outcome.wait_us for limit, outcome in outcomes)


def prepare_batch(
    engine: Engine, requests: Sequence[BatchedRequest], known: Sequence[KnownUser] | None = None
) -> list[PreparedCheck]:
    """Prepare the requests of a batch, in order. Without `known`, no user has to be looked up.

    Raises `InvalidCheck`, which names the request by its index: `checks[3]: …`.

    Most requests of a batch differ from the one before only in a fact on whose value no plan depends.
    """
    snapshot, clock = engine.holder.current, engine.clock
    user: User | Unknown | None = UNKNOWN
    prepared: list[PreparedCheck] = []
    free: str | None = None  # the fact in which a request may differ and still have the plan and the costs of the last
    plan: RulePlan = NO_RULE
    costs: tuple[int, ...] = ()
    try:
        for facts, cost, key, varying in requests:
            if varying is not None and varying == free:
                prepared.append(_new(PreparedCheck, (plan, plan.subjects(facts), costs, False, None, 0, None)))
                continue
            if known is not None:
                snapshot, user = known[len(prepared)]
            planner = snapshot.planner
            one = engine.prepare(facts, (snapshot, planner.plan(facts, clock, user)), cost, key)
            prepared.append(one)
            plan, costs = one.plan, one.costs
            is_plain = known is None and snapshot.terms is None and key is None and not plan.slots
            free = varying if varying is not None and is_plain and not planner.depends_on(varying, facts) else None
    except InvalidCheck as error:
        raise InvalidCheck(f"checks[{len(prepared)}]: {error}") from None
    return prepared


def prepare_together(engine: Engine, parts: Sequence[RequestPart], known: Sequence[KnownUser] | None) -> Together:
    """Prepare one request with several descriptions: either every limit is charged, or none is.

    A limit that several parts share is charged once, with the highest cost among them. A penalty applies to the most
    specific identity of all parts. Raises `InvalidCheck`.
    """
    prepared: list[PreparedCheck] = []
    snapshot = engine.holder.current
    user: User | Unknown | None = UNKNOWN
    for facts, cost, own in parts:
        if known is not None:
            snapshot, user = known[len(prepared)]
        applying = own or snapshot.planner.plan(facts, engine.clock, user)
        if applying.slots:
            applying = applying.rates
        if applying.notice is not None:
            engine.log_unmatched(applying, facts)
        charged, costs = applying.price(cost)
        prepared.append(_new(PreparedCheck, (charged, charged.subjects(facts), costs, False, None, 0, None)))
    extras = None
    if snapshot.terms is not None and any(one.plan.enforced for one in prepared):
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
        return Together(prepared[0], prepared, (None,))
    return _combine(engine, prepared, extras)


def _combine(engine: Engine, prepared: list[PreparedCheck], extras: Extras | None) -> Together:
    """Return parts as one request."""
    sent = [one for one in prepared if one[0].limits and one[6] is None]  # not blocked
    subjects: tuple[str, ...] = ()
    costs: tuple[int, ...] = ()
    plans: tuple[RulePlan, ...] = ()
    for plan, own_subjects, own_costs, *_ in sent:
        plans += (plan,)
        subjects += own_subjects
        costs += own_costs
    combined = engine.combined.whole(plans)
    if combined is None:  # parts may share a limit
        indexes, subjects, costs = _merge(sent)
        combined = engine.combined.merge(plans, indexes)
    readings: Sequence[Reading | None] = combined.readings
    whole = _new(PreparedCheck, (combined.plan, subjects, costs, False, extras, 0, None))
    if len(sent) < len(prepared):
        found = iter(readings)
        readings = [next(found) if one.sent else None for one in prepared]
    return Together(whole, prepared, readings)


def _merge(parts: list[PreparedCheck]) -> tuple[Indexes, tuple[str, ...], tuple[int, ...]]:
    """Merge parts that may share a limit. Returns their indexes in the whole, its subjects and its costs."""
    order: dict[tuple[str, str], int] = {}
    costs: list[int] = []
    indexes = []
    for one in parts:
        own = []
        for limit, subject, cost in zip(one.plan.limits, one.subjects, one.costs, strict=True):
            index = order.setdefault((limit.key_template, subject), len(order))
            if index == len(costs):
                costs.append(cost)
            elif costs[index] < cost:
                costs[index] = cost
            own.append(index)
        indexes.append(tuple(own))
    return tuple(indexes), tuple([subject for _, subject in order]), tuple(costs)


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
