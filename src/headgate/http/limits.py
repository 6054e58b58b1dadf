"""Limits: what was decided on one request. Apps find it where their framework keeps what belongs to a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Generic, TypeVar

from headgate.core.cost import Cost, cost_of_units
from headgate.core.decision import Decision
from headgate.core.decision_factory import uncharged
from headgate.http.headers import Charged, Fields, RawFields, binding, fields_of, raw_fields_of, render
from headgate.limiter.async_limiter import AsyncLimiter
from headgate.limiter.limiter import Limiter

NAME: Final = "headgate"  # in request.state, scope["state"], flask.g, and of Django's request
L = TypeVar("L", Limiter, AsyncLimiter)


class Limits(Generic[L]):
    """The decisions on a request, and the means to make more of them for the same client.

    Whoever decides something on the request adds it to `charged`; the outermost middleware tells the client of all.
    """

    __slots__ = ("_charged", "_given_back", "_slots", "facts", "limiter", "sole")

    def __init__(self, limiter: L, facts: Mapping[str, str], sole: Decision | None = None) -> None:
        """`sole` is what `limiter` has decided, at cost 1, if that is all so far: it is all for most requests."""
        self.limiter: L = limiter
        self.facts = facts
        self.sole = sole  # None once somebody has asked for `charged`
        self._charged: list[Charged] = []
        self._given_back = False
        slot = None if sole is None else getattr(sole, "slot", None)
        self._slots: list[Any] = [] if slot is None else [slot]  # held until the response has ended

    @property
    def holds(self) -> bool:
        """Whether the request holds slots: whoever made this releases them at the end of the response."""
        return bool(self._slots)

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
        slot = getattr(decision, "slot", None)
        if slot is not None:
            self._slots.append(slot)

    def release(self) -> None:
        """Release the slots that the request holds, as it is over: by `Limiter`s. Again, it does nothing."""
        slots, self._slots = self._slots, []
        for slot in slots:
            slot.release()

    async def release_async(self) -> None:
        """Release them by `AsyncLimiter`s."""
        slots, self._slots = self._slots, []
        for slot in slots:
            await slot.release()

    @property
    def refused(self) -> bool:
        """Whether something has refused the request already: whoever is asked after that must not charge for it."""
        return self._given_back

    def give_back(self) -> None:
        """Undo what was charged for the request, as it is refused now: by `Limiter`s."""
        for decision, _, limiter in self._undone():
            limiter.give_back(decision)

    async def give_back_async(self) -> None:
        """The same by `AsyncLimiter`s."""
        for decision, _, limiter in self._undone():
            await limiter.give_back(decision)

    def correct(self, index: int, cost: Cost) -> None:
        """Charge `cost` in all for the decision at `index`: what the request cost in the end. By a `Limiter`."""
        if not self._given_back:
            decision, _, limiter = self.charged[index]
            self.charged[index] = Charged(decision, cost, limiter)
            limiter.correct(decision, cost)

    async def correct_async(self, index: int, cost: Cost) -> None:
        """The same by an `AsyncLimiter`."""
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
        """What is to be given back: once. From then on, it is told of as if it had never been charged."""
        if self._given_back:
            return []
        self._given_back = True
        undone = [one for one in self.charged if one.decision.allowed and one.limiter is not None]
        self._charged[:] = [
            one._replace(decision=uncharged(one.decision)) if one.decision.allowed else one for one in self._charged
        ]
        return undone

    @property
    def decision(self) -> Decision:
        """The decision that binds: of those on this request, that of the most restrictive limit."""
        return binding(self.charged).decision

    @property
    def fields(self) -> Fields:
        """The header fields that tell of them."""
        return fields_of(self.charged)

    @property
    def raw_fields(self) -> RawFields:
        """The same as ASGI wants them."""
        return raw_fields_of(self.charged) if self.sole is None else render(self.sole)
