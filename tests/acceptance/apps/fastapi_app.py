"""FastAPI."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request, WebSocket
from fastapi.responses import PlainTextResponse, StreamingResponse

from tests.acceptance.apps import common


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, str]]:
    yield {"name": "lifespan"}


inner = FastAPI(lifespan=lifespan)


async def reached(request: Request) -> PlainTextResponse:
    return PlainTextResponse(f"reached by {request.state.name}")


for path in common.PLAIN:
    inner.get(path)(reached)
    inner.post(path)(reached)


@inner.get("/exact")
@inner.get("/one/{name}")
@inner.get("/files/{name:path}")
async def narrow() -> PlainTextResponse:
    return PlainTextResponse("narrow")


@inner.get("/boom")
async def boom() -> None:
    raise ZeroDivisionError


@inner.get("/events")
async def events(request: Request) -> StreamingResponse:
    return StreamingResponse(common.events(request.headers["x-user"]), media_type="text/event-stream")


@inner.get("/big")
async def big() -> StreamingResponse:
    return StreamingResponse(common.big())


@inner.post("/upload")
async def upload(request: Request) -> dict[str, int]:
    return await common.taken(request.headers["x-user"], request.stream())


@inner.websocket("/ws")
async def echo(socket: WebSocket) -> None:
    await socket.accept()
    await socket.send_text(await socket.receive_text())
    await socket.close()


app = common.guarded(inner)
