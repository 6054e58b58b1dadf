"""Requests of a batch, and one request with several descriptions, decided together. No I/O: the limiter does that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from headgate.core.check import Extras
from headgate.core.cost import Cost
from headgate.core.decision import Decision
from headgate.core.decision_factory import decide
from headgate.errors import IdempotencyConflict
from headgate.limiter.engine import Engine
from headgate.limiter.prepared_check import Known, PreparedCheck
from headgate.rules.penalties import IDENTITIES
from headgate.rules.plan import RulePlan

T = TypeVar("T")


class Ask(NamedTuple):
    """One request of a batch. `facts` are texts, and are not checked."""

    facts: dict[str, str]
    cost: Cost = 1
    idempotency_key: str | None = None


class Part(NamedTuple):
    """One description of a request: its facts, and its cost under the rules that apply to them.

    The rules are those of `plan`, if there is one; otherwise those of the snapshot in force.
    """

    facts: dict[str, str]
    cost: Cost = 1
    plan: RulePlan | None = None


class Together(NamedTuple):
    """A request with several descriptions: as one request with all of their limits, and by its parts."""

    whole: PreparedCheck
    parts: list[PreparedCheck]
    places: list[tuple[int, ...]]  # by part: where its limits are among those of the whole

    def decisions(self, engine: Engine, decision: Decision | None) -> list[Decision]:
        """Return a decision for each part, from the decision on the whole; None: no store was called.

        You cannot give their charges back: parts may share a limit, and an allowed part may be of a refused request.
        """
        decisions = []
        for part, places in zip(self.parts, self.places, strict=True):
            if decision is None or not part.sent:
                decisions.append(engine.unsent(part))
                continue
            block = getattr(decision, "block", None)
            if block is not None and not decision.outcomes:  # the client was blocked before
                own = Decision.of(False, decision.at_us, part.plan)
            else:
                outcomes = tuple([decision.outcomes[at] for at in places])
                own = decide(
                    part.plan,
                    outcomes,
                    decision.at_us,
                    costs=part.costs,
                    subjects=part.subjects,
                    states=engine.states,
                )
            if block is not None and not own.allowed:
                own.block = block
            own.settled = True
            decisions.append(engine.concluded(part, own))
        return decisions


def prepare_together(engine: Engine, parts: Sequence[Part], known: Sequence[Known] | None) -> Together:
    """Prepare one request that is known in several ways: either every limit is charged, or none.

    A limit that several parts meet is charged once, by the most that any of them costs. A penalty meets the surest
    identity of them all. Raises `InvalidCheck`.
    """
    identities: dict[str, str] = {}
    prepared: list[PreparedCheck] = []
    for at, (facts, cost, plan) in enumerate(parts):
        for fact in IDENTITIES:
            if fact in facts:
                identities.setdefault(fact, facts[fact])
        applying = plan or engine.planned(facts, None if known is None else known[at])[1].rates
        engine.log_unmatched(applying, facts)
        charged, costs_of_it = applying.priced(cost)
        prepared.append(PreparedCheck(charged, charged.subjects(facts), costs_of_it))
    penalty = engine.penalty_of(identities) if any(one.plan.enforced for one in prepared) else None
    extras = None
    if penalty is not None:
        extras = Extras(None, penalty)
        at_us, block = engine.block_of(penalty.client)
        prepared = [
            one._replace(extras=extras, at_us=at_us, block=block if one.plan.enforced else None) for one in prepared
        ]
    order: dict[tuple[str, str], int] = {}
    costs: list[int] = []
    places = []
    for one in prepared:
        own = []
        for limit, subject, cost in zip(one.plan.limits, one.subjects, one.costs, strict=True) if one.sent else ():
            place = order.setdefault((limit.space, subject), len(order))
            if place == len(costs):
                costs.append(cost)
            elif costs[place] < cost:
                costs[place] = cost
            own.append(place)
        places.append(tuple(own))
    whole = engine.whole_plan(tuple([one.plan for one in prepared if one.sent]), tuple(filter(None, places)))
    subjects = tuple([subject for _, subject in order])
    return Together(PreparedCheck(whole, subjects, tuple(costs), False, extras), prepared, places)


def decide_each(requests: Sequence[T], decide: Callable[[T], Decision]) -> list[Decision]:
    """Decide requests one after the other. Raises the first `IdempotencyConflict`, when all others are decided."""
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
