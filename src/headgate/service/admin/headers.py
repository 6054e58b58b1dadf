"""Middleware that adds the caller's limits and security headers to every response, and answers uncaught errors."""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headgate.http.headers import render
from headgate.service.http.problems import MEDIA_TYPE, problem_of

API: Final = "/api/"


class Headers:
    """ASGI middleware of the admin API."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope["state"] = dict(scope.get("state") or {})  # this request's own copy
        started = False

        async def send_with_fields(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = _fields(scope["path"], state, message["headers"])
            await send(message)

        try:
            await self._app(scope, receive, send_with_fields)
        except ClientDisconnect:
            return  # there is no client to answer
        except Exception as error:
            if started:
                raise
            problem = problem_of(error)
            fields = [(name.lower().encode(), value.encode()) for name, value in problem.headers.items()]
            fields.append((b"content-type", MEDIA_TYPE.encode()))
            await send_with_fields({"type": "http.response.start", "status": problem.status, "headers": fields})
            await send({"type": "http.response.body", "body": problem.encode()})


def _fields(path: str, state: dict[str, Any], raw_fields: Any) -> list[tuple[bytes, bytes]]:
    fields = [(bytes(name).lower(), bytes(value)) for name, value in raw_fields]
    there = {name for name, _ in fields}
    more = [
        (b"x-content-type-options", b"nosniff"),
        (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
        (b"x-frame-options", b"DENY"),
        (b"referrer-policy", b"no-referrer"),
    ]
    if path.startswith(API):
        more.append((b"cache-control", b"private, no-cache" if b"etag" in there else b"no-store"))
        decision = state.get("decision")
        if decision is not None:
            more += render(decision)
    return fields + [field for field in more if field[0] not in there]
