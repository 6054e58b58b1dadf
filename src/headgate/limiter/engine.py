"""What `Limiter` and `AsyncLimiter` have in common: everything but the I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, get_args

from headgate.core.alike import Pattern
from headgate.core.check import (
    Block,
    Check,
    Client,
    Group,
    Idempotency,
    Outcome,
    OutcomeOf,
    Penalty,
    Result,
    SharedResult,
)
from headgate.core.clock import Clock, SystemClock
from headgate.core.decision import Decision, Reason, blocked, combine, delayed, single
from headgate.core.quota import MAX_INT, Quota, duration_text
from headgate.errors import IdempotencyConflict, InvalidCheck, InvalidRule, StoreError, StoreFull
from headgate.limiter.blocks import Blocks
from headgate.limiter.outage import Outage
from headgate.limiter.shares import Shares, hopeful
from headgate.limiter.states import Warnings
from headgate.rules.directory import UNKNOWN, Unknown
from headgate.rules.holder import Holder, Source
from headgate.rules.penalties import client_of, clients_of
from headgate.rules.plan import Plan
from headgate.rules.rule import FailureMode, Rule
from headgate.rules.snapshot import Snapshot
from headgate.rules.users import User
from headgate.stores.memory import MemoryStore

Rules = str | Quota | Iterable[Rule] | Path | Snapshot | Source
DATABASES: Final = ("sqlite://", "postgresql://", "postgres://")
Subject = str | int
Request = Subject | Mapping[str, Any]
Clients = tuple[Client, ...]

WAYS: Final = 4_096  # short ways that are remembered
RETRY_US: Final = 1_000_000  # when to try again a store that could not decide


class Asked(NamedTuple):
    """A request on its way: what the store is asked, and what is needed to read its answer."""

    plan: Plan
    group: Group
    cost: int
    at_us: int = 0  # when, of a group with a penalty
    block: Block | None = None  # that is remembered of its client: the store is not asked

    @property
    def sent(self) -> bool:
        """Whether the store is asked."""
        return bool(self.plan.applied) and self.block is None


class Known(NamedTuple):
    """Rules, and what is known of a request's user: looked up beforehand by those who must not wait."""

    snapshot: Snapshot
    user: User | Unknown | None


class Background(Protocol):
    """What is done in the background: see `headgate.limiter.pulse`."""

    def attend(self) -> None: ...

    def attended(self, way: Any) -> Any: ...

    def wake(self) -> None: ...


Planned = tuple[Snapshot, Plan]  # the rules that apply to a request, behind the snapshot that they are of


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
        self.owns_source = _is_file(rules) or _is_database(rules)
        if isinstance(rules, str | Path) and self.owns_source:
            self._source = _opened(rules, watch=watch, clock=self.clock)
        elif watch:
            raise InvalidRule(f"watch: only rules from a file can be watched, got {rules!r}")
        elif isinstance(rules, Source):
            self._source = rules
        if self._source is not None:
            self.holder = self._source.holder
        elif isinstance(rules, Snapshot):
            self.holder = Holder(rules)
        else:
            listed, self.by_subject = _rules_of(rules, name)
            self.holder = Holder(Snapshot(listed))
        if failure_mode not in get_args(FailureMode):
            modes = ", ".join(get_args(FailureMode))
            raise InvalidRule(f"failure_mode: must be one of {modes}, got {failure_mode!r}")
        self.failure_mode: FailureMode = failure_mode
        self.name = name
        self.states = Warnings(self.holder, warning_at, warning_until)
        self.single: Callable[[Check, Warnings], Any] | None = None  # the store's maker of short ways, if it has any
        self.spreads = False  # whether several regions share limits
        self.leased: Callable[[Check, Warnings], Any] | None = None  # that of leased rules, where there are leases
        self._ways: dict[Plan, Any] = {}
        self._blocks = blocks  # None: the store is in this process, and asking it costs no more than remembering
        self.local = MemoryStore(clock=self.clock)  # where rules of failure mode local count while the store is away
        self.shares = Shares()
        self.pulse: Background | None = None  # None: the store is in this process, and there is no other node
        self._seen: Snapshot | None = None  # of which `has_local` knows
        self._has_local = False
        self._outage = Outage()

    @property
    def failing(self) -> bool:
        """Whether the store cannot decide right now, or not all of it can."""
        return self._outage.lasts

    @property
    def has_local(self) -> bool:
        """Whether any rule in force is of failure mode local."""
        snapshot = self.holder.current
        if snapshot is not self._seen:
            default = snapshot.failure_mode or self.failure_mode
            self._has_local = any((rule.failure_mode or default) == "local" for rule in snapshot.rules)
            self._seen = snapshot
        return self._has_local

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
        if plan.only is None or self.failing or snapshot.terms is not None:
            return None
        if cost.__class__ is not int or not 0 <= cost <= MAX_INT:
            return None
        way = self._ways.get(plan)
        if way is None:
            make = self.maker(plan.only.rule)
            if make is None:
                return None
            way = self.attended(plan.only.failure_mode, make(plan.only.template, self.states))
            if len(self._ways) >= WAYS:
                self._ways = {}
            self._ways[plan] = way
        return way

    def maker(self, rule: Rule) -> Callable[[Check, Warnings], Any] | None:
        """What makes the short way for requests to which this rule applies alone; None when there is none."""
        return self.leased if rule.sync == "leased" and self.leased is not None else self.single

    def attended(self, mode: FailureMode | None, way: Any) -> Any:
        """The short way for a rule of a failure mode: if it is local, the other nodes are to know of this one."""
        if self.pulse is None or (mode or self.failure_mode) != "local":
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
            checks.append(one.template._replace(subject="" if by_it else one.subject(facts), cost=total))
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
                idempotency_key, _fingerprint(texts, cost, plan, snapshot.terms is not None), self.name
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
        self.local.reset(checks)
        self.shares.forget(checks)
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
            return [self._failed(request, results) if request.sent else self._unsent(request) for request in asked]
        if results and answered and self._outage.answered() and self.pulse is not None:
            self.pulse.wake()
        answers = iter(results)
        for request in asked:
            plan, group, cost, _, known = request
            if known is not None or not plan.applied:
                decisions.append(self._unsent(request))
                continue
            result = next(answers)
            if isinstance(result, StoreError):
                decisions.append(self._failed(request, result))
            elif isinstance(result, IdempotencyConflict):
                conflict = conflict or result
            elif result.block is not None:
                decisions.append(self._penalised(request, result, result.block))
            elif plan.only is not None and result.outcomes[0].__class__ is not OutcomeOf:  # which is more than figures
                now_us, (outcome,), _ = result
                subject, (template,) = group.checks[0].subject, _applied(plan, result)
                decisions.append(single((template,), outcome, now_us, cost, self.states, subject))
            else:
                outcomes, states, checks, templates = result.outcomes, self.states, group.checks, _applied(plan, result)
                decisions.append(combine(templates, outcomes, result.now_us, cost=cost, states=states, subjects=checks))
        if conflict is not None:
            raise conflict
        return decisions

    def texts_of(self, subject: Subject | None, facts: Mapping[str, Any]) -> dict[str, str]:
        """The facts of a request as texts. Raises `InvalidCheck`."""
        texts = _facts_of(subject, facts)
        if self.by_subject and "user" not in texts:
            raise InvalidCheck("this limiter counts by subject: call check('alice') or check(user='alice')")
        return texts

    def _unsent(self, asked: Asked) -> Decision:
        """The decision on a request that the store was not asked about."""
        if asked.block is not None:
            return self._blocked(asked.plan, asked.block, asked.at_us)
        return Decision.of(True, self.clock.now_us(), reason=asked.plan.reason)

    def _penalised(self, asked: Asked, result: Result, block: Block) -> Decision:
        """The decision on a request whose client is blocked, or whose refusal began that."""
        plan, group, cost, at_us, _ = asked
        remembered = group.idempotency is None and not group.peek  # not an old answer, nor one that leaves no trace
        if self._blocks is not None and group.penalty is not None and remembered:
            self._blocks.put(group.penalty.client, block, at_us)
        if not result.outcomes:
            return self._blocked(plan, block, result.now_us)
        outcomes = delayed(plan.templates, result.outcomes, block)
        return combine(
            plan.templates,
            outcomes,
            result.now_us,
            cost=cost,
            reason="penalty",
            states=self.states,
            subjects=group.checks,
        )

    def _blocked(self, plan: Plan, block: Block, now_us: int) -> Decision:
        """The decision on a request whose client is blocked. If the rule has gone, one that applies stands for it."""
        found = [template for template in plan.templates if template.rule == block.rule]
        template = found[0] if found else self.snapshot.template(block.rule)
        if template is None:
            template = next((template for template in plan.templates if template.enforced), plan.templates[0])
        return blocked(template, block, now_us)

    def _failed(self, asked: Asked, error: StoreError) -> Decision:
        """The decision when the store could not make one: the strictest of what the rules say."""
        self._outage.failed(error)
        plan = asked.plan
        modes = [one.failure_mode or self.failure_mode for one in plan.applied]
        for mode, template in zip(modes, plan.templates, strict=True):
            if mode == "closed" and template.enforced:
                return self._refused(template, "fail_closed")
        here = [place for place, mode in enumerate(modes) if mode == "local"]
        try:
            decision = self._locally(asked, here)
        except StoreFull:  # no room to count in
            decision = None
        return Decision.of(True, self.clock.now_us(), reason="fail_open") if decision is None else decision

    def _locally(self, asked: Asked, here: list[int]) -> Decision | None:
        """The decision by this node's share of the limits at these places; None when there are none."""
        plan, group, cost, *_ = asked
        checks, parts, templates = [], [], []
        for place in here:
            check, template = group.checks[place], plan.templates[place]
            part = self.shares.of(check.quota)
            if part is not None:
                checks.append(check)
                parts.append(check._replace(quota=part))
                templates.append(template._replace(quota=part))
            elif check.enforced:
                return self._refused(template, "local_fallback")
        if not parts:
            return None
        (result,) = self.local.check([Group(tuple(parts), group.peek)])
        assert isinstance(result, Result)
        outcomes = hopeful(checks, result.outcomes, RETRY_US)
        decision = combine(tuple(templates), outcomes, result.now_us, cost=cost, reason="local_fallback")
        if decision.allowed and self.shares.merges and not group.peek:
            self.shares.spent(checks, parts, outcomes)
        return decision

    def _refused(self, template: Check, reason: Reason) -> Decision:
        """The refusal of a request of which nobody knows when it may pass."""
        outcome = Outcome(RETRY_US, 0, RETRY_US)
        return Decision.of(False, self.clock.now_us(), (template,), (outcome,), reason=reason)


def _applied(plan: Plan, result: Result) -> tuple[Check, ...]:
    """The checks without subjects; of limits that several regions share, as this one was asked."""
    return result.applied_to(plan.templates) if isinstance(result, SharedResult) else plan.templates


class Wait:
    """How long to sleep between the tries of `wait`."""

    def __init__(self, engine: Engine, timeout: float | None) -> None:
        if timeout is not None and not timeout >= 0:
            raise InvalidCheck(f"timeout: must be 0 or more seconds, or None, got {timeout!r}")
        self._clock = engine.clock
        self._deadline_us: int | None = None
        if timeout is not None and timeout != float("inf"):
            self._deadline_us = engine.clock.now_us() + round(timeout * 1_000_000)

    def seconds(self, decision: Decision) -> float | None:
        """Until the next try; None to give up: the decision stands, or there will be no time left."""
        if decision.allowed or decision.retry_after is None:
            return None
        seconds = decision.retry_after
        if self._deadline_us is not None:
            left_us = self._deadline_us - self._clock.now_us()
            if round(seconds * 1_000_000) > left_us:
                return None
        return seconds


def is_plain(subject: Subject | None, cost: int, idempotency_key: str | None, facts: Mapping[str, Any]) -> bool:
    """Whether a check is a valid one of a subject and nothing else, and may take the short way."""
    return (
        subject.__class__ is str
        and not facts
        and idempotency_key is None
        and cost.__class__ is int
        and 0 <= cost <= MAX_INT
    )


def _facts_of(subject: Subject | None, facts: Mapping[str, Any]) -> dict[str, str]:
    """Facts as text. One that is None is unknown. The subject is the user."""
    texts = {name: _text_of(name, value) for name, value in facts.items() if value is not None}
    if subject is not None:
        if "user" in texts:
            raise InvalidCheck("user: given twice, as the subject and by name")
        texts["user"] = _text_of("subject", subject)
    return texts


def _text_of(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise InvalidCheck(f"{name}: must be a text or a whole number, got {value!r}")


def _fingerprint(facts: Mapping[str, str], cost: int, plan: Plan, penalties: bool) -> str:
    """Stands for a request's facts and cost, and for the rules that apply: an answer of others cannot be read."""
    text = repr((cost, sorted(facts.items()), [template.space for template in plan.templates], penalties))
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _named(name: str, quotas: list[Quota]) -> Iterator[tuple[str, Quota]]:
    """An id for each of several quotas: by its window, and its algorithm and number where that is not enough."""
    taken: set[str] = set()
    for quota in quotas:
        base = candidate = f"{name}/{duration_text(quota.window_us)}"
        number = 1
        while candidate in taken:
            candidate = f"{base}/{quota.algorithm}" if number == 1 else f"{base}/{quota.algorithm}/{number}"
            number += 1
        taken.add(candidate)
        yield candidate, quota


def _rules_of(rules: Rules, name: str) -> tuple[list[Rule], bool]:
    """The rules that a limiter was given, and whether it counts by a subject that every check must have."""
    if isinstance(rules, Quota):
        return [Rule(id=name, quota=rules)], True
    if isinstance(rules, str):
        quotas = Quota.parse_all(rules)
        if len(quotas) == 1:
            return [Rule(id=name, quota=quotas[0])], True
        return [Rule(id=rule_id, quota=quota) for rule_id, quota in _named(name, quotas)], True
    if isinstance(rules, Iterable):
        listed = list(rules)
        if all(isinstance(rule, Rule) for rule in listed):
            return listed, False
    raise InvalidRule(f"rules: must be a notation like '100/minute', a Quota, a list of Rule or a file, got {rules!r}")


def _is_file(rules: Rules) -> bool:
    return isinstance(rules, Path) or (isinstance(rules, str) and rules.endswith(".toml"))


def _is_database(rules: Rules) -> bool:
    return isinstance(rules, str) and rules.startswith(DATABASES)


def _opened(rules: str | Path, *, watch: bool, clock: Clock) -> Source:
    """The source that a path or a URL names. Imported here, as it needs more than the standard library."""
    source: Source
    if _is_database(rules):
        try:
            sources = import_module("headgate.rules.sources.database")
        except ImportError as error:
            raise ImportError("rules in a database need SQLAlchemy: pip install 'headgate[database]'") from error
        source = sources.DatabaseSource(rules)  # which is always watched
    else:
        source = import_module("headgate.rules.sources.file").FileSource(rules, watch=watch, clock=clock)
    return source
