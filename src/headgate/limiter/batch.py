"""Several requests at once, and one request that is known in several ways. No I/O: the limiter does that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from headgate.core.check import Check, Group, Result
from headgate.core.decision import Decision
from headgate.core.quota import MAX_INT
from headgate.core.reservation import whole_cost
from headgate.errors import IdempotencyConflict, StoreError
from headgate.limiter.asked import Asked, Known
from headgate.limiter.engine import Engine
from headgate.limiter.sharding import Sharding
from headgate.rules.directory import UNKNOWN
from headgate.rules.penalties import IDENTITIES
from headgate.rules.plan import RulePlan as Plan


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
    plan: Plan | None = None


# How one request of a batch is decided: by the store's short way for its subject, or else as it is asked.
Way = tuple[Any | None, str, Asked | None]


def ways(engine: Engine, asks: Sequence[Ask], known: Sequence[Known] | None, *, short: bool) -> list[Way]:
    """How each of several requests is to be decided. Raises `InvalidCheck`, before any of them is.

    Not `short`: all are asked, as they are to travel together.
    """
    snapshot, clock = known[0].snapshot if known else engine.snapshot, engine.clock
    plan_of, plainly = snapshot.plan, snapshot.terms is None
    quick = engine.quick(snapshot) if short else {}
    found: list[Way] = []
    for place, (facts, cost, idempotency_key) in enumerate(asks):
        plan = plan_of(facts, clock, UNKNOWN if known is None else known[place].user)
        if not plainly or idempotency_key is not None or type(cost) is not int or not 0 <= cost <= MAX_INT:
            asked = engine.ask_planned(facts, (snapshot, plan), cost, idempotency_key)
            found.append((None, "", asked))
            continue
        way = quick.get(plan)
        if way is None and short:
            way = engine.way((snapshot, plan), cost)
        if way is not None:
            found.append((way, plan.subjects(facts)[0], None))
        else:
            found.append((None, "", Asked(plan, Group(plan.checks(facts, cost)), cost)))
    return found


class Together(NamedTuple):
    """The parts of one request on their way, as the one group that a store decides."""

    asked: list[Asked]  # by part
    group: Group
    places: list[tuple[int, ...]]  # by part: where its checks are among the group's

    def results(self, result: Result) -> list[Result]:
        """What the store's answer means to each part that it was asked about."""
        now_us, outcomes, block = result
        results = []
        for asked, places in zip(self.asked, self.places, strict=True):
            if not asked.sent:
                continue
            if not outcomes:  # the client was blocked before
                results.append(Result(now_us, (), block))
                continue
            own = tuple(outcomes[place] for place in places)
            refused = any(
                outcome.wait_us and check.enforced for check, outcome in zip(asked.group.checks, own, strict=True)
            )
            results.append(Result(now_us, own, block if refused else None))
        return results


def ask_together(engine: Engine, parts: Sequence[Part], known: Sequence[Known] | None) -> Together:
    """What to ask the store for one request that is known in several ways: either every limit is charged, or none.

    A limit that several parts meet is charged once, by the most that any of them costs. A penalty meets the surest
    identity of them all. Raises `InvalidCheck`.
    """
    identities: dict[str, str] = {}
    asked: list[Asked] = []
    for place, (facts, cost, plan) in enumerate(parts):
        for fact in IDENTITIES:
            if fact in facts:
                identities.setdefault(fact, facts[fact])
        applying = plan or engine.planned(facts, None if known is None else known[place])[1]
        asked.append(Asked(applying, Group(applying.checks(facts, whole_cost(cost))), cost))
    penalty = engine.penalty_of(identities) if any(one.plan.enforced for one in asked) else None
    if penalty is not None:
        at_us, block = engine.block_of(penalty.client)
        for place, one in enumerate(asked):
            group, own = one.group._replace(penalty=penalty), block if one.plan.enforced else None
            asked[place] = Asked(one.plan, group, one.cost, at_us, own)
    checks: dict[tuple[str, str], Check] = {}
    for one in asked:
        for check in one.group.checks if one.sent else ():
            before = checks.get((check.space, check.subject))
            if before is None or before.cost < check.cost:
                checks[check.space, check.subject] = check
    order = {key: place for place, key in enumerate(checks)}
    places = [
        tuple(order[check.space, check.subject] for check in one.group.checks) if one.sent else () for one in asked
    ]
    return Together(asked, Group(tuple(checks.values()), penalty=penalty), places)


def decide_here(engine: Engine, memory: Sharding, asks: Sequence[Ask], found: Sequence[Way]) -> list[Decision]:
    """Decide several requests in memory, one after the other."""
    decisions: list[Decision] = []
    conflict: IdempotencyConflict | None = None
    for (facts, cost, _), (short, subject, asked) in zip(asks, found, strict=True):
        try:
            if short is not None:
                decisions.append(short(subject, cost))
            else:
                assert asked is not None
                results = memory.check([asked.group]) if asked.sent else []
                decisions += engine.conclude([asked], results)
        except StoreError as error:
            decisions += engine.conclude([asked or engine.ask(None, facts, cost)], error)
        except IdempotencyConflict as error:
            conflict = conflict or error
    if conflict is not None:
        raise conflict
    return decisions
