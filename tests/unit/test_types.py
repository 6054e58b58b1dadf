"""What type checkers make of users' code: mypy --strict reads it in `make check`, strict pyright in `make test-all`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_type

import pytest

if TYPE_CHECKING:
    from uuid import UUID

    import flask
    from django.http import HttpRequest
    from fastapi import Depends, FastAPI
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse

    from headgate import AsyncLimiter, Decision, Limiter, Quota, Slot
    from headgate.http import django, fastapi, starlette
    from headgate.http.flask import Headgate, current_limits
    from headgate.http.limits import Limits

    limiter, async_limiter = Limiter("5/minute"), AsyncLimiter("5/minute")

    @limiter.limit("5/minute")
    def add(one: int, other: int) -> int:
        return one + other

    assert_type(add(1, other=2), int)
    add("1", 2)  # type: ignore[arg-type]

    @limiter.limit("5/minute", key=lambda user: user)
    async def greet(user: str) -> str:
        return user

    greeting: Coroutine[Any, Any, str] = greet("alice")

    @limiter.limit("5/minute", key=lambda tenant, user: f"{tenant}/{user}")
    def greet_in(tenant: str, user: str) -> str:
        return tenant + user

    def by_name(*, name: str) -> str:
        return name

    limiter.limit("5/minute", key=by_name)
    limiter.limit("5/minute", key=lambda: "all")
    limiter.limit("5/minute", key=lambda user: [user])  # type: ignore[arg-type]

    @async_limiter.limit("5/minute")
    async def fetch(url: str) -> bytes:
        return url.encode()

    fetched: Coroutine[Any, Any, bytes] = fetch("x")

    @async_limiter.limit("5/minute")  # type: ignore[type-var]
    def not_async() -> None: ...

    Quota(5, "1m", algorithm="gcra")
    Quota(5, "1m", algorithm="gcar")  # type: ignore[arg-type]
    assert_type(limiter.check(UUID(int=1)), Decision)
    assert_type(limiter.check(1, cost={"tokens": 5}), Decision)
    limiter.check(1.5)  # type: ignore[arg-type]
    Limiter("5/minute", failure_mode="opne")  # type: ignore[arg-type]

    async def decide() -> None:
        assert_type(await async_limiter.check("alice"), Decision)
        await async_limiter.reset_all()
        with limiter.acquire("alice") as slot:
            assert_type(slot, Slot)

    def by_plan(request: Request) -> str | None:
        return request.headers.get("x-quota")

    async def who(request: Request) -> int:
        return len(request.url.path)

    api = FastAPI(
        dependencies=[
            Depends(fastapi.limit(by_plan, key=who, deduct_when=lambda response: response.status_code == 200))
        ]
    )
    fastapi.install(api, limiter=async_limiter, headers="ietf", defaults="5/minute", messages="5/second")
    fastapi.install(api, limiter=async_limiter, headers="non")  # type: ignore[arg-type]
    fastapi.limit("5/minute", costs=5)  # type: ignore[call-arg]

    @api.get("/")
    @fastapi.limit("5/minute")
    def read(number: int) -> int:
        return number

    assert_type(read(1), int)

    @starlette.limit("5/minute")
    async def endpoint(request: Request) -> PlainTextResponse:
        assert_type(starlette.limits_of(request), Limits[AsyncLimiter])
        assert_type(fastapi.limits_of(request).decision, Decision)
        return PlainTextResponse("")

    headgate = Headgate(flask.Flask(""), limiter=limiter)

    @headgate.limit("5/minute", methods=["POST"])
    def view(number: int) -> str:
        assert_type(current_limits(), Limits[Limiter])
        return str(number)

    assert_type(view(1), str)

    @django.limit(lambda request: "5/minute" if request.GET else None)
    def django_view(request: HttpRequest) -> str:
        return str(django.limits_of(request).decision.remaining)

    headgate.limit("5/minute", key=lambda: "all", exempt_when=lambda: False)
    django.limit("5/minute", key=lambda request: request.user.pk, cost=lambda request: len(request.body))


@pytest.mark.extended
def test_strict_pyright_agrees_with_mypy(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    config = {
        "include": [__file__],
        "extraPaths": [str(root / "src")],
        "typeCheckingMode": "strict",
        "pythonVersion": "3.11",
        "enableTypeIgnoreComments": True,
        "reportMissingTypeStubs": False,  # Django has none of its own
    }
    project = tmp_path / "pyrightconfig.json"
    project.write_text(json.dumps(config))
    command = [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, "--project", str(project)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.startswith("0 errors, 0 warnings"), ended.stdout
