"""WebSockets under a server that cannot answer a handshake with a response: none of those at hand is one."""

from __future__ import annotations

import asyncio

import pytest

from headgate import AsyncLimiter
from headgate.http.asgi import Message, RateLimitMiddleware, Receive, Scope, Send

SCOPE: Scope = {"type": "websocket", "path": "/ws", "headers": [], "client": ("192.0.2.1", 1)}


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "websocket.accept"})


@pytest.mark.parametrize("extensions", [{}, {"extensions": {}}, {"extensions": {"websocket.http.response": {}}}])
def test_it_is_closed_or_answered(extensions: dict[str, dict[str, object]]) -> None:
    async def scenario() -> None:
        guarded = RateLimitMiddleware(app, limiter=AsyncLimiter("1/day"))
        sent: list[Message] = []
        received = 0

        async def receive() -> Message:
            nonlocal received
            received += 1
            return {"type": "websocket.connect"}

        async def send(message: Message) -> None:
            sent.append(message)

        for _ in range(2):
            await guarded({**SCOPE, **extensions}, receive, send)
        accepted, *refusal = sent
        assert (b"x-ratelimit-remaining", b"0") in accepted["headers"]
        assert received == 2
        kinds = [message["type"] for message in refusal]
        if extensions.get("extensions"):
            assert kinds == ["websocket.http.response.start", "websocket.http.response.body"]
        else:
            assert kinds == ["websocket.close"]
            assert refusal[0]["code"] == 1013

    asyncio.run(scenario())
