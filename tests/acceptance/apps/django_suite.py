"""The same in Django, for both of its worlds: `wsgi` and `asgi`."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.handlers.asgi import ASGIRequest
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.urls import path

from headgate.http.django import limit
from tests.acceptance.apps.rules import CHUNK, MANY, MAX_WAITING, RULES, SKIP, STORE, Closing, chunks_until

settings.configure(
    ROOT_URLCONF=__name__,
    SECRET_KEY=secrets.token_hex(),
    ALLOWED_HOSTS=["127.0.0.1"],
    LOGGING_CONFIG=None,
    MIDDLEWARE=["headgate.http.django.RateLimitMiddleware", f"{__name__}.process"],
    HEADGATE={"RULES": RULES, "STORE": STORE, "SKIP": SKIP, "MAX_WAITING": MAX_WAITING},
)


class process:  # noqa: N801 - a middleware of Django's is often a function
    sync_capable = True
    async_capable = False  # so that Django changes worlds in between

    def __init__(self, get_response: Any) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> Any:
        response = self._get_response(request)
        response.headers["X-Process"] = str(os.getpid())
        return response


def stream(request: HttpRequest) -> StreamingHttpResponse:
    asynchronous = isinstance(request, ASGIRequest)
    body = _chunks_until_async if asynchronous else chunks_until
    return StreamingHttpResponse(body(request.GET["file"]))


async def _chunks_until_async(file: str) -> AsyncIterator[bytes]:
    yield b"first\n"
    deadline = time.monotonic() + 20
    while not Path(file).exists() and time.monotonic() < deadline:  # noqa: ASYNC110, ASYNC240 - a test's file
        await asyncio.sleep(0.01)
    yield b"second\n" if Path(file).exists() else b"late\n"  # noqa: ASYNC240


def closing(request: HttpRequest) -> StreamingHttpResponse:
    if isinstance(request, ASGIRequest):
        response = StreamingHttpResponse(_some())
        response._resource_closers.append(Closing(request.GET["file"]).close)
        return response
    return StreamingHttpResponse(Closing(request.GET["file"]))


async def _some() -> AsyncIterator[bytes]:
    yield b"some"
    yield b"thing"


def large(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(_large_async() if isinstance(request, ASGIRequest) else _large())


def _large() -> Iterator[bytes]:
    return (CHUNK for _ in range(MANY))


async def _large_async() -> AsyncIterator[bytes]:
    for _ in range(MANY):
        yield CHUNK


def boom(request: HttpRequest) -> HttpResponse:
    raise RuntimeError("boom")


def view(request: HttpRequest) -> HttpResponse:
    return HttpResponse(f"view {request.path[1:]}")


@limit("2/hour sliding_window_log")
def limited(request: HttpRequest, number: int) -> HttpResponse:
    return HttpResponse(f"view {number}")


@limit("2/hour sliding_window_log")
async def limited_async(request: HttpRequest, number: int) -> HttpResponse:
    return HttpResponse(f"view {number}")


def guarded(request: HttpRequest, **_: str) -> HttpResponse:
    return HttpResponse("view guarded")


urlpatterns = [
    path("stream", stream),
    path("closing", closing),
    path("large", large),
    path("boom", boom),
    *(path(name, view) for name in ("ok", "few", "shared", "closed", "slow", "crowd", "health")),
    path("limited/<int:number>", limited),
    path("limited-async/<int:number>", limited_async),
    path("exact", guarded),
    path("café", guarded),
    path("items/<str:number>", guarded),
    path("guarded/<path:rest>", guarded),
]
wsgi = get_wsgi_application()
asgi = get_asgi_application()
