"""Limits: what was decided on one request. Apps find it where their framework keeps what belongs to a request."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

from headgate.core.cost import Cost, cost_of_units
from headgate.core.decision import Decision
from headgate.core.decision_factory import uncharged
from headgate.http.headers import Charged, Fields, RawFields, binding, fields_of, raw_fields_of, render
from headgate.limiter.async_limiter import AsyncLimiter
from headgate.limiter.limiter import Limiter
from headgate.rules.snapshot import HeaderStyle

NAME: Final = "headgate"  # in request.state, scope["state"], flask.g, and of Django's request
L = TypeVar("L", Limiter, AsyncLimiter)
DeductWhen = Callable[[Any], Any]  # of a response: whether a request is charged, or something to await for it


class Limits(Generic[L]):
    """The decisions on a request, and the means to make more of them for the same client.

    Each limit that decides the request adds itself to `charged`; the outermost middleware writes the headers.
    """

    __slots__ = ("_charged", "_given_back", "conditions", "facts", "limiter", "slots", "sole", "style")

    def __init__(self, limiter: L, facts: Mapping[str, str], sole: Decision | None = None) -> None:
        """`sole` is what `limiter` has decided, at cost 1, if that is all so far: it is all for most requests."""
        self.limiter: L = limiter
        self.facts = facts
        self.sole = sole  # None once `charged` was read
        self.style: HeaderStyle | None = None  # None: that of the limiter's rules
        self._charged: list[Charged] = []
        self._given_back = False
        # Of decisions, by their index: if there are any, the response's sender must call `conclude`.
        self.conditions: tuple[tuple[int, DeductWhen], ...] = ()
        self.slots: list[Any] = []  # that the request holds until the middleware releases them, when the response ends
        if sole is not None and sole.reading.plan.slots:
            self._add_slot(sole)

    @property
    def charged(self) -> list[Charged]:
        """What was decided, in order."""
        if self.sole is not None:
            self._charged.append(Charged(self.sole, 1, self.limiter))
            self.sole = None
        return self._charged

    def add(self, decision: Decision, cost: Cost, limiter: Limiter | AsyncLimiter | None) -> None:
        """Add what a limiter has decided on the request."""
        self.charged.append(Charged(decision, cost, limiter))
        self._add_slot(decision)

    def _add_slot(self, decision: Decision) -> None:
        """Remember the slot that a decision has taken, if it has taken one."""
        slot = getattr(decision, "slot", None)
        if slot is not None:
            self.slots.append(slot)

    def release(self) -> None:
        """Release the slots that the request holds, as it is over: by `Limiter`s. Again, it does nothing."""
        slots, self.slots = self.slots, []
        for slot in slots:
            slot.release()

    async def release_async(self) -> None:
        """Release them by `AsyncLimiter`s."""
        slots, self.slots = self.slots, []
        for slot in slots:
            await slot.release()

    def is_exempt(self, limiter: Limiter | AsyncLimiter) -> bool:
        """Whether the request is exempt from limits of `limiter`: by its rules, or by `exempt_when` of the
        middleware."""
        if any(one.decision.reason == "exempt" for one in self.charged):
            return True
        return limiter.snapshot.is_exempt(self.facts)

    def charge_only_when(self, deduct_when: DeductWhen) -> None:
        """Give back what the last decision charged unless `deduct_when`, a function of the response, returns True."""
        if self.charged[-1].decision.limits:  # else nothing was charged
            self.conditions += ((len(self.charged) - 1, deduct_when),)

    def conclude(self, response: Any) -> None:
        """Give back what the response says is not charged: by `Limiter`s. Again, it does nothing."""
        conditions, self.conditions = self.conditions, ()
        for index, deduct_when in conditions:
            if not deduct_when(response):
                for decision, _, limiter in self._spare(index):
                    limiter.give_back(decision)

    async def conclude_async(self, response: Any) -> None:
        """Give it back by `AsyncLimiter`s. Functions may be async."""
        conditions, self.conditions = self.conditions, ()
        for index, deduct_when in conditions:
            wanted = deduct_when(response)
            if not (await wanted if inspect.isawaitable(wanted) else wanted):
                for decision, _, limiter in self._spare(index):
                    await limiter.give_back(decision)

    @property
    def refused(self) -> bool:
        """Whether a limit has already refused the request: later limits must not charge it."""
        return self._given_back

    def give_back(self) -> None:
        """Undo what was charged for the request, as it is refused: by `Limiter`s. Again, it does nothing."""
        for decision, _, limiter in self._undone():
            limiter.give_back(decision)

    async def give_back_async(self) -> None:
        """Undo it by `AsyncLimiter`s."""
        for decision, _, limiter in self._undone():
            await limiter.give_back(decision)

    def refuse(self) -> None:
        """Undo what was charged for the request, and call the hook `on_refused`: by `Limiter`s. Again, it does
        nothing."""
        if not self._given_back:
            self.give_back()
            limiter: Any = self.limiter  # of either kind
            limiter.tell_refused(self.decision, self.facts)

    async def refuse_async(self) -> None:
        """Do so by `AsyncLimiter`s."""
        if not self._given_back:
            await self.give_back_async()
            limiter: Any = self.limiter
            await limiter.tell_refused(self.decision, self.facts)

    def correct(self, index: int, cost: Cost) -> None:
        """Charge `cost` in all for the decision at `place`: what the request cost in the end. By a `Limiter`."""
        if not self._given_back:
            decision, _, limiter = self.charged[index]
            self.charged[index] = Charged(decision, cost, limiter)
            limiter.correct(decision, cost)

    async def correct_async(self, index: int, cost: Cost) -> None:
        """Reserve with an `AsyncLimiter`."""
        if not self._given_back:
            decision, _, limiter = self.charged[index]
            self.charged[index] = Charged(decision, cost, limiter)
            await limiter.correct(decision, cost)

    def reserve(self, cost: Cost | None = None, /, *, ttl: float = 60.0, **units: int) -> Any:
        """Reserve for this request's client: `reserve(tokens=4_000)` by rules that count tokens.

        See `Limiter.reserve`. Awaited, if the limiter is an `AsyncLimiter`.
        """
        return self.limiter.reserve(cost=cost_of_units(cost, units), ttl=ttl, **self.facts)

    def _undone(self) -> list[Charged]:
        """Return the charges to refund, once. From then on, headers omit them."""
        if self._given_back:
            return []
        self._given_back = True
        undone = [one for one in self.charged if one.decision.allowed and one.limiter is not None]
        self._charged[:] = [
            one._replace(decision=uncharged(one.decision)) if one.decision.allowed else one for one in self._charged
        ]
        return undone

    def _spare(self, index: int) -> list[Charged]:
        """What the decision at `place` charged, if it is to be given back. From then on, it counts as never charged."""
        one = self.charged[index]
        if self._given_back or not one.decision.allowed or one.limiter is None:
            return []
        self.charged[index] = one._replace(decision=uncharged(one.decision))
        return [one]

    @property
    def decision(self) -> Decision:
        """The decision that binds: of those on this request, that of the most restrictive limit."""
        return binding(self.charged).decision

    @property
    def fields(self) -> Fields:
        """The header fields that tell of them."""
        return fields_of(self.charged, self.style or self.limiter.holder.current.headers)

    @property
    def raw_fields(self) -> RawFields:
        """Return the header fields in ASGI's form."""
        style = self.style or self.limiter.holder.current.headers
        return raw_fields_of(self.charged, style) if self.sole is None else render(self.sole, 1, style)
