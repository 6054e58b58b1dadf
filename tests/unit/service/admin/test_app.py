"""The app as a whole: what becomes of faults, and where there is no database."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import httpx
import pytest
from fastapi import APIRouter

from headgate import AsyncLimiter
from headgate.operations import Operations
from headgate.rules.holder import Holder
from headgate.rules.snapshot import Snapshot
from headgate.service.access import Access
from headgate.service.admin import admin_app
from headgate.service.admin.context import bearer, needs


class Fixed(NamedTuple):
    """Rules that never change."""

    holder: Holder

    def reload(self) -> Snapshot:
        return self.holder.current

    def close(self) -> None:
        pass


def answer(method: str, path: str, *, routers: list[APIRouter] | None = None, **request: Any) -> httpx.Response:
    """What a node without any database answers to whoever has its admin token."""

    async def ask() -> httpx.Response:
        limiter = AsyncLimiter("100/minute")
        operations = Operations(source=Fixed(limiter.holder), limiter=limiter)
        app = admin_app(operations=operations, access=Access(admin_token="root"), routers=routers or ())
        headers = {"Authorization": "Bearer root"}
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://node") as client:
            return await client.request(method, path, headers=headers, **request)

    return asyncio.run(ask())


def test_a_fault_that_nobody_foresaw_tells_callers_nothing(caplog: pytest.LogCaptureFixture) -> None:
    router = APIRouter()

    @router.get("/broken", dependencies=[needs("events")])
    def broken() -> None:
        raise RuntimeError("password=secret")

    told = answer("GET", "/api/v1/broken", routers=[router])
    assert told.status_code == 500
    assert told.headers["content-type"] == "application/problem+json"
    assert "secret" not in told.text
    assert told.json()["id"] in caplog.text
    assert "password=secret" in caplog.text  # in the traceback
    assert told.headers["x-ratelimit-limit"] == "1000"


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/tokens"), ("POST", "/tokens"), ("DELETE", "/tokens/x"), ("GET", "/changes")]
)
def test_without_a_database_what_would_be_in_it_is_not_to_be_had(method: str, path: str) -> None:
    body = {"name": "ci", "scopes": ["check"]} if method == "POST" else None
    told = answer(method, f"/api/v1{path}", json=body)
    assert told.status_code == 409
    assert "has no database" in told.json()["detail"]


def test_rules_that_are_neither_in_a_database_nor_in_a_file_cannot_be_changed() -> None:
    told = answer("PUT", "/api/v1/rules/x", json={"limit": 1, "window": 1})
    assert told.status_code == 409
    assert "not in a database" in told.json()["detail"]


@pytest.mark.parametrize(
    ("field", "token"),
    [
        ("Bearer abc", "abc"),
        ("bearer  abc ", "abc"),
        ("BEARER a b", "a b"),
        ("Bearer", None),
        ("Basic abc", None),
        ("abc", None),
        ("", None),
        (None, None),
    ],
)
def test_tokens_in_the_header(field: str | None, token: str | None) -> None:
    assert bearer(field) == token


def test_a_path_that_several_routes_share_allows_all_of_their_methods() -> None:
    told = answer("PATCH", "/api/v1/rules/search")
    assert told.status_code == 405
    assert told.headers["allow"] == "DELETE, GET, PUT"
    assert "DELETE, GET, PUT" in told.json()["detail"]
    assert answer("PATCH", "/api/v1/rules").headers["allow"] == "GET, POST"
    assert answer("GET", "/api/v1/users:batch").headers["allow"] == "PUT"
