# Generated from async_limiter.py by scripts/generate-sync: edit that file, and run `make generate`.
"""Limiter: checks, reserves and settles requests, and limits functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from headgate.core.cost import Cost, checked_cost, whole_cost
from headgate.core.decision import Decision
from headgate.core.key import qualified_name
from headgate.core.quota import Quota
from headgate.core.reservation import Settlement, checked_id, ttl_us
from headgate.errors import InvalidCheck, RateLimited
from headgate.limiter.checks import Checks
from headgate.limiter.prepared_check import NO_SUBJECT, Subject
from headgate.limiter.rule_inputs import Rules, is_elsewhere, own_limits
from headgate.limiter.startup import PROBE, require_decided
from headgate.rules.holder import Source
from headgate.rules.snapshot import Snapshot
from headgate.stores.protocol import ClearingStore

if TYPE_CHECKING:
    from headgate.features.leases.status import LeaseStatus
    from headgate.features.regions.region import RegionStatus
    from headgate.limiter.decorator import Key, P, Returned
    from headgate.limiter.reservations import Reservation
    from headgate.limiter.slot_records import SlotStatus
    from headgate.limiter.slots import Acquiring, Slot
    from headgate.rules.explanation import Explanation


class Limiter(Checks):
    """Decides whether requests may pass, in memory or on a shared store. Create one, and use it for all requests.

    - `rules`: a notation (`"100/minute"`, `"10/second; 100/minute"`), a `Quota`, a list of `Rule`, a `Snapshot`, a TOML
      file (`"rules.toml"`, or a `Path`), the URL of a database (`"postgresql://…"`, `"sqlite:///rules.db"`), or
      another `Source`.
    - `store`: a URL (`memory://`, `redis://host:6379/0`), or a store, which the caller then closes.
    - `name`: namespace of rules made from a notation. Limiters with the same store and name share their counts.
    - `failure_mode`: what happens when the store cannot decide, for rules that do not set it: `open` allows, `closed`
      refuses, `local` counts in this process.
    - `watch`: reload the rules file whenever it changes. A database is always followed.
    - `warning_at`, `warning_until`: percentages of a limit at which the state becomes `warning` (80), and below which
      it is `normal` again (70), unless the rules set them.
    - `region`: a `headgate.regions.Region`, for rules that several regions share.
    - `facts`: names of facts that rules and requests may use besides the well-known ones.
    - `require_store`: raise `StoreError` immediately if the store does not answer.
    - `on_refused`: called with the decision and the facts of each refusal, by any method, decorator or middleware.
    - `clock`: for tests, a `headgate.testing.FakeClock`.

    `with limiter:` (with asyncio, `async with`) closes the limiter at the end of the block: see `close`. The block
    itself is not limited; call `check` inside it, decorate functions with `limit`, or use `with limiter.acquire(...)`.

    Refusals are values: only invalid arguments raise (`InvalidCheck`, `InvalidRule`, `InvalidQuota`).
    """

    def explain(self, subject: Subject = NO_SUBJECT, /, *, cost: Cost = 1, **facts: Any) -> Explanation:
        """Explain why each rule applies to a request or does not, what would be decided, and what would let it pass.

        Charges nothing. If there are many rules, those that match least are left out.
        """
        from headgate.rules.explanation import (  # noqa: PLC0415
            MAX_TIERS,
            conclude,
            explain_rules,
            other_tiers,
        )

        engine = self._engine
        texts = engine.texts_of(subject, facts)
        known = engine.known_user(NO_SUBJECT, texts)
        explanation, plan = explain_rules(known.snapshot, texts, engine.clock, known.user, cost)
        decision = self.peek(cost=cost, **texts)
        by_tier = {}
        if not decision.allowed:
            for tier in other_tiers(known.snapshot, explanation.tier)[:MAX_TIERS]:
                by_tier[tier] = self.peek(cost=cost, **{**texts, "tier": tier})
        return conclude(explanation, plan, decision, by_tier)

    def acquire(
        self,
        subject: Subject = NO_SUBJECT,
        /,
        *,
        cost: Cost = 1,
        wait: float = 0.0,
        renew: bool = False,
        **facts: Any,
    ) -> Acquiring:
        """Check a request, and hold the slots that concurrency rules require until the request ends.

        Use it in a `with` block, which releases the slot at its end: `with limiter.acquire("alice") as slot`. Either
        all limits that apply are charged in one step, or none is: a refusal for lack of a slot does not charge rate
        limits. If refused, it waits up to `wait` seconds for a slot and then raises `RateLimited`. Callers that wait
        for the same slots get them in order of arrival, also in other processes on the same store. A slot that is not
        released expires after the rule's `ttl`; with `renew`, it is renewed in the background until it is released.
        """
        texts = self._engine.texts_of(subject, facts)
        return self._acquire(texts, cost, wait, renew)

    def _acquire(self, texts: dict[str, str], cost: Cost, wait: float, renew: bool) -> Slot:
        snapshot = self.holder.current
        if self._engine.due is not None:
            self._reservations.attend(self._engine.due)
        planned = (snapshot, snapshot.planner.plan(texts, self._engine.clock))
        slots = self._slots
        if wait == 0 and wait is not False:
            decision = slots.take(texts, planned, cost, renew)
        else:
            decision = slots.wait(texts, planned, cost, wait, renew)
        if not decision.allowed:
            self.tell_refused(decision, texts)
            raise RateLimited(decision)
        return getattr(decision, "slot", None) or slots.hold(decision, decision.plan)

    def release(self, slot_id: str) -> bool:
        """Release the slot with this id (`slot.id`), which any process on the same store may have acquired.

        Returns whether it was held. Raises `InvalidCheck` if the text is not a slot's id, and `StoreError`.
        """
        return self._slots.release(slot_id)

    def renew(self, slot_id: str) -> bool:
        """Extend the slot with this id to its ttl from now. Returns whether it was held. Raises as `release` does."""
        return self._slots.renew(slot_id)

    def slots(self) -> SlotStatus:
        """Return figures about the slots that this limiter has taken."""
        return self._slots.status()

    def reserve(
        self, subject: Subject = NO_SUBJECT, /, *, cost: Cost = 1, ttl: float = 60.0, **facts: Any
    ) -> Reservation:
        """Charge an estimate, to be settled later with the actual cost: LLM tokens, rows, bytes.

        Charges `cost` as `check` does, and keeps a record of it. Settle with `reservation.settle(actual)`, or from
        another process with `limiter.settle(reservation.id, actual)`. A reservation that is not settled within `ttl`
        seconds (from 0.001 seconds to 7 days) expires, and its estimate is refunded.
        """
        from headgate.limiter.reservations import Reservation  # noqa: PLC0415

        lives_us, engine, reservations = ttl_us(ttl), self._engine, self._reservations
        texts = engine.texts_of(subject, facts)
        known = None
        prepared = engine.prepare(texts, engine.plan(texts, known), cost)
        self._subject_program = None  # it would not look for expired reservations
        name, decision, recorded = reservations.reserve(prepared, cost, lives_us)
        if not decision.allowed:
            self.tell_refused(decision, texts)
        return Reservation(self, name, decision, cost, recorded=recorded, facts=texts, ttl=ttl)

    def settle(self, reservation_id: str, cost: Cost) -> Settlement:
        """Charge the actual cost of a reservation: refund the excess, or charge the rest.

        The rest is charged even if it does not fit, because the client has used it: later requests wait for it. Only
        the first call for an id, from any process, has an effect; the settlement says whether this call had. If the
        store cannot be reached, the limiter logs a warning, and the settlement says so. This method does not raise for
        it.

        For a reservation in several units, name the cost of each: `{"tokens": 3_200}`. A unit that is not named cost
        what was reserved. A plain 0 refunds everything.
        """
        name, cost = checked_id(reservation_id), checked_cost(cost)
        self._subject_program = None  # it would not look for expired reservations
        return self._reservations.settle(name, cost)

    def refund(self, reservation_id: str) -> Settlement:
        """Refund a whole reservation: `settle(reservation_id, 0)`."""
        return self.settle(reservation_id, 0)

    def reset(self, subject: Subject = NO_SUBJECT, /, **facts: Any) -> None:
        """Reset the counts of this request's subjects under every rule that applies to it.

        With penalties, it also lifts the blocks of the clients that these facts identify, and deletes their violations.
        Another process may remember a block, but never for longer than it would have lasted.
        """
        known = None
        checks, clients = self._engine.ask_reset(subject, facts, known)
        self._store.reset(checks, clients)
        self._engine.forget(checks, clients)
        if self._leasing is not None:
            self._leasing.forget(checks)

    def reset_all(self) -> None:
        """Delete everything that the limiter's store counts: for tests, and for a fresh start.

        This includes all limiters with the same store and prefix, or with a prefix that begins with this one and `:`.
        It deletes counts, slots, reservations, blocks and idempotency keys. On Redis, it scans the keys under the
        prefix, on all servers of a cluster, and touches no others. Requests in the meantime may or may not be counted.
        Other processes may hold leases, and remember refusals for a moment. With several regions, it clears only this
        region's store. Raises `StoreError`, and `InvalidCheck` if the store does not support it.
        """
        if not isinstance(self._here, ClearingStore):
            raise InvalidCheck(f"reset_all: {type(self._here).__name__} cannot forget everything: it has no clear_some")
        cursor = self._here.clear_some()
        while cursor is not None:
            cursor = self._here.clear_some(cursor)
        self._engine.forget_all()
        if self._leasing is not None:
            self._leasing.drop_all()

    def limit(
        self, quota: str | Quota, *, key: Key | None = None, cost: int = 1, name: str | None = None
    ) -> Callable[[Callable[P, Returned]], Callable[P, Returned]]:
        """Decorate a function: a refused call raises `RateLimited` instead of running.

        `key` gets the call's arguments and returns the subject; without it, all calls count together. Calls are counted
        per function, or per `name`. A `Limiter` decorates both sync and async functions. A generator is checked when
        its first item is asked for, and holds its slots until it ends or is closed.
        """
        from headgate.limiter.decorator import (  # noqa: PLC0415
            limit_function,
            quota_of,
            rule_name,
        )

        quota, cost = quota_of(quota), whole_cost(cost)

        def decorate(function: Callable[P, Returned]) -> Callable[P, Returned]:
            limiter = self.sibling(quota, name=name or rule_name(function))
            return limit_function(limiter, function, key, cost)

        return decorate

    def sibling(self, rules: Rules, *, name: str = "default") -> Limiter:
        """Return a limiter with other rules but the same store, clock and failure mode.

        A notation, a `Quota` and a list of `Rule` become limits of this limiter: they count under its name and `name`.
        A `Snapshot`, and rules from a file or another source, use the same keys as in any limiter.

        You need not close it, because it does not own the store. Its limits apply to this region alone.
        """
        engine = self._engine
        rules, mode = own_limits(rules, engine.name, name), engine.fallback.mode
        name = qualified_name(engine.name, name)
        facts = () if isinstance(rules, Snapshot | Source) or is_elsewhere(rules) else engine.facts
        limiter = Limiter(
            rules,
            store=self._here,
            clock=engine.clock,
            name=name,
            failure_mode=mode,
            facts=facts,
            on_refused=engine.on_refused,
        )
        if self._heartbeat is not None and limiter._heartbeat is not None:
            self._heartbeat.siblings.add(limiter._heartbeat)
        return limiter

    def give_back(self, decision: Decision) -> None:
        """Refund what an allowed `decision` of this limiter, or of another on the same store, has just charged.

        For a request that something else refuses. Each decision is refunded once, and only for what it charged itself:
        nothing for a peek, a repetition by idempotency key, or a copy. If the store cannot be reached, the charge
        stays.
        """
        self._reservations.give_back(decision)

    def correct(self, decision: Decision, cost: Cost) -> None:
        """Change what `decision` charged for a request to the actual `cost`.

        A higher cost is charged even if it does not fit, as with `settle`. Unlike `settle`, this needs the decision,
        not a record in the store. Only the first call of this or of `give_back` for a decision has an effect, and none
        has if the decision charged nothing itself. If the store cannot be reached, the charge stays.
        """
        self._reservations.correct(decision, checked_cost(cost))

    def ready(self) -> bool:
        """Return True if the store answers. Use it at start, or in a health check. Charges nothing.

        Raises `StoreError` with the reason if it does not. The rules are loaded when the limiter is created.
        """
        require_decided(self._here.check(PROBE))
        return True

    def reload(self) -> Snapshot:
        """Read the rules file again now, and return the rules in force.

        Raises `InvalidRule`, with every problem, if the file is invalid. The rules then stay as they were.
        """
        return self._engine.reload()

    def close(self) -> None:
        """Stop watching the rules file, and close the store's connections if this limiter opened them."""
        self._engine.close()
        if "_slots" in vars(self):
            self._slots.close()
        if self._leasing is not None:
            self._leasing.close()
        if self._heartbeat is not None:
            self._heartbeat.close()
        if self._region_store is not None:
            self._region_store.close()
        if self._owned:
            self._here.close()

    def __enter__(self) -> Self:
        """Return the limiter itself, which the end of the block closes. Nothing is checked or charged."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close the limiter. Exceptions propagate."""
        self.close()

    def store_answers(self) -> None:
        """End an outage because the store was seen to answer. Without checks, nothing else would notice it."""
        engine = self._engine
        if engine.fallback.outage.note_probe() and engine.heartbeat is not None:
            engine.heartbeat.wake()

    def leases(self) -> LeaseStatus:
        """Return figures about leased rules: decisions without the store, and the slices that are held."""
        from headgate.features.leases.status import LeaseStatus  # noqa: PLC0415

        return LeaseStatus() if self._leasing is None else self._leasing.status()

    def regions(self) -> RegionStatus:
        """Return figures about the rules that several regions share, and the state of the other regions."""
        from headgate.features.regions.region import RegionStatus  # noqa: PLC0415

        return RegionStatus() if self._region_store is None else self._region_store.status()
