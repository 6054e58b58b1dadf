"""What `Limiter` and `AsyncLimiter` have in common: everything but the I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, get_args

from headgate.core.alike import Pattern
from headgate.core.check import (
    Block,
    Check,
    Client,
    Group,
    Idempotency,
    Penalty,
    Result,
    SharedResult,
)
from headgate.core.clock import Clock, SystemClock
from headgate.core.decision import Decision, blocked, decide, delayed
from headgate.core.plan import Plan as LimitPlan
from headgate.core.quota import MAX_INT
from headgate.errors import IdempotencyConflict, InvalidCheck, InvalidRule, StoreError
from headgate.limiter.asked import Asked, Known, Planned, Request, Subject, facts_of, fingerprint
from headgate.limiter.blocks import Blocks
from headgate.limiter.fallback import Fallback
from headgate.limiter.given import Rules, is_elsewhere, opened, rules_of
from headgate.limiter.states import Warnings
from headgate.rules.directory import UNKNOWN
from headgate.rules.holder import Holder, Source
from headgate.rules.penalties import client_of, clients_of
from headgate.rules.plan import RulePlan as Plan
from headgate.rules.rule import FailureMode, Rule
from headgate.rules.snapshot import Snapshot

Clients = tuple[Client, ...]

WAYS: Final = 4_096  # short ways that are remembered


class Background(Protocol):
    """What is done in the background: see `headgate.limiter.pulse`."""

    def attend(self) -> None: ...

    def attended(self, way: Any) -> Any: ...

    def wake(self) -> None: ...


class Engine:
    """Plans requests and concludes decisions. The limiter does the I/O in between."""

    def __init__(
        self,
        rules: Rules,
        *,
        clock: Clock | None = None,
        name: str = "default",
        failure_mode: FailureMode = "open",
        watch: bool = False,
        warning_at: int | None = None,
        warning_until: int | None = None,
        blocks: Blocks | None = None,
    ) -> None:
        self.clock: Clock = clock or SystemClock()
        self.by_subject = False  # whether every check must have a subject, and is counted by it alone
        self._source: Source | None = None
        self.owns_source = is_elsewhere(rules)
        if isinstance(rules, str | Path) and self.owns_source:
            self._source = opened(rules, watch=watch, clock=self.clock)
        elif watch:
            raise InvalidRule(f"watch: only rules from a file can be watched, got {rules!r}")
        elif isinstance(rules, Source):
            self._source = rules
        if self._source is not None:
            self.holder = self._source.holder
        elif isinstance(rules, Snapshot):
            self.holder = Holder(rules)
        else:
            listed, self.by_subject = rules_of(rules, name)
            self.holder = Holder(Snapshot(listed))
        if failure_mode not in get_args(FailureMode):
            modes = ", ".join(get_args(FailureMode))
            raise InvalidRule(f"failure_mode: must be one of {modes}, got {failure_mode!r}")
        self.fallback = Fallback(failure_mode, self.clock)
        self.name = name
        self.states = Warnings(self.holder, warning_at, warning_until)
        self.single: Callable[[Check, Warnings], Any] | None = None  # the store's maker of short ways, if it has any
        self.spreads = False  # whether several regions share limits
        self.leased: Callable[[Check, Warnings], Any] | None = None  # that of leased rules, where there are leases
        self._ways: dict[Plan, Any] = {}
        self._blocks = blocks  # None: the store is in this process, and asking it costs no more than remembering
        self.pulse: Background | None = None  # None: the store is in this process, and there is no other node

    @property
    def failing(self) -> bool:
        """Whether the store cannot decide right now, or not all of it can."""
        return self.fallback.outage.lasts

    @property
    def has_local(self) -> bool:
        """Whether any rule in force is of failure mode local."""
        return self.fallback.is_local(self.holder.current)

    @property
    def snapshot(self) -> Snapshot:
        """The rules that are in force."""
        return self.holder.current

    def reload(self) -> Snapshot:
        """Have the source read its rules again. Raises `InvalidRule`: then the rules are what they were."""
        if self._source is None:
            raise InvalidRule("these rules cannot be reloaded: they do not come from a file or another source")
        return self._source.reload()

    def close(self) -> None:
        """Stop following the rules' source, if this limiter opened it."""
        if self._source is not None and self.owns_source:
            self._source.close()

    @property
    def only_rule(self) -> Rule | None:
        """The rule of a limiter that has just one for ever, plain and by user: the case with a short way through."""
        snapshot = self.snapshot
        if self._source is not None or len(snapshot.rules) != 1 or snapshot.exemptions or snapshot.has_users:
            return None
        rule = snapshot.rules[0]
        by_user = rule.facts == ("user",) and not rule.patterns and not rule.conditions
        plain = snapshot.enabled and rule.enabled and rule.cost == 1 and rule.action == "reject"
        plain = plain and snapshot.terms is None
        return rule if by_user and plain else None

    def ask(
        self,
        subject: Subject | None,
        facts: Mapping[str, Any],
        cost: int,
        idempotency_key: str | None = None,
        *,
        peek: bool = False,
        known: Known | None = None,
    ) -> Asked:
        """What to ask the store for a request. Raises `InvalidCheck`.

        Without `known`, it waits for the user to be looked up if need be.
        """
        texts = self.texts_of(subject, facts)
        return self.ask_planned(texts, self.planned(texts, known), cost, idempotency_key, peek=peek)

    def planned(self, texts: dict[str, str], known: Known | None = None) -> Planned:
        """Which rules apply to a request, behind the snapshot that says so."""
        snapshot, user = known or (self.holder.current, UNKNOWN)
        return snapshot, snapshot.plan(texts, self.clock, user)

    def way(self, planned: Planned, cost: int) -> Any | None:
        """The store's short way for a request to which one plain rule applies; None when it has to go the long way."""
        snapshot, plan = planned
        if len(plan.limits) != 1 or plan.shadows or plan.ones[0] != 1 or self.failing or snapshot.terms is not None:
            return None
        only = plan.applied[0]
        if cost.__class__ is not int or not 0 <= cost <= MAX_INT:
            return None
        way = self._ways.get(plan)
        if way is None:
            make = self.maker(only.rule)
            if make is None:
                return None
            way = self.attended(only.failure_mode, make(only.template, self.states))
            if len(self._ways) >= WAYS:
                self._ways = {}
            self._ways[plan] = way
        return way

    def maker(self, rule: Rule) -> Callable[[Check, Warnings], Any] | None:
        """What makes the short way for requests to which this rule applies alone; None when there is none."""
        return self.leased if rule.sync == "leased" and self.leased is not None else self.single

    def attended(self, mode: FailureMode | None, way: Any) -> Any:
        """The short way for a rule of a failure mode: if it is local, the other nodes are to know of this one."""
        if self.pulse is None or (mode or self.fallback.mode) != "local":
            return way
        return self.pulse.attended(way)

    def plan_alike(self, facts: dict[str, str], fact: str) -> Planned | None:
        """Which rules apply to requests that have these facts, and one more, which differs. None when that depends on
        what it says, and requests have to be looked at one by one."""
        snapshot = self.holder.current
        if snapshot.terms is not None or snapshot.depends_on(fact, facts):
            return None
        return snapshot, snapshot.plan({**facts, fact: ""}, self.clock, None)

    def pattern(self, plan: Plan, facts: dict[str, str], fact: str, cost: int) -> Pattern | None:
        """What is asked for such requests; None when there is no asking for them together."""
        checks, own = [], []
        for one in plan.applied:
            total = one.template.cost * cost
            by_it = one.fact == fact
            if not 0 < total <= MAX_INT or (fact in one.rule.facts and not by_it):
                return None
            if one.rule.shards > 1 or (one.rule.sync == "leased" and self.leased is not None):
                return None
            if self.spreads and one.rule.id in self.snapshot.spread:
                return None
            checks.append(one.template._replace(subject="" if by_it else one.subject()(facts), cost=total))
            own.append(by_it)
        return Pattern(tuple(checks), tuple(own)) if checks else None

    def quick(self, snapshot: Snapshot) -> Mapping[Plan, Any]:
        """The short ways that were found before, as far as they may be taken now."""
        return {} if self.failing or snapshot.terms is not None else self._ways

    def ask_planned(
        self,
        texts: dict[str, str],
        planned: Planned,
        cost: int,
        idempotency_key: str | None = None,
        *,
        peek: bool = False,
    ) -> Asked:
        """What to ask the store for a request of which the rules are known. Raises `InvalidCheck`."""
        if isinstance(cost, bool) or not isinstance(cost, int) or not 0 <= cost <= MAX_INT:
            raise InvalidCheck(f"cost: must be a whole number from 0 to 2^53-1, got {cost!r}")
        if idempotency_key is not None and (not isinstance(idempotency_key, str) or not idempotency_key):
            raise InvalidCheck(f"idempotency_key: must be a text, and not empty, got {idempotency_key!r}")
        snapshot, plan = planned
        idempotency = None
        if idempotency_key is not None:
            idempotency = Idempotency(
                idempotency_key, fingerprint(texts, cost, plan, snapshot.terms is not None), self.name
            )
        if snapshot.terms is not None and plan.enforced:
            client = client_of(texts)
            if client is not None:
                at_us, block = self.block_of(client)
                if block is not None and idempotency is None:  # what was answered to a key is for the store to say
                    return Asked(plan, Group(()), cost, at_us, block)
                penalty = Penalty(client, snapshot.terms)
                return Asked(plan, Group(plan.checks(texts, cost), peek, idempotency, penalty), cost, at_us)
        return Asked(plan, Group(plan.checks(texts, cost), peek, idempotency), cost)

    def penalty_of(self, texts: Mapping[str, str]) -> Penalty | None:
        """Whom a refusal of this request would count against; None when nobody is penalised."""
        terms = self.snapshot.terms
        client = None if terms is None else client_of(texts)
        return None if terms is None or client is None else Penalty(client, terms)

    def block_of(self, client: Client) -> tuple[int, Block | None]:
        """The time, and the block that is remembered of a client."""
        at_us = self.clock.now_us()
        return at_us, None if self._blocks is None else self._blocks.get(client, at_us)

    def ask_reset(
        self, subject: Subject | None, facts: Mapping[str, Any], known: Known | None = None
    ) -> tuple[tuple[Check, ...], Clients]:
        """The checks and clients that a store has to forget. Raises `InvalidCheck`."""
        texts = self.texts_of(subject, facts)
        snapshot, user = known or (self.holder.current, UNKNOWN)
        clients = () if snapshot.terms is None else clients_of(texts)
        return snapshot.plan(texts, self.clock, user).checks(texts, 0), clients

    def forget(self, checks: tuple[Check, ...], clients: Clients) -> None:
        """Forget here what the store was told to."""
        self.fallback.local.reset(checks)
        self.fallback.shares.forget(checks)
        if self._blocks is not None:
            for client in clients:
                self._blocks.drop(client)

    def ask_many(self, requests: Iterable[Request], known: Sequence[Known] | None = None) -> list[Asked]:
        """The same for several requests: subjects, or mappings of facts, `cost` and `idempotency_key`."""
        asked = []
        for place, request in enumerate(requests):
            looked_up = None if known is None else known[place]
            if isinstance(request, Mapping):
                facts = dict(request)
                cost, key = facts.pop("cost", 1), facts.pop("idempotency_key", None)
                asked.append(self.ask(None, facts, cost, key, known=looked_up))
            else:
                asked.append(self.ask(request, {}, 1, known=looked_up))
        return asked

    def known(self, subject: Subject | None, facts: Mapping[str, Any]) -> Known:
        """What is known of a request's user without waiting: if it is `UNKNOWN`, they have to be looked up."""
        snapshot = self.holder.current
        user_id = facts.get("user") if subject is None else subject
        known = {"user": str(user_id)} if user_id is not None else {}
        if facts.get("tier") is not None:
            known["tier"] = ""
        return Known(snapshot, snapshot.user(known))

    def conclude(
        self,
        asked: list[Asked],
        results: Sequence[Result | IdempotencyConflict | StoreError] | StoreError,
        *,
        answered: bool = True,
    ) -> list[Decision]:
        """The decisions that the store's answers mean. Not all requests were sent to it.

        Not `answered`: they say nothing good of how the store is doing, as leases gave them, or it failed. Raises the
        first conflict, when all others are decided.
        """
        decisions: list[Decision] = []
        conflict: IdempotencyConflict | None = None
        if self.pulse is not None:
            self.pulse.attend()
        if isinstance(results, StoreError):
            return [
                self.fallback.decide(request, results) if request.sent else self._unsent(request) for request in asked
            ]
        if results and answered and self.fallback.outage.answered() and self.pulse is not None:
            self.pulse.wake()
        answers = iter(results)
        for request in asked:
            plan, group, cost, _, known = request
            if known is not None or not plan.applied:
                decisions.append(self._unsent(request))
                continue
            result = next(answers)
            if isinstance(result, StoreError):
                decisions.append(self.fallback.decide(request, result))
            elif isinstance(result, IdempotencyConflict):
                conflict = conflict or result
            elif result.block is not None:
                decisions.append(self._penalised(request, result, result.block))
            else:
                subjects = tuple([check.subject for check in group.checks])
                applied, costs = _applied(plan, result), plan.costs(cost)
                decisions.append(
                    decide(applied, result.outcomes, result.now_us, costs=costs, subjects=subjects, states=self.states)
                )
        if conflict is not None:
            raise conflict
        return decisions

    def texts_of(self, subject: Subject | None, facts: Mapping[str, Any]) -> dict[str, str]:
        """The facts of a request as texts. Raises `InvalidCheck`."""
        texts = facts_of(subject, facts)
        if self.by_subject and "user" not in texts:
            raise InvalidCheck("this limiter counts by subject: call check('alice') or check(user='alice')")
        return texts

    def _unsent(self, asked: Asked) -> Decision:
        """The decision on a request that the store was not asked about."""
        if asked.block is not None:
            return self._blocked(asked.plan, asked.block, asked.at_us)
        return Decision.of(True, self.clock.now_us(), asked.plan)

    def _penalised(self, asked: Asked, result: Result, block: Block) -> Decision:
        """The decision on a request whose client is blocked, or whose refusal began that."""
        plan, group, cost, at_us, _ = asked
        remembered = group.idempotency is None and not group.peek  # not an old answer, nor one that leaves no trace
        if self._blocks is not None and group.penalty is not None and remembered:
            self._blocks.put(group.penalty.client, block, at_us)
        if not result.outcomes:
            return self._blocked(plan, block, result.now_us)
        outcomes = delayed(plan.limits, result.outcomes, block)
        return decide(
            plan,
            outcomes,
            result.now_us,
            costs=plan.costs(cost),
            reason="penalty",
            states=self.states,
            subjects=tuple([check.subject for check in group.checks]),
        )

    def _blocked(self, plan: Plan, block: Block, now_us: int) -> Decision:
        """The decision on a request whose client is blocked. If the rule has gone, one that applies stands for it."""
        found = [template for template in plan.limits if template.rule == block.rule]
        template = found[0] if found else self.snapshot.template(block.rule)
        if template is None:
            template = next((template for template in plan.limits if template.enforced), plan.limits[0])
        return blocked(template, block, now_us)


def _applied(plan: Plan, result: Result) -> LimitPlan:
    """The plan; of limits that several regions share, as this one was asked."""
    return LimitPlan(result.applied_to(plan.limits)) if isinstance(result, SharedResult) else plan
