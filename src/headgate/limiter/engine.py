"""Engine: everything that `Limiter` and `AsyncLimiter` share, which is all but the I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, get_args

from headgate.core.check import NOT_WAITING, Answer, Block, Check, Client, Extras, Idempotency, Penalty
from headgate.core.clock import Clock, SystemClock
from headgate.core.cost import Cost
from headgate.core.decision import Decision
from headgate.core.decision_factory import decide, decision_within_limits, refuse_blocked
from headgate.core.plan import Plan
from headgate.core.verdict import outcomes_with_block
from headgate.errors import IdempotencyConflict, InvalidCheck, InvalidRule, StoreError
from headgate.limiter.fallback import Fallback
from headgate.limiter.prepared_check import (
    NO_SUBJECT,
    KnownUser,
    Planned,
    PreparedCheck,
    Request,
    Subject,
    facts_of,
    fingerprint,
)
from headgate.limiter.programs import Compile, Programs, raise_uncompiled
from headgate.limiter.refusals import OnRefused
from headgate.limiter.rule_inputs import Rules, hold, is_elsewhere
from headgate.limiter.warning_hysteresis import WarningHysteresis
from headgate.rules.directory import UNKNOWN
from headgate.rules.penalties import client_of, clients_of
from headgate.rules.plan import RulePlan
from headgate.rules.rule import FailureMode
from headgate.rules.snapshot import Snapshot
from headgate.stores.program import Program, decision_of

if TYPE_CHECKING:
    from headgate.limiter.async_heartbeat import AsyncHeartbeat
    from headgate.limiter.blocks import Blocks
    from headgate.limiter.combined_plans import CombinedPlans
    from headgate.limiter.heartbeat import Heartbeat
    from headgate.limiter.reservation_records import Due

Clients = tuple[Client, ...]

_new: Final[Any] = tuple.__new__  # makes a named tuple in half the time of calling its class


class Engine:
    """Plans requests, and turns answers into decisions. The limiter does the I/O in between."""

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
        facts: Iterable[str] = (),
    ) -> None:
        self.clock: Clock = clock or SystemClock()
        self.facts = tuple(facts)  # declared by the limiter
        self.holder, self._source, self.by_subject = hold(
            rules, name=name, watch=watch, clock=self.clock, facts=self.facts
        )
        self.owns_source = is_elsewhere(rules)
        if failure_mode not in get_args(FailureMode):
            modes = ", ".join(get_args(FailureMode))
            raise InvalidRule(f"failure_mode: must be one of {modes}, got {failure_mode!r}")
        self.fallback = Fallback(failure_mode, self.clock)
        self.name = name
        self.states = WarningHysteresis(self.holder, warning_at, warning_until)
        self.outage = self.fallback.outage
        self.leases = False  # whether this limiter holds slices of leased limits
        self.compile: Compile = raise_uncompiled  # set by the limiter, because it depends on the store
        self.compile_exact: Compile = raise_uncompiled
        self.programs = Programs(self.holder, lambda plan: self._begin_with(plan, self.compile))
        # Programs that charge the store itself even where limits are leased.
        self.exact_programs = Programs(self.holder, lambda plan: self._begin_with(plan, self.compile_exact))
        self.on_refused: OnRefused | None = None
        self.blocks: Blocks | None = None  # None: the store is in this process, and asking it is as cheap as this cache
        self.due: Due | None = None  # None: this limiter has made no reservations
        # None: the store is in this process, and there are no other nodes.
        self.heartbeat: Heartbeat | AsyncHeartbeat | None = None

    @property
    def has_local(self) -> bool:
        """Whether any rule in force has failure mode local."""
        return self.fallback.is_local(self.holder.current)

    @cached_property
    def combined(self) -> CombinedPlans:
        """The plans of requests with several descriptions."""
        from headgate.limiter.combined_plans import CombinedPlans  # noqa: PLC0415 - only services need it

        return CombinedPlans(self.states)

    @property
    def snapshot(self) -> Snapshot:
        """The rules in force."""
        return self.holder.current

    def reload(self) -> Snapshot:
        """Read the rules from their source again. Raises `InvalidRule`; the rules then stay as they were."""
        if self._source is None:
            raise InvalidRule("these rules cannot be reloaded: they do not come from a file or another source")
        return self._source.reload()

    def close(self) -> None:
        """Stop following the source of the rules, if this limiter opened it."""
        if self._source is not None and self.owns_source:
            self._source.close()

    def _begin_with(self, plan: RulePlan, compile_plan: Compile) -> Program:
        """Compile a plan. If its limits may be divided among nodes, its first check begins the heartbeat."""
        program = compile_plan(plan, self.states)
        if self.heartbeat is not None and "local" in [mode or self.fallback.mode for mode in plan.failure_modes]:
            program = self.heartbeat.begin_with(program)
        return program

    def subject_program(self) -> Program | None:
        """Return the one program for all requests that have only a user.

        Returns None if such requests need more than one plain limit; then `decide` has to plan each of them.
        """
        snapshot = self.holder.current
        if self._source is not None:
            return None
        if snapshot.terms is not None or snapshot.depends_on("user", {}):
            return None
        plan, _ = snapshot.plan({"user": ""}, self.clock, None).price(1)
        if (
            len(plan.limits) != 1
            or plan.applied[0].rule.facts != ("user",)
            or plan.ones != (1,)
            or plan.slots
            or plan.has_calendar
        ):
            return None
        return self.programs[plan]

    def decide_subject_without_store(self, subject: str, error: StoreError) -> Decision:
        """Return the decision on a request of cost 1 that has only a user, when the store could not decide."""
        facts = {"user": subject}
        return self.fallback.decide(self.prepare(facts, self.plan(facts), 1), error)

    def plan(self, texts: dict[str, str], known: KnownUser | None = None) -> Planned:
        """Return the rules that apply to a request, after their snapshot.

        Without `known`, it may wait for a look-up of the user.
        """
        if known is None:
            snapshot = self.holder.current
            return snapshot, snapshot.planner.plan(texts, self.clock)
        snapshot, user = known
        return snapshot, snapshot.planner.plan(texts, self.clock, user)

    def prepare(
        self,
        texts: dict[str, str],
        planned: Planned,
        cost: Cost,
        idempotency_key: str | None = None,
        *,
        peek: bool = False,
        slot: str = "",
        arrived_us: int = NOT_WAITING,
    ) -> PreparedCheck:
        """Prepare a request whose rules are known. Raises `InvalidCheck`."""
        snapshot, plan = planned
        if plan.notice is not None:
            self.log_unmatched(plan, texts)
        plan, costs = plan.price(cost)
        terms = snapshot.terms
        if idempotency_key is None and terms is None and not plan.slots and not slot:
            plain: PreparedCheck = _new(PreparedCheck, (plan, plan.subjects(texts), costs, peek, None, 0, None))
            return plain
        if plan.slots and not slot and not peek and any(costs[at] for at in plan.slots):
            from headgate.limiter.slot_records import needs_acquire  # noqa: PLC0415 - a mistake, which is rare

            raise needs_acquire(plan)
        if idempotency_key is not None and (not isinstance(idempotency_key, str) or not idempotency_key):
            raise InvalidCheck(f"idempotency_key: must be a non-empty string, got {idempotency_key!r}")
        idempotency = None
        if idempotency_key is not None:
            idempotency = Idempotency(idempotency_key, fingerprint(texts, cost, plan, terms is not None), self.name)
        client = client_of(texts) if terms is not None and plan.enforced else None
        penalty, at_us, block = None, 0, None
        if terms is not None and client is not None:
            penalty = Penalty(client, terms)
            at_us, block = self.block_of(client)
            if idempotency is not None:  # only the store knows the answer to a key
                block = None
        has_extras = idempotency is not None or penalty is not None or slot
        extras = _new(Extras, (idempotency, penalty, 0, slot, arrived_us)) if has_extras else None
        prepared: PreparedCheck = _new(PreparedCheck, (plan, plan.subjects(texts), costs, peek, extras, at_us, block))
        return prepared

    def log_unmatched(self, plan: RulePlan, texts: dict[str, str]) -> None:
        """Log the first request of a shape to which no rule applies."""
        notice = plan.notice
        if notice is not None:
            plan.notice = None
            notice(texts)

    def penalty_of(self, texts: Mapping[str, str]) -> Penalty | None:
        """Return the penalty that a refusal of this request counts towards; None if no penalty applies."""
        terms = self.snapshot.terms
        client = None if terms is None else client_of(texts)
        return None if terms is None or client is None else Penalty(client, terms)

    def block_of(self, client: Client) -> tuple[int, Block | None]:
        """Return the time, and the cached block of a client."""
        at_us = self.clock.now_us()
        return at_us, None if self.blocks is None else self.blocks.get(client, at_us)

    def ask_reset(
        self, subject: Subject, facts: dict[str, Any], known: KnownUser | None = None
    ) -> tuple[tuple[Check, ...], Clients]:
        """Return the checks and clients that a store has to reset. Raises `InvalidCheck`."""
        texts = self.texts_of(subject, facts)
        snapshot, user = known or (self.holder.current, UNKNOWN)
        clients = () if snapshot.terms is None else clients_of(texts)
        return snapshot.plan(texts, self.clock, user).checks(texts, 0), clients

    def forget(self, checks: tuple[Check, ...], clients: Clients) -> None:
        """Drop the local state of checks and clients that the store has reset."""
        self.fallback.local.reset(checks)
        self.fallback.shares.forget(checks)
        if self.blocks is not None:
            for client in clients:
                self.blocks.drop(client)

    def forget_all(self) -> None:
        """Drop all local state, because the store was cleared."""
        self.fallback.local.clear()
        self.fallback.shares.forget_all()
        if self.blocks is not None:
            self.blocks.clear()

    def prepare_many(
        self, requests: Iterable[Request], known: Sequence[KnownUser] | None = None
    ) -> list[PreparedCheck]:
        """Prepare several requests: subjects, or mappings of facts, `cost` and `idempotency_key`."""
        prepared = []
        for at, request in enumerate(requests):
            cost: Cost = 1
            key, subject = None, NO_SUBJECT
            facts: dict[str, Any] = {}
            if isinstance(request, Mapping):
                facts = dict(request)
                cost, key = facts.pop("cost", 1), facts.pop("idempotency_key", None)
            else:
                subject = request
            texts = self.texts_of(subject, facts)
            prepared.append(self.prepare(texts, self.plan(texts, None if known is None else known[at]), cost, key))
        return prepared

    def known_user(self, subject: Subject, facts: Mapping[str, Any]) -> KnownUser:
        """Return the user of a request without waiting. The caller must look up an `UNKNOWN` user."""
        snapshot = self.holder.current
        user_id = facts.get("user") if subject is NO_SUBJECT else subject
        known = {"user": str(user_id)} if user_id is not None else {}
        if facts.get("tier") is not None:
            known["tier"] = ""
        return KnownUser(snapshot, snapshot.user(known))

    def note_answer(self, plan: Plan) -> None:
        """Record that a program of this plan decided a request during an outage of the store.

        A decision by leases does not show that the store answers. Leases call `note_store_answer` themselves.
        """
        if not (self.leases and any(limit.leased for limit in plan.limits)):
            self.note_store_answer()

    def note_store_answer(self) -> None:
        """Record that the store has decided something."""
        if self.outage.lasts and self.outage.note_answer() and self.heartbeat is not None:
            self.heartbeat.wake()

    def conclude_one(self, prepared: PreparedCheck, decision: Decision) -> Decision:
        """Return the caller's decision, given that of a program. It differs only where clients are penalised."""
        if prepared.peek:
            decision.settled = True
        extras = prepared.extras
        if extras is None:
            return decision
        idempotency, penalty, *_ = extras
        if idempotency is not None and getattr(decision, "settled", False):
            decision = decision_within_limits(decision)
        block: Block | None = None if penalty is None else getattr(decision, "block", None)
        if penalty is None or block is None:
            return decision
        remembered = idempotency is None and not prepared.peek  # a fresh answer, which has changed the store
        if self.blocks is not None and remembered:
            self.blocks.put(penalty.client, block, prepared.at_us)
        plan = prepared.plan
        if not decision.outcomes:
            return self._refuse_blocked(plan, block, decision.at_us)
        return decide(
            plan,
            outcomes_with_block(plan.limits, decision.outcomes, block),
            decision.at_us,
            costs=prepared.costs,
            subjects=prepared.subjects,
            reason="penalty",
            states=self.states,
        )

    def conclude(
        self, prepared: Sequence[PreparedCheck], results: Sequence[Answer] | StoreError, *, answered: bool = True
    ) -> list[Decision]:
        """Turn a store's answers into decisions. Some of the requests may not have been sent to it.

        Without `answered`, the answers do not show that the store is up: they come from leases, or it failed. Raises
        the first conflict after all others are decided.
        """
        decisions: list[Decision] = []
        conflict: IdempotencyConflict | None = None
        if self.heartbeat is not None:
            self.heartbeat.attend()
        if results and answered and not isinstance(results, StoreError):
            self.note_store_answer()
        answers = iter(() if isinstance(results, StoreError) else results)
        for one in prepared:
            if not one.sent:
                decisions.append(self.decide_unsent(one))
                continue
            answer = results if isinstance(results, StoreError) else next(answers)
            try:
                decision = decision_of(answer, one.plan, self.states, one.subjects, one.costs)
                decisions.append(self.conclude_one(one, decision))
            except StoreError as error:
                decisions.append(self.fallback.decide(one, error))
            except IdempotencyConflict as error:
                conflict = conflict or error
        if conflict is not None:
            raise conflict
        return decisions

    def program_of_many(self, prepared: Sequence[PreparedCheck]) -> Program | None:
        """Return the program that decides all of these requests; None unless they share one and have no extras."""
        if not prepared:
            return None
        plan = prepared[0].plan
        for one in prepared:
            if one.plan is not plan or one.extras is not None or not plan.limits:
                return None
        return getattr(self.programs[plan], "many", None)

    def conclude_many(
        self, prepared: Sequence[PreparedCheck], decided: Sequence[Decision | StoreError]
    ) -> list[Decision]:
        """Return the decisions on requests that one program has decided, or could not decide."""
        if self.heartbeat is not None:
            self.heartbeat.attend()
        kinds = set(map(type, decided))
        if self.outage.lasts and Decision in kinds:
            self.note_answer(prepared[0].plan)
        if kinds == {Decision}:
            return list(decided)  # type: ignore[arg-type]
        return [
            decision if isinstance(decision, Decision) else self.fallback.decide(one, decision)
            for one, decision in zip(prepared, decided, strict=True)
        ]

    def texts_of(self, subject: Subject, facts: dict[str, Any]) -> dict[str, str]:
        """Return the facts of a request as strings. Raises `InvalidCheck`."""
        texts = facts_of(subject, facts, self.holder.current.fact_names)
        if self.by_subject and "user" not in texts:
            self.snapshot.fact_names.require(facts)  # a misspelt name is the likelier mistake
            raise InvalidCheck("this limiter counts by subject: call check('alice') or check(user='alice')")
        return texts

    def decide_unsent(self, prepared: PreparedCheck) -> Decision:
        """Return the decision on a request that is not sent to the store."""
        if prepared.block is not None:
            return self._refuse_blocked(prepared.plan, prepared.block, prepared.at_us)
        plan = prepared.plan
        return Decision.of(not plan.refuses, self.clock.now_us(), plan)

    def _refuse_blocked(self, plan: RulePlan, block: Block, now_us: int) -> Decision:
        """Return the decision for a blocked client. If the rule was removed, another that applies replaces it."""
        for template in plan.limits:
            if template.rule == block.rule:
                return refuse_blocked(template, block, now_us)
        other = self.snapshot.template(block.rule)
        if other is None:
            other = next((template for template in plan.limits if template.enforced), plan.limits[0])
        return refuse_blocked(other, block, now_us)
