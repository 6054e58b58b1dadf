"""An API with customers, plans and a shared Redis: what a small product needs on its first day.

docker compose --file examples/saas/compose.yaml up       # the API on 8000, Valkey behind it
python -m examples.saas.token alice pro                   # a token for a customer
curl -H "Authorization: Bearer $TOKEN" http://127.0.0.1:8000/search?q=canal

The user and the plan come from a verified token, and the limits from `rules.toml`, which you can edit while it runs.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI, HTTPException, Request

from examples.saas.settings import SECRET, STORE
from headgate import AsyncLimiter
from headgate.http.fastapi import install
from headgate.http.identity import JWT, Identity

limiter = AsyncLimiter(
    rules=Path(__file__).with_name("rules.toml"),
    store=STORE,
    watch=True,  # an edited rules.toml takes effect within a second, and an invalid one never
)
identity = Identity(
    jwt=JWT(algorithms=["HS256"], key=SECRET, audience="saas", tenant_claim="company", tier_claim="plan"),
)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with limiter:
        yield


app = FastAPI(title="Canal search", lifespan=lifespan)
install(app, limiter=limiter, identity=identity, skip=["/health"])


@app.get("/search")
async def search(request: Request, q: str) -> dict[str, object]:
    require_customer(request)
    return {"query": q, "results": [f"{q} of Panama", f"{q} du Midi"]}


@app.post("/exports")
async def export(request: Request) -> dict[str, str]:
    require_customer(request)
    return {"export": "started"}


@app.get("/health")
async def health() -> dict[str, bool]:
    return {"ok": True}


def require_customer(request: Request) -> None:
    """Refuse visitors without a good token. The limiter has counted them by their address by then."""
    if "user" not in request.state.headgate.facts:
        raise HTTPException(401, "Send a token: Authorization: Bearer …")
