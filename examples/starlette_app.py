"""Starlette with Headgate around it.

uvicorn examples.starlette_app:app
curl -i http://127.0.0.1:8000/
"""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from headgate import AsyncLimiter, Rule
from headgate.http.asgi import RateLimitMiddleware


async def home(request: Request) -> JSONResponse:
    # What was decided on this request.
    decision = request.state.headgate.decision
    return JSONResponse({"hello": "world", "remaining": decision.remaining})


async def search(request: Request) -> JSONResponse:
    return JSONResponse({"results": []})


async def health(request: Request) -> JSONResponse:
    return JSONResponse({"status": "fine"})


limiter = AsyncLimiter(
    [
        # Each address has 100 requests an hour, and may make 5 searches a minute among them.
        Rule(id="address", quota="100/hour", dimension="ip"),
        Rule(id="search", quota="5/minute", dimension="ip", endpoints=["/search"], message="Five searches a minute."),
    ],
    store="memory://",  # several processes: "redis://localhost:6379/0"
)

# Around the app, not with `add_middleware`: so that responses to errors carry the headers too.
app = RateLimitMiddleware(
    Starlette(routes=[Route("/", home), Route("/search", search), Route("/health", health)]),
    limiter=limiter,
    skip=["/health"],
)
