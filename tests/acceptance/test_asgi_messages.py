"""Limits on the messages of WebSockets, under uvicorn, with a real client."""

from __future__ import annotations

import asyncio

import pytest
from fastapi import Depends, FastAPI, WebSocket
from websockets.exceptions import ConnectionClosedError
from websockets.sync.client import connect

from headgate import AsyncLimiter, InvalidRule
from headgate.http.fastapi import install, limit_messages
from tests.webserver import serving, stay_clear_of_the_hour


@pytest.mark.parametrize("app", ["by_route", "decorated", "by_middleware"])
def test_a_message_over_the_limit_closes_the_websocket(app: str) -> None:
    stay_clear_of_the_hour()
    with serving("uvicorn", f"tests.acceptance.apps.chat_app:{app}") as url:
        address = f"{url.replace('http', 'ws')}/chat"
        with connect(address) as first, connect(address) as second:
            for chat in (first, second):  # a client's WebSockets count together
                chat.send("hello")
                assert chat.recv(timeout=5) == "hello"
            first.send("once too often")
            with pytest.raises(ConnectionClosedError) as closed:
                first.recv(timeout=5)
            assert closed.value.rcvd is not None
            assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1013, "Rate limit exceeded")


def test_without_the_middleware_it_fails_loudly() -> None:
    app = FastAPI()

    @app.websocket("/", dependencies=[Depends(limit_messages("1/day"))])
    async def chat(websocket: WebSocket) -> None:
        await websocket.accept()

    async def open_chat() -> None:
        async def receive() -> dict[str, object]:
            return {"type": "websocket.connect"}

        async def send(_: object) -> None: ...

        scope = {"type": "websocket", "path": "/", "headers": [], "query_string": b"", "client": ("192.0.2.1", 1)}
        await app(scope, receive, send)

    with pytest.raises(InvalidRule, match="needs the middleware"):
        asyncio.run(open_chat())


def test_messages_have_neither_responses_nor_slots() -> None:
    with pytest.raises(InvalidRule, match="a message has no response"):
        limit_messages("1/day", deduct_when=bool)
    with pytest.raises(InvalidRule, match="hold no slots"):
        install(FastAPI(), limiter=AsyncLimiter([]), messages="3 concurrent")
