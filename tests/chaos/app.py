"""An ASGI application behind the middleware, for a case that starts uvicorn with it. It tells how it was decided."""

from __future__ import annotations

import os
from typing import Any

from headgate import AsyncLimiter, Quota, Rule
from headgate.http.asgi import RateLimitMiddleware

STORE, LIMIT, WINDOW = "HEADGATE_CHAOS_STORE", "HEADGATE_CHAOS_LIMIT", "HEADGATE_CHAOS_WINDOW"


async def inner(scope: Any, receive: Any, send: Any) -> None:
    reason = scope["state"]["headgate"].decision.reason.encode()
    headers = [(b"content-length", b"0"), (b"x-reason", reason)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def make() -> RateLimitMiddleware:
    quota = Quota(int(os.environ[LIMIT]), int(os.environ[WINDOW]), algorithm="fixed_window")
    rules = [Rule(id="all", quota=quota, dimension="global")]
    return RateLimitMiddleware(inner, limiter=AsyncLimiter(rules, store=os.environ[STORE]))
