"""Limits: the decisions on one request. Apps find it where their framework keeps a request's data."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

from headgate.core.cost import Cost, cost_of_units, final_cost
from headgate.core.decision import Decision
from headgate.core.decision_factory import decision_after_refund
from headgate.http.headers import Charged, Fields, RawFields, binding, fields_of, raw_fields_of
from headgate.limiter.async_limiter import AsyncLimiter
from headgate.limiter.limiter import Limiter
from headgate.rules.snapshot import HeaderStyle

NAME: Final = "headgate"  # the attribute or key in request.state, scope["state"], flask.g and Django's request
L = TypeVar("L", Limiter, AsyncLimiter)
_new: Final[Any] = tuple.__new__  # makes a named tuple in half the time of calling its class
DeductWhen = Callable[[Any], Any]  # takes the response; returns whether to charge the request, or an awaitable


class Limits(Generic[L]):
    """The decisions on a request, with its client's facts for further checks.

    Each limit adds its decision to `charged`; the outermost middleware writes the headers.
    """

    __slots__ = ("_given_back", "charged", "conditions", "facts", "is_over", "limiter", "slots", "style")

    def __init__(self, limiter: L, facts: Mapping[str, str], style: HeaderStyle | None = None) -> None:
        self.limiter: L = limiter
        self.facts = facts
        self.style = style  # None: the style of the limiter's rules
        self.charged: list[Charged] = []  # the decisions in order, with cost and limiter
        self._given_back = False
        # The decision's index, the function, and the final cost if the app has reported one. If there are any, the
        # middleware must call `conclude` with the response.
        self.conditions: tuple[tuple[int, DeductWhen, Cost | None], ...] = ()
        self.slots: list[Any] = []  # held until the middleware releases them at the response's end
        self.is_over = False  # whether the middleware has released the slots

    def add(self, decision: Decision, cost: Cost, limiter: Limiter | AsyncLimiter | None) -> None:
        """Add a limiter's decision on the request, and keep the slot that it took, if any."""
        self.charged.append(_new(Charged, (decision, cost, limiter)))
        if decision.reading.plan.slots:
            slot = getattr(decision, "slot", None)
            if slot is not None:
                self.slots.append(slot)

    def release(self) -> None:
        """Release the request's slots, held with `Limiter`s. A second call does nothing."""
        self.is_over = True
        slots, self.slots = self.slots, []
        for slot in slots:
            slot.release()

    async def release_async(self) -> None:
        """Release the request's slots, held with `AsyncLimiter`s: all of them, even if the caller is cancelled."""
        self.is_over = True
        while self.slots:
            try:
                await self.slots.pop().release()
            except BaseException:
                await self.release_async()
                raise

    def is_exempt(self, limiter: Limiter | AsyncLimiter) -> bool:
        """Return whether the request is exempt from the limits of `limiter`: by its rules, or by `exempt_when` of the
        middleware."""
        if any(one.decision.reason == "exempt" for one in self.charged):
            return True
        return limiter.snapshot.is_exempt(self.facts)

    def charge_only_when(self, deduct_when: DeductWhen) -> None:
        """Refund the last decision's charge unless `deduct_when`, a function of the response, returns True."""
        if self.charged[-1].decision.limits:  # otherwise nothing was charged
            self.conditions += ((len(self.charged) - 1, deduct_when, None),)

    def conclude(self, response: Any) -> None:
        """Refund the charges that `deduct_when` functions reject for this response, and correct the others. A second
        call does nothing."""
        conditions, self.conditions = self.conditions, ()
        for index, deduct_when, cost in conditions:
            if not deduct_when(response):
                for decision, _, limiter in self._spare(index):
                    limiter.give_back(decision)
            elif cost is not None:
                self.correct(index, cost)

    async def conclude_async(self, response: Any) -> None:
        """Async counterpart of `conclude`. Functions may be async."""
        conditions, self.conditions = self.conditions, ()
        for index, deduct_when, cost in conditions:
            wanted = deduct_when(response)
            if not (await wanted if inspect.isawaitable(wanted) else wanted):
                for decision, _, limiter in self._spare(index):
                    await limiter.give_back(decision)
            elif cost is not None:
                await self.correct_async(index, cost)

    @property
    def refused(self) -> bool:
        """Whether a limit has already refused the request: later limits must not charge it."""
        return self._given_back

    def give_back(self) -> None:
        """Refund all charges of a refused request. A second call does nothing."""
        for decision, _, limiter in self._take_charges():
            limiter.give_back(decision)

    async def give_back_async(self) -> None:
        """Async counterpart of `give_back`."""
        for decision, _, limiter in self._take_charges():
            await limiter.give_back(decision)

    def refuse(self) -> None:
        """Refund all charges of a refused request, and call the hook `on_refused`. A second call does nothing."""
        if not self._given_back:
            self.give_back()
            limiter: Any = self.limiter  # sync or async
            limiter.tell_refused(self.decision, self.facts)

    async def refuse_async(self) -> None:
        """Async counterpart of `refuse`."""
        if not self._given_back:
            await self.give_back_async()
            limiter: Any = self.limiter
            await limiter.tell_refused(self.decision, self.facts)

    def correct(self, index: int, cost: Cost) -> None:
        """Correct the charge of the decision at `index` to `cost`, the request's final cost.

        If a `deduct_when` has yet to say whether the request is charged at all, `conclude` does it.
        """
        for decision, _, limiter in self._take_correction(index, cost):
            limiter.correct(decision, cost)

    async def correct_async(self, index: int, cost: Cost) -> None:
        """Async counterpart of `correct`."""
        for decision, _, limiter in self._take_correction(index, cost):
            await limiter.correct(decision, cost)

    def reserve(self, cost: Cost | None = None, /, *, ttl: float = 60.0, **units: int) -> Any:
        """Reserve for this request's client, as `reserve(tokens=4_000)` for rules that count tokens.

        See `Limiter.reserve`. Await the result if the limiter is an `AsyncLimiter`.
        """
        return self.limiter.reserve(cost=cost_of_units(cost, units), ttl=ttl, **self.facts)

    def _take_charges(self) -> list[Charged]:
        """Return the charges to refund, once. From then on, headers omit them."""
        if self._given_back:
            return []
        self._given_back = True
        undone = [one for one in self.charged if one.decision.allowed and one.limiter is not None]
        self.charged[:] = [
            one._replace(decision=decision_after_refund(one.decision)) if one.decision.allowed else one
            for one in self.charged
        ]
        return undone

    def _take_correction(self, index: int, cost: Cost) -> list[Charged]:
        """Return the charge to correct now, if any, and note its cost for the headers."""
        one = self.charged[index]
        if self._given_back or getattr(one.decision, "settled", False):  # it was refunded
            return []
        if any(at == index for at, _, _ in self.conditions):
            self.conditions = tuple([(at, when, cost if at == index else old) for at, when, old in self.conditions])
            return []
        self.charged[index] = one._replace(cost=final_cost(one.cost, cost))
        return [one]

    def _spare(self, index: int) -> list[Charged]:
        """Return the charge to refund for the decision at `index`, if any, and mark the decision as not charged."""
        one = self.charged[index]
        if self._given_back or not one.decision.allowed or one.limiter is None:
            return []
        self.charged[index] = one._replace(decision=decision_after_refund(one.decision))
        return [one]

    @property
    def decision(self) -> Decision:
        """The binding decision: a refusal if there is one, else the most restrictive limit's."""
        return binding(self.charged).decision

    @property
    def fields(self) -> Fields:
        """The response's header fields."""
        return fields_of(self.charged, self.style or self.limiter.holder.current.headers)

    @property
    def raw_fields(self) -> RawFields:
        """The response's header fields in ASGI's form."""
        return raw_fields_of(self.charged, self.style or self.limiter.holder.current.headers)
