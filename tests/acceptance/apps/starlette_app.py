"""Starlette."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from tests.acceptance.apps import common


async def reached(request: Request) -> Response:
    return PlainTextResponse(f"reached by {request.state.name}")


async def narrow(request: Request) -> Response:
    return PlainTextResponse("narrow")


async def boom(request: Request) -> Response:
    raise ZeroDivisionError


async def events(request: Request) -> Response:
    return StreamingResponse(common.events(request.headers["x-user"]), media_type="text/event-stream")


async def big(request: Request) -> Response:
    return StreamingResponse(common.big())


async def upload(request: Request) -> Response:
    return JSONResponse(await common.taken(request.headers["x-user"], request.stream()))


async def echo(socket: WebSocket) -> None:
    await socket.accept()
    await socket.send_text(await socket.receive_text())
    await socket.close()


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[dict[str, str]]:
    yield {"name": "lifespan"}


inner = Starlette(
    routes=[
        *(Route(path, reached, methods=["GET", "POST"]) for path in common.PLAIN),
        *(Route(path, narrow) for path in ("/exact", "/one/{name}", "/files/{name:path}")),
        Route("/boom", boom),
        Route("/events", events),
        Route("/big", big),
        Route("/upload", upload, methods=["POST"]),
        WebSocketRoute("/ws", echo),
    ],
    lifespan=lifespan,
)
app = common.guarded(inner)
