"""What `Limiter` and `AsyncLimiter` have in common: everything but the I/O."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

from headgate.core.check import Group, Idempotency, Result
from headgate.core.clock import Clock, SystemClock
from headgate.core.decision import Decision, combine
from headgate.core.quota import MAX_INT, Quota, duration_text
from headgate.errors import IdempotencyConflict, InvalidCheck, InvalidRule, StoreError
from headgate.rules.directory import UNKNOWN, Unknown
from headgate.rules.holder import Holder, Source
from headgate.rules.plan import Plan
from headgate.rules.rule import FailureMode, Rule
from headgate.rules.snapshot import Snapshot
from headgate.rules.users import User
from headgate.stores.memory import MemoryStore

Rules = str | Quota | Iterable[Rule] | Path | Snapshot | Source
DATABASES: Final = ("sqlite://", "postgresql://", "postgres://")
Subject = str | int
Request = Subject | Mapping[str, Any]

log = logging.getLogger("headgate")


class Asked(NamedTuple):
    """A request on its way: what the store is asked, and what is needed to read its answer."""

    plan: Plan
    group: Group
    cost: int


class Known(NamedTuple):
    """Rules, and what is known of a request's user: looked up beforehand by those who must not wait."""

    snapshot: Snapshot
    user: User | Unknown | None


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
    ) -> None:
        self.clock: Clock = clock or SystemClock()
        self._by_subject = False
        self._source: Source | None = None
        self.owns_source = _is_file(rules) or _is_database(rules)
        if isinstance(rules, str | Path) and self.owns_source:
            self._source = _opened(rules, watch=watch, clock=self.clock)
        elif watch:
            raise InvalidRule(f"watch: only rules from a file can be watched, got {rules!r}")
        elif isinstance(rules, Source):
            self._source = rules
        if self._source is not None:
            self._holder = self._source.holder
        elif isinstance(rules, Snapshot):
            self._holder = Holder(rules)
        else:
            listed, self._by_subject = _rules_of(rules, name)
            self._holder = Holder(Snapshot(listed))
        self.failure_mode: FailureMode = failure_mode
        self.failing = False

    @property
    def snapshot(self) -> Snapshot:
        """The rules that are in force."""
        return self._holder.current

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
        return rule if by_user and plain else None

    @cached_property
    def local(self) -> MemoryStore:
        """Where rules of failure mode `local` count while the store is away."""
        return MemoryStore(clock=self.clock)

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
        texts = _facts_of(subject, facts)
        if self._by_subject and "user" not in texts:
            raise InvalidCheck("this limiter counts by subject: call check('alice') or check(user='alice')")
        if isinstance(cost, bool) or not isinstance(cost, int) or not 0 <= cost <= MAX_INT:
            raise InvalidCheck(f"cost: must be a whole number from 0 to 2^53-1, got {cost!r}")
        idempotency = None
        if idempotency_key is not None:
            if not isinstance(idempotency_key, str) or not idempotency_key:
                raise InvalidCheck(f"idempotency_key: must be a text, and not empty, got {idempotency_key!r}")
            idempotency = Idempotency(idempotency_key, _fingerprint(texts, cost))
        snapshot, user = known or (self._holder.current, UNKNOWN)
        plan = snapshot.plan(texts, self.clock, user)
        return Asked(plan, Group(plan.checks(texts, cost), peek, idempotency), cost)

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
        snapshot = self._holder.current
        user_id = facts.get("user") if subject is None else subject
        known = {"user": str(user_id)} if user_id is not None else {}
        if facts.get("tier") is not None:
            known["tier"] = ""
        return Known(snapshot, snapshot.user(known))

    def conclude(self, asked: list[Asked], results: list[Result | IdempotencyConflict] | StoreError) -> list[Decision]:
        """The decisions that the store's answers mean. Requests that no rule applies to were not sent to it.

        Raises the first conflict, when all others are decided.
        """
        decisions: list[Decision] = []
        conflict: IdempotencyConflict | None = None
        if isinstance(results, StoreError):
            return [
                self._failed(request, results) if request.plan.applied else self._free(request.plan)
                for request in asked
            ]
        if self.failing and results:
            self.failing = False
            log.warning("the store answers again: limits are enforced by it again")
        answers = iter(results)
        for plan, _, cost in asked:
            if not plan.applied:
                decisions.append(self._free(plan))
                continue
            result = next(answers)
            if isinstance(result, IdempotencyConflict):
                conflict = conflict or result
            else:
                decisions.append(combine(plan.templates, result.outcomes, result.now_us, cost=cost))
        if conflict is not None:
            raise conflict
        return decisions

    def _free(self, plan: Plan) -> Decision:
        return Decision(True, self.clock.now_us(), reason=plan.reason)

    def _failed(self, asked: Asked, error: StoreError) -> Decision:
        """The decision when the store could not make one: the strictest of what the rules say."""
        if not self.failing:
            self.failing = True
            log.error("the store cannot decide: failure modes apply until it can (%s)", error)
        plan, group, cost = asked
        modes = [one.failure_mode or self.failure_mode for one in plan.applied]
        if any(mode == "closed" and check.enforced for mode, check in zip(modes, plan.templates, strict=True)):
            return Decision(False, self.clock.now_us(), reason="fail_closed")
        here = [place for place, mode in enumerate(modes) if mode == "local"]
        if not here:
            return Decision(True, self.clock.now_us(), reason="fail_open")
        (result,) = self.local.check([Group(tuple(group.checks[place] for place in here), group.peek)])
        assert isinstance(result, Result)
        templates = tuple(plan.templates[place] for place in here)
        return combine(templates, result.outcomes, result.now_us, cost=cost, reason="local_fallback")


class Wait:
    """How long to sleep between the tries of `wait`."""

    def __init__(self, engine: Engine, timeout: float | None) -> None:
        if timeout is not None and not timeout >= 0:
            raise InvalidCheck(f"timeout: must be 0 or more seconds, or None, got {timeout!r}")
        self._clock = engine.clock
        self._deadline_us = None if timeout is None else engine.clock.now_us() + round(timeout * 1_000_000)

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


def _fingerprint(facts: Mapping[str, str], cost: int) -> str:
    """Stands for a request's facts and cost."""
    text = repr((cost, sorted(facts.items())))
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _rules_of(rules: Rules, name: str) -> tuple[list[Rule], bool]:
    """The rules that a limiter was given, and whether it counts by a subject that every check must have."""
    if isinstance(rules, Quota):
        return [Rule(id=name, quota=rules)], True
    if isinstance(rules, str):
        quotas = Quota.parse_all(rules)
        if len(quotas) == 1:
            return [Rule(id=name, quota=quotas[0])], True
        return [Rule(id=f"{name}/{duration_text(quota.window_us)}", quota=quota) for quota in quotas], True
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
