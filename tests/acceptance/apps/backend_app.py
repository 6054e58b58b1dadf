"""A toy backend behind a proxy: says which path it was asked for, and refuses one by itself."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route


async def echo(request: Request) -> Response:
    path = request.url.path
    return PlainTextResponse(f"reached {path}", status_code=403 if path == "/own-403" else 200)


METHODS = ["GET", "HEAD", "POST", "PUT", "DELETE"]
app = Starlette(routes=[Route("/{path:path}", echo, methods=METHODS)])
