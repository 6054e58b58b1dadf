"""Who may call which of the admin's routes: every one of them, with every kind of token that is not good enough."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI, routing
from fastapi.responses import JSONResponse

from headgate.operations.caller import ROLES, SCOPES, Role, Scope
from headgate.service.admin.context import Needs, needs
from headgate.service.auth_failures import TokenGuessLimiter
from tests.acceptance.admin import Served, served

OPEN = {
    ("GET", "/"),
    ("GET", "/docs"),
    ("GET", "/openapi.json"),
}  # to anybody, as CONTRACT says; the first leads to the second
SEVERAL = {"/api/v1/changes", "/api/v1/changes/{change_id}/revert"}  # take one of several scopes


def more_routes() -> APIRouter:
    """A router as others may add."""
    router = APIRouter()

    @router.get("/things", dependencies=[needs("events")])
    def things() -> JSONResponse:
        return JSONResponse({})

    return router


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory: Path = tmp_path_factory.mktemp("admin")
    with served(f"sqlite:///{directory}/node.db", routers=[more_routes()]) as running:
        yield running


def routes_of(app: FastAPI) -> list[tuple[str, str, Needs | None]]:
    """Every route that the app really has, and what it needs of callers."""
    contexts: Any = getattr(routing, "iter_route_contexts", iter)
    found = []
    for route in contexts(app.routes):
        if not isinstance(getattr(route, "original_route", route), routing.APIRoute):
            continue
        needed = [one.dependency for one in route.dependencies if isinstance(one.dependency, Needs)]
        for method in route.methods:
            found.append((method, route.path_format, needed[0] if needed else None))
    return found


def answer_of(node: Served, method: str, path: str, authorization: str | None) -> int:
    """The status of a request. Failed attempts of earlier ones are forgiven: there are limits on those too."""
    state = node.app.state
    state.headgate = replace(state.headgate, guess_limiter=TokenGuessLimiter("admin-failures"))
    headers = {} if authorization is None else {"Authorization": authorization}
    url = path.replace("{rule_id}", "x").replace("{user_id}", "x").replace("{token_id}", "x")
    with node.client(None) as client:
        answer = client.request(method, url, headers=headers)
    if answer.status_code in (401, 403):
        assert answer.headers["content-type"] == "application/problem+json"
        assert (answer.headers.get("www-authenticate") == "Bearer") == (answer.status_code == 401)
    return answer.status_code


def bearer(token: str) -> str:
    return f"Bearer {token}"


def test_every_route_says_what_it_needs(node: Served) -> None:
    routes = routes_of(node.app)
    guarded = {(method, path) for method, path, needed in routes if needed is not None or path in SEVERAL}
    assert guarded == {(method, path) for method, path, _ in routes} - OPEN
    assert len(guarded) == 25
    assert all(path.startswith("/api/v1/") for _, path in guarded)


def test_without_a_good_token_every_route_is_closed(node: Served) -> None:
    revoked = node.token("revoked", "admin", SCOPES)
    (token_id,) = [one["id"] for one in node.http.get("/api/v1/tokens").json()["tokens"] if one["name"] == "revoked"]
    node.http.delete(f"/api/v1/tokens/{token_id}")
    tokens = {
        "none": None,
        "of another scheme": "Basic Ym9vdHN0cmFwLXRva2Vu",
        "empty": "Bearer",
        "wrong": bearer("nobody"),
        "made up": bearer("hg_" + "x" * 43),
        "almost the bootstrap token": bearer("bootstrap-toke"),
        "expired": bearer(node.expired_token("expired", "admin", SCOPES)),
        "revoked": bearer(revoked),
    }
    for method, path, _ in routes_of(node.app):
        if (method, path) not in OPEN:
            for kind, authorization in tokens.items():
                assert answer_of(node, method, path, authorization) == 401, (method, path, kind)


def test_every_route_wants_its_scope_and_its_role(node: Served) -> None:
    made: dict[tuple[Role, tuple[Scope, ...]], str] = {}

    def token(role: Role, scopes: tuple[Scope, ...]) -> str:
        if (role, scopes) not in made:
            made[role, scopes] = bearer(node.token(f"t{len(made)}", role, scopes))
        return made[role, scopes]

    for method, path, needed in routes_of(node.app):
        if (method, path) in OPEN:
            continue
        if needed is None:
            assert answer_of(node, method, path, token("admin", ("check", "events"))) == 403, (method, path)
            continue
        others = tuple(scope for scope in SCOPES if scope != needed.scope)
        assert answer_of(node, method, path, token("admin", others)) == 403, (method, path)
        for role in ROLES[: ROLES.index(needed.role)]:
            assert answer_of(node, method, path, token(role, SCOPES)) == 403, (method, path, role)
        enough = answer_of(node, method, path, token(needed.role, (needed.scope,)))
        assert enough not in (401, 403, 405, 429, 500), (method, path)


def test_a_body_is_not_read_before_the_token(node: Served) -> None:
    with node.client("hg_" + "y" * 43) as client:
        answer = client.post("/api/v1/rules", content=b"x" * 2_000_000, headers={"Content-Type": "text/plain"})
    assert answer.status_code == 401


def test_what_is_open(node: Served) -> None:
    with node.client(None) as client:
        assert client.get("/").headers["Location"] == "/docs"
        page = client.get("/docs")
        policy = page.headers["Content-Security-Policy"]
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy.split("script-src")[1].split(";")[0]
        inline = re.search("<script>(.*?)</script>", page.text, re.DOTALL)
        assert inline is not None
        assert f"'sha256-{b64encode(sha256(inline[1].encode()).digest()).decode()}'" in policy
        assert page.headers["X-Frame-Options"] == "DENY"
        assert page.status_code == 200
        assert "http://" not in page.text.replace("http://www.w3.org", "")
        assert "https://" not in page.text
        for name in ("swagger-ui-bundle.js", "swagger-ui.css", "favicon-32x32.png"):
            assert f"/docs/assets/{name}" in page.text
            assert client.get(f"/docs/assets/{name}").status_code == 200
        assert client.get("/openapi.json").json()["openapi"] == "3.0.3"
