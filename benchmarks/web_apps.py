"""The apps that the section `web` puts under load: one route that says hello, and one limiter before it, or none.

HEADGATE_BENCH_APP says which, `starlette/headgate` for example, and HEADGATE_BENCH_STORE where it counts. All limiters
limit clients by IP address, to the same figure, which nobody reaches, and tell in the same X-RateLimit headers what is
left. Each is put to work in the way that its documentation shows.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

APP, STORE = "HEADGATE_BENCH_APP", "HEADGATE_BENCH_STORE"
LIMIT = 1_000_000_000
QUOTA = f"{LIMIT}/month"
HELLO = "Hello, world!"


def starlette(middleware: list[Any], *, decorate: Callable[[Any], Any] | None = None) -> Any:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    async def hello(request: Request) -> PlainTextResponse:  # noqa: ARG001 - slowapi's decorator insists on it
        return PlainTextResponse(HELLO)

    endpoint = hello if decorate is None else decorate(hello)
    return Starlette(routes=[Route("/", endpoint)], middleware=middleware)


def starlette_bare() -> Any:
    return starlette([])


def starlette_headgate(quota: str = QUOTA) -> Any:
    from starlette.middleware import Middleware

    from headgate import AsyncLimiter
    from headgate.http.asgi import RateLimitMiddleware

    limiter = AsyncLimiter(quota, store=our_store())
    return starlette([Middleware(RateLimitMiddleware, limiter=limiter)])


def starlette_rules() -> Any:
    """Limited by three rules: each client, each client on each path, and all clients together."""
    from starlette.middleware import Middleware

    from headgate import AsyncLimiter, Rule
    from headgate.http.asgi import RateLimitMiddleware

    dimensions = ("ip", "ip+endpoint", "global")
    rules = [Rule(id=name, quota=f"{QUOTA} fixed_window", dimension=name) for name in dimensions]
    return starlette([Middleware(RateLimitMiddleware, limiter=AsyncLimiter(rules, store=our_store()))])


def starlette_slowapi(way: str) -> Any:
    from slowapi import Limiter
    from slowapi.middleware import SlowAPIASGIMiddleware, SlowAPIMiddleware
    from slowapi.util import get_remote_address
    from starlette.middleware import Middleware

    by_route = way == "decorator"
    limiter = Limiter(
        key_func=get_remote_address,
        default_limits=[] if by_route else [QUOTA],
        headers_enabled=True,
        storage_uri=os.environ[STORE],
    )
    if by_route:
        app = starlette([], decorate=limiter.limit(QUOTA))
    else:
        app = starlette([Middleware(SlowAPIMiddleware if way == "middleware" else SlowAPIASGIMiddleware)])
    app.state.limiter = limiter
    return app


def flask() -> Any:
    from flask import Flask

    app = Flask("benchmarks")
    app.add_url_rule("/", "hello", lambda: HELLO)
    return app


def flask_headgate(quota: str = QUOTA) -> Any:
    from headgate import Limiter
    from headgate.http.wsgi import RateLimitMiddleware

    app = flask()
    app.wsgi_app = RateLimitMiddleware(app.wsgi_app, limiter=Limiter(quota, store=our_store()))
    return app


def flask_limiter() -> Any:
    from flask_limiter import Limiter
    from flask_limiter.util import get_remote_address

    app = flask()
    Limiter(get_remote_address, app=app, default_limits=[QUOTA], headers_enabled=True, storage_uri=os.environ[STORE])
    return app


def our_store() -> str:
    """As in the other sections, a busy machine makes no check fail fast."""
    url = os.environ[STORE]
    return f"{url}?timeout=5" if url.startswith("redis") else url


APPS: dict[str, Callable[[], Any]] = {
    "starlette": starlette_bare,
    "starlette/headgate": lambda: starlette_headgate(f"{QUOTA} fixed_window"),
    "starlette/headgate-default": starlette_headgate,
    "starlette/headgate-rules": starlette_rules,
    "starlette/slowapi-middleware": lambda: starlette_slowapi("middleware"),
    "starlette/slowapi-asgi": lambda: starlette_slowapi("asgi"),
    "starlette/slowapi-decorator": lambda: starlette_slowapi("decorator"),
    "flask": flask,
    "flask/headgate": lambda: flask_headgate(f"{QUOTA} fixed_window"),
    "flask/headgate-default": flask_headgate,
    "flask/flask-limiter": flask_limiter,
}

app = APPS[os.environ[APP]]() if APP in os.environ else None
