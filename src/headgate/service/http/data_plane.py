"""The data plane over HTTP, as plain ASGI handlers: `/v1/check`, `/v1/acquire`, `/v1/peek` and others."""

from __future__ import annotations

from time import perf_counter
from typing import Any, Final

from headgate.core.cost import Cost
from headgate.core.decision import Decision
from headgate.errors import InvalidCheck
from headgate.http.asgi import Receive, Scope
from headgate.http.headers import raw, render
from headgate.http.problem import decision_field
from headgate.operations.caller import Role
from headgate.rules.facts import FactNames
from headgate.service.access import Access
from headgate.service.data_plane import DataPlane
from headgate.service.http.decisions import encode_decision
from headgate.service.http.exchange import (
    Answer,
    Headers,
    address_of,
    admit,
    bearer_of,
    body_of,
    json_answer,
    require_json,
    require_plain,
)
from headgate.service.http.request_bodies import ask_of, asks_of, decode, slot_of

MAX_CHECK: Final = 1 << 20  # bytes of a body with one check
MAX_CHECKS: Final = 4 << 20  # bytes of a body with many

_new: Final[Any] = tuple.__new__  # makes a named tuple in half the time of calling its class
_JSON: Final = (b"content-type", b"application/json")


class DataHandlers:
    """Handlers of the data plane's routes. `problems` turns their exceptions into responses."""

    def __init__(self, data: DataPlane, access: Access) -> None:
        self._data = data
        self._access = access

    async def check(self, scope: Scope, receive: Receive) -> Answer:
        """Decide a request and charge it: 200, or the status of the rule that refuses."""
        began = perf_counter()
        facts, cost, key, _ = ask_of(await self._value(scope, receive), self._names)
        decision = self._data.begin(facts, cost, key)
        if not isinstance(decision, Decision):
            decision = await decision
        answer = self._answer_of(decision, cost)
        self._data.meter.record_call("http", perf_counter() - began)
        return answer

    async def acquire(self, scope: Scope, receive: Receive) -> Answer:
        """Decide a request, and return the slot that it holds until released: 200, or the rule's status."""
        began = perf_counter()
        facts, cost, key, _ = ask_of(await self._value(scope, receive), self._names)
        if key is not None:
            raise InvalidCheck("idempotency_key: not supported by /v1/acquire, where every call takes a new slot")
        decision = await self._data.check(facts, cost, slots="lend")
        answer = self._answer_of(decision, cost, _slot_fields(decision))
        self._data.meter.record_call("http", perf_counter() - began)
        return answer

    async def release(self, scope: Scope, receive: Receive) -> Answer:
        """Release a slot: 200, even if it was no longer held."""
        held = await self._data.release(slot_of(await self._value(scope, receive)))
        return json_answer(200, b'{"released":true}' if held else b'{"released":false}')

    async def renew(self, scope: Scope, receive: Receive) -> Answer:
        """Extend a slot by its ttl: 200, even if it was no longer held."""
        held = await self._data.renew(slot_of(await self._value(scope, receive)))
        return json_answer(200, b'{"renewed":true}' if held else b'{"renewed":false}')

    async def check_many(self, scope: Scope, receive: Receive) -> Answer:
        """Decide many requests in order. All are validated before any is charged."""
        began = perf_counter()
        asks = asks_of(await self._value(scope, receive, limit=MAX_CHECKS), self._names)
        decisions = await self._data.check_many(asks) if asks else []
        body = f'{{"decisions":[{",".join([encode_decision(decision) for decision in decisions])}]}}'
        answer = json_answer(200, body.encode("ascii"))
        self._data.meter.record_call("http", perf_counter() - began, len(asks))
        return answer

    async def peek(self, scope: Scope, receive: Receive) -> Answer:
        """Return what a check would decide, and charge nothing: 200, even for a refusal."""
        facts, cost, _, _ = ask_of(await self._value(scope, receive), self._names)
        return json_answer(200, encode_decision(await self._data.peek(facts, cost)).encode("ascii"))

    async def reset(self, scope: Scope, receive: Receive) -> Answer:
        """Reset the counts of these facts."""
        facts, _, _, _ = ask_of(await self._value(scope, receive, role="operator"), self._names)
        await self._data.reset(facts)
        return Answer(204, [])

    @property
    def _names(self) -> FactNames:
        """The names of facts that the current rules know."""
        return self._data.limiter.holder.current.fact_names

    def _answer_of(self, decision: Decision, cost: Cost, more: str = "") -> Answer:
        """Return the answer to a decision. `more` are further fields of its JSON."""
        snapshot = self._data.limiter.holder.current
        body = encode_decision(decision, more).encode("ascii")
        headers = render(decision, cost, snapshot.headers)
        headers += (_JSON, (b"content-length", b"%d" % len(body)))
        if decision.allowed:
            answer: Answer = _new(Answer, (200, headers, body))
            return answer
        return Answer(decision.status, headers + raw(decision_field(decision, snapshot)), body)

    async def _value(self, scope: Scope, receive: Receive, *, limit: int = MAX_CHECK, role: Role = "viewer") -> Any:
        """Return the JSON of a request, after checking that its caller may make it."""
        headers: Headers = dict(scope["headers"])
        if not self._access.open:  # otherwise the app has admitted it
            await self._access.require_data(bearer_of(headers), role, address_of(scope))
            admit(scope)
        require_json(headers)
        body = await body_of(headers, receive, limit)
        try:
            return decode(body)
        except InvalidCheck:
            require_plain(headers)
            raise


def _slot_fields(decision: Decision) -> str:
    """Return the fields that `/v1/acquire` adds to the decision; null if no slot is held."""
    slot = getattr(decision, "slot", None)
    return ',"slot":null,"ttl":null' if slot is None else f',"slot":"{slot.id}","ttl":{slot.ttl!r}'
