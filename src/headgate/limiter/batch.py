"""Requests of a batch, and one request that is known in several ways. No I/O: the limiter does that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from headgate.core.check import Check, Extras, Group, Result
from headgate.core.decision import Decision
from headgate.errors import IdempotencyConflict
from headgate.limiter.engine import Engine
from headgate.limiter.prepared import Known, PreparedCheck
from headgate.rules.penalties import IDENTITIES
from headgate.rules.plan import RulePlan


class Ask(NamedTuple):
    """One request of a batch. `facts` are texts, and are not checked."""

    facts: dict[str, str]
    cost: int = 1
    idempotency_key: str | None = None


class Part(NamedTuple):
    """One way to know a request: what is said of it, and what that charges.

    With a `plan`, that says which rules apply, and not the snapshot in force.
    """

    facts: dict[str, str]
    cost: int = 1
    plan: RulePlan | None = None


class Together(NamedTuple):
    """The parts of one request on their way, as the one group that a store decides."""

    parts: list[PreparedCheck]
    group: Group
    places: list[tuple[int, ...]]  # by part: where its checks are among the group's

    def results(self, result: Result) -> list[Result]:
        """What the store's answer means to each part that it was asked about."""
        now_us, outcomes, block = result
        results = []
        for asked, places in zip(self.parts, self.places, strict=True):
            if not asked.sent:
                continue
            if not outcomes:  # the client was blocked before
                results.append(Result(now_us, (), block))
                continue
            own = tuple(outcomes[place] for place in places)
            refused = any(
                outcome.wait_us and check.enforced for check, outcome in zip(asked.plan.limits, own, strict=True)
            )
            results.append(Result(now_us, own, block if refused else None))
        return results


def ask_together(engine: Engine, parts: Sequence[Part], known: Sequence[Known] | None) -> Together:
    """What to ask the store for one request that is known in several ways: either every limit is charged, or none.

    A limit that several parts meet is charged once, by the most that any of them costs. A penalty meets the surest
    identity of them all. Raises `InvalidCheck`.
    """
    identities: dict[str, str] = {}
    prepared: list[PreparedCheck] = []
    for place, (facts, cost, plan) in enumerate(parts):
        for fact in IDENTITIES:
            if fact in facts:
                identities.setdefault(fact, facts[fact])
        applying = plan or engine.planned(facts, None if known is None else known[place])[1]
        prepared.append(PreparedCheck(applying, applying.subjects(facts), applying.costs(cost)))
    penalty = engine.penalty_of(identities) if any(one.plan.enforced for one in prepared) else None
    if penalty is not None:
        at_us, block = engine.block_of(penalty.client)
        prepared = [
            one._replace(extras=Extras(None, penalty), at_us=at_us, block=block if one.plan.enforced else None)
            for one in prepared
        ]
    checks: dict[tuple[str, str], Check] = {}
    groups = [one.group.checks if one.sent else () for one in prepared]
    for group in groups:
        for check in group:
            before = checks.get((check.space, check.subject))
            if before is None or before.cost < check.cost:
                checks[check.space, check.subject] = check
    order = {key: place for place, key in enumerate(checks)}
    places = [tuple([order[check.space, check.subject] for check in group]) for group in groups]
    return Together(prepared, Group(tuple(checks.values()), penalty=penalty), places)


def decide_each(prepared: Sequence[PreparedCheck], decide: Callable[[PreparedCheck], Decision]) -> list[Decision]:
    """Decide requests one after the other. Raises the first `IdempotencyConflict`, when all others are decided."""
    decisions: list[Decision] = []
    conflict: IdempotencyConflict | None = None
    for one in prepared:
        try:
            decisions.append(decide(one))
        except IdempotencyConflict as error:
            conflict = conflict or error
    if conflict is not None:
        raise conflict
    return decisions
