"""Chats by WebSockets, whose messages are limited in three ways."""

from __future__ import annotations

from fastapi import Depends, FastAPI, WebSocket
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute

from headgate import AsyncLimiter, Rule
from headgate.http import fastapi, starlette


async def chat(websocket: WebSocket) -> None:
    await websocket.accept()
    async for text in websocket.iter_text():
        await websocket.send_text(text)


by_route = FastAPI()
fastapi.install(by_route, limiter=AsyncLimiter([Rule(id="handshakes", quota="3/day", dimension="ip")]))
by_route.websocket("/chat", dependencies=[Depends(fastapi.limit_messages("2/day", name="messages"))])(chat)

decorated = Starlette(routes=[WebSocketRoute("/chat", starlette.limit_messages("2/day")(chat))])
starlette.install(decorated, limiter=AsyncLimiter([]))

by_middleware = Starlette(routes=[WebSocketRoute("/chat", chat)])
starlette.install(by_middleware, limiter=AsyncLimiter([]), messages="2/day")
