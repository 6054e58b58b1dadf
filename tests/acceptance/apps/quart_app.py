"""Quart."""

from __future__ import annotations

from quart import Quart, Response, request, websocket

from tests.acceptance.apps import common

inner = Quart(__name__)
inner.config["MAX_CONTENT_LENGTH"] = None
names: list[str] = []


@inner.before_serving
async def start() -> None:
    names.append("lifespan")


async def reached() -> str:
    return f"reached by {names[0]}"


for path in common.PLAIN:
    inner.route(path, endpoint=path, methods=["GET", "POST"])(reached)


@inner.get("/exact")
@inner.get("/one/<name>")
@inner.get("/files/<path:name>")
async def narrow(name: str = "") -> str:
    return "narrow"


@inner.get("/boom")
async def boom() -> str:
    raise ZeroDivisionError


@inner.get("/events")
async def events() -> Response:
    response = Response(common.events(request.headers["x-user"]), mimetype="text/event-stream")
    response.timeout = None
    return response


@inner.get("/big")
async def big() -> Response:
    response = Response(common.big())
    response.timeout = None
    return response


@inner.post("/upload")
async def upload() -> dict[str, int]:
    return await common.taken(request.headers["x-user"], aiter(request.body))


@inner.websocket("/ws")
async def echo() -> None:
    await websocket.accept()
    await websocket.send(await websocket.receive())


app = common.guarded(inner)
