"""The data plane over HTTP: `/v1/check`, `/v1/check/batch`, `/v1/peek` and `/v1/reset`, as plain ASGI handlers."""

from __future__ import annotations

from time import perf_counter
from typing import Any, Final

from headgate.core.decision import Decision
from headgate.errors import InvalidCheck
from headgate.http.asgi import Receive, Scope
from headgate.http.headers import render
from headgate.service.access import Access, Role
from headgate.service.data import DataPlane
from headgate.service.rest.asks import ask_of, asks_of, decoded
from headgate.service.rest.decisions import encoded
from headgate.service.rest.exchange import (
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

MAX_CHECK: Final = 1 << 20  # bytes of a body with one check
MAX_CHECKS: Final = 4 << 20  # bytes of a body with many

_JSON: Final = (b"content-type", b"application/json")


class DataHandlers:
    """Handlers of the data plane's routes. Each raises what it cannot answer: see `problems`."""

    def __init__(self, data: DataPlane, access: Access) -> None:
        self._data = data
        self._access = access

    async def check(self, scope: Scope, receive: Receive) -> Answer:
        """Decide a request and charge it: 200, or the status of the rule that refuses."""
        began = perf_counter()
        facts, cost, key = ask_of(await self._value(scope, receive))
        decision = await self._data.check(facts, cost, key)
        answer = _told(decision, cost)
        self._data.meter.took("http", perf_counter() - began)
        return answer

    async def check_many(self, scope: Scope, receive: Receive) -> Answer:
        """Decide many requests, in order. All of them are looked at before any is charged."""
        began = perf_counter()
        asks = asks_of(await self._value(scope, receive, limit=MAX_CHECKS))
        decisions = await self._data.check_many(asks) if asks else []
        body = f'{{"decisions":[{",".join([encoded(decision) for decision in decisions])}]}}'
        answer = json_answer(200, body.encode("ascii"))
        self._data.meter.took("http", perf_counter() - began, len(asks))
        return answer

    async def peek(self, scope: Scope, receive: Receive) -> Answer:
        """What a check would say. The answer is 200 either way: the question was answered."""
        facts, cost, _ = ask_of(await self._value(scope, receive))
        return json_answer(200, encoded(await self._data.peek(facts, cost)).encode("ascii"))

    async def reset(self, scope: Scope, receive: Receive) -> Answer:
        """Forget what these facts have used."""
        facts, _, _ = ask_of(await self._value(scope, receive, role="operator"))
        await self._data.reset(facts)
        return Answer(204, [])

    async def _value(self, scope: Scope, receive: Receive, *, limit: int = MAX_CHECK, role: Role = "viewer") -> Any:
        """The JSON of a request whose caller may make it."""
        headers: Headers = dict(scope["headers"])
        if not self._access.open:
            await self._access.require_data(bearer_of(headers), role, address_of(scope))
        admit(scope)
        require_json(headers)
        body = await body_of(headers, receive, limit)
        try:
            return decoded(body)
        except InvalidCheck:
            require_plain(headers)
            raise


def _told(decision: Decision, cost: int) -> Answer:
    body = encoded(decision).encode("ascii")
    headers = render(decision, cost)
    headers += (_JSON, (b"content-length", b"%d" % len(body)))
    return Answer(200 if decision.allowed else decision.status, headers, body)
