"""Calls an ASGI app as a server would."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from headgate.http.asgi import App

Lines = Iterable[tuple[str, str]] | Mapping[str, str]


class Got(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def call(
    app: App,
    method: str,
    target: str,
    body: Any = b"",
    headers: Lines = (),
    *,
    peer: str = "127.0.0.1",
    messages: list[dict[str, Any]] | None = None,
) -> Got:
    """The answer to one request. A body that is not bytes is sent as JSON. `messages` stand for the body's parts."""
    got = asyncio.run(exchange(app, method, target, body, headers, peer=peer, messages=messages))
    assert got is not None, "there was no answer"
    return got


async def exchange(
    app: App,
    method: str,
    target: str,
    body: Any = b"",
    headers: Lines = (),
    *,
    peer: str = "127.0.0.1",
    messages: list[dict[str, Any]] | None = None,
) -> Got | None:
    """The same where there is an event loop; None when there was no answer."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = list(headers.items()) if isinstance(headers, Mapping) else list(headers)
    if raw and not isinstance(body, bytes):
        lines.append(("content-type", "application/json"))
    path, _, query = target.partition("?")
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query.encode(),
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in lines],
        "client": (peer, 4711),
    }
    parts = iter(messages or [{"type": "http.request", "body": raw, "more_body": False}])
    sent: list[Any] = []

    async def receive() -> Any:
        return next(parts)

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    if not sent:
        return None
    start, *rest = sent
    fields = {name.decode(): value.decode("latin-1") for name, value in start["headers"]}
    return Got(start["status"], fields, b"".join(part.get("body", b"") for part in rest))
