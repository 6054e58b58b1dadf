"""Litestar with Headgate around it.

uvicorn examples.litestar_app:app
curl -i http://127.0.0.1:8000/
"""

from typing import Any

from litestar import Litestar, Request, get

from headgate import AsyncLimiter, Rule
from headgate.http.asgi import RateLimitMiddleware


@get("/")
async def home(request: Request[Any, Any, Any]) -> dict[str, Any]:
    # What was decided on this request.
    decision = request.scope["state"]["headgate"].decision
    return {"hello": "world", "remaining": decision.remaining}


@get("/search")
async def search() -> dict[str, list[str]]:
    return {"results": []}


limiter = AsyncLimiter(
    [
        # Each address has 100 requests an hour, and may make 5 searches a minute among them.
        Rule(id="address", quota="100/hour", dimension="ip"),
        Rule(id="search", quota="5/minute", dimension="ip", endpoints=["/search"], message="Five searches a minute."),
    ],
    store="memory://",  # several processes: "redis://localhost:6379/0"
)
app = RateLimitMiddleware(Litestar([home, search]), limiter=limiter)
