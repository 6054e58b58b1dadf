"""Litestar. Its handlers' annotations are read when they are made."""

from typing import Any

from litestar import Litestar, Request, WebSocket, get, post, route, websocket
from litestar.response import Stream

from tests.acceptance.apps import common


async def start(app: Litestar) -> None:
    app.state.name = "lifespan"


@route([*common.PLAIN], http_method=["GET", "POST"], media_type="text/plain", status_code=200)
async def reached(request: Request[Any, Any, Any]) -> str:
    return f"reached by {request.app.state.name}"


@get(["/exact", "/one/{name:str}", "/files", "/files/{name:path}"], media_type="text/plain")
async def narrow() -> str:
    return "narrow"


@get("/boom")
async def boom() -> None:
    raise ZeroDivisionError


@get("/events")
async def events(request: Request[Any, Any, Any]) -> Stream:
    return Stream(common.events(request.headers["x-user"]), media_type="text/event-stream")


@get("/big")
async def big() -> Stream:
    return Stream(common.big())


@post("/upload", status_code=200)
async def upload(request: Request[Any, Any, Any]) -> dict[str, int]:
    return await common.taken(request.headers["x-user"], request.stream())


@websocket("/ws")
async def echo(socket: WebSocket[Any, Any, Any]) -> None:
    await socket.accept()
    await socket.send_text(await socket.receive_text())
    await socket.close()


inner = Litestar([reached, narrow, boom, events, big, upload, echo], on_startup=[start])
app = common.guarded(inner)
