"""FastAPI with limits on routes, on a router, and on the whole app.

uvicorn examples.fastapi_app:app
curl -i http://127.0.0.1:8000/users/1
open http://127.0.0.1:8000/docs         # each limited route shows its 429
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI, Header, Request, WebSocket

from headgate import AsyncLimiter, Rule
from headgate.http.fastapi import install, limit

limiter = AsyncLimiter(
    [Rule(id="address", quota="100/hour", dimension="ip")],  # for all routes; leave it empty if only routes have limits
    store="memory://",  # several processes: "redis://localhost:6379/0"
)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with limiter:  # gives back its connections at the end
        yield


app = FastAPI(title="Headgate's example", lifespan=lifespan)
install(app, limiter=limiter, skip=["/health"])


# One bucket per client for all users: the route counts, not the path.
@app.get("/users/{user_id}", dependencies=[Depends(limit("5/minute"))])
async def user(user_id: int) -> dict[str, int]:
    return {"user": user_id}


# Counted by what your own function says, and priced by the request.
def organisation(request: Request) -> str | None:
    return request.headers.get("X-Organisation")  # None: by client


def pages(request: Request) -> int:
    return 10 if "full" in request.query_params else 1


@app.get("/export", dependencies=[Depends(limit("20/hour", key=organisation, cost=pages))])
async def export(x_organisation: Annotated[str, Header()] = "") -> dict[str, str]:
    return {"exported for": x_organisation}


# A router's limit holds for each of its routes; with `name`, for all of them together.
reports = APIRouter(prefix="/reports", dependencies=[Depends(limit("10/minute", name="reports"))])


@reports.get("/daily")
@reports.get("/weekly")
def report() -> dict[str, str]:
    return {"report": "nothing new"}


app.include_router(reports)


# Of a WebSocket, handshakes are counted.
@app.websocket("/live", dependencies=[Depends(limit("2/hour sliding_window_log"))])
async def live(socket: WebSocket) -> None:
    await socket.accept()
    await socket.send_text("hello")
    await socket.close()


@app.get("/health")
def health() -> dict[str, str]:
    return {"status": "fine"}
