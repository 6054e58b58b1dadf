"""Django: the middleware and views with limits hold slots until the response is closed."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.unit.http.test_django import Site, project, route, site

from django.core.handlers.asgi import ASGIHandler  # isort: skip
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import modify_settings

from headgate import Rule
from headgate.http.django import limit
from tests.unit.http.test_asgi import Client, scope_of
from tests.unit.http.test_slots import Wsgi

RULES = [Rule(id="slots", quota="1 concurrent", dimension="ip")]

__all__ = ["site"]


@pytest.fixture(autouse=True)
def no_routes() -> Iterator[None]:
    yield
    project.urlpatterns.clear()


def stream(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(iter([b"a", b"b"]))


@pytest.mark.parametrize("middleware", [True, False])
def test_under_wsgi_a_slot_is_held_until_the_response_is_closed(middleware: bool) -> None:
    route("stream", stream if middleware else limit("1 concurrent")(stream))
    with Site("wsgi")(middleware=middleware, **({"RULES": RULES} if middleware else {})):
        app = WSGIHandler()

        def call() -> Wsgi:
            def hosted(environ: dict[str, Any], start: Any) -> Any:
                return app({**environ, "HTTP_HOST": "testserver"}, start)

            return Wsgi(hosted, "/stream")

        first = call()
        assert next(first.chunks) == b"a"
        refused = call()
        assert (first.status, refused.status) == ("200 OK", "429 Too Many Requests")
        refused.close()
        first.close()
        again = call()
        assert again.status == "200 OK"
        again.close()


@pytest.mark.parametrize("middleware", [True, False])
def test_a_view_that_fails_holds_no_slot(site: Site, middleware: bool) -> None:
    def failing(request: HttpRequest) -> HttpResponse:
        raise ZeroDivisionError

    route("failing", failing if middleware else limit("1 concurrent")(failing))
    with site(middleware=middleware, **({"RULES": RULES} if middleware else {})):
        assert site.statuses("/failing", "/failing") == [500, 500]


@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize("middleware", [True, False])
def test_under_asgi_a_slot_is_held_until_the_end_or_until_the_client_leaves(middleware: bool, leaves: bool) -> None:
    async def main() -> None:
        entered, go_on = asyncio.Event(), asyncio.Event()

        async def body() -> AsyncIterator[bytes]:
            yield b"a"
            entered.set()
            await go_on.wait()
            yield b"b"

        async def view(request: HttpRequest) -> StreamingHttpResponse:
            return StreamingHttpResponse(body())

        route("stream", view if middleware else limit("1 concurrent")(view))
        with Site("asgi")(middleware=middleware, **({"RULES": RULES} if middleware else {})):
            app = ASGIHandler()
            scope = scope_of("/stream", query_string=b"", headers=[(b"host", b"testserver")])

            async def status() -> int:
                client = Client()
                await app(dict(scope), client.receive, client.send)
                return client.status

            first = Client()
            task = asyncio.create_task(app(dict(scope), first.receive, first.send))
            await entered.wait()
            assert await status() == 429
            (first.gone if leaves else go_on).set()
            await task
            go_on.set()
            assert await status() == 200

    asyncio.run(main())


SCOPE = scope_of("/view", query_string=b"", headers=[(b"host", b"testserver")])


async def status_of(app: ASGIHandler) -> int:
    client = Client()
    await app(dict(SCOPE), client.receive, client.send)
    return client.status


async def is_free(app: ASGIHandler) -> bool:
    """Whether a request finds a slot by and by."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if await status_of(app) == 200:
            return True
        await asyncio.sleep(0.01)
    return False


@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")
@pytest.mark.filterwarnings("ignore:Unclosed file:ResourceWarning")  # the request's body, which Django does not close
@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("chunks", [0, 1])
@pytest.mark.parametrize("middleware", [True, False])
def test_under_asgi_a_stream_that_fails_holds_no_slot(middleware: bool, chunks: int, is_async: bool) -> None:
    fails = True

    def body() -> Iterator[bytes]:
        yield from [b"a"] * chunks
        if fails:
            raise ZeroDivisionError

    async def async_body() -> AsyncIterator[bytes]:
        for chunk in body():
            yield chunk

    def view(request: HttpRequest) -> StreamingHttpResponse:
        return StreamingHttpResponse(async_body() if is_async else body())

    async def main() -> None:
        nonlocal fails
        app, client = ASGIHandler(), Client()
        with pytest.raises(ZeroDivisionError):
            await app(dict(SCOPE), client.receive, client.send)
        fails = False
        assert await is_free(app)
        gc.collect()  # while that warning is ignored

    route("view", view if middleware else limit("1 concurrent")(view))
    with Site("asgi")(middleware=middleware, **({"RULES": RULES} if middleware else {})):
        asyncio.run(main())


def test_under_asgi_a_view_whose_client_left_before_its_own_limit_was_checked_holds_no_slot() -> None:
    entered, go_on, done = threading.Event(), threading.Event(), threading.Event()

    def quota(request: HttpRequest) -> str:
        entered.set()
        go_on.wait(10)
        return "1 concurrent"

    @limit(quota)
    def view(request: HttpRequest) -> HttpResponse:
        done.set()
        return HttpResponse("ok")

    async def main() -> None:
        app, first = ASGIHandler(), Client()
        task = asyncio.create_task(app(dict(SCOPE), first.receive, first.send))
        await asyncio.to_thread(entered.wait)
        first.gone.set()
        await asyncio.sleep(0.05)  # the handler cancels the request meanwhile
        go_on.set()
        await task
        assert await asyncio.to_thread(done.wait, 10)
        assert await is_free(app)

    route("view", view)
    with Site("asgi")(RULES=[Rule(id="rate", quota="1000/minute", dimension="ip")]):
        asyncio.run(main())


def keep_response(get_response: Any) -> Any:
    """A middleware that is cancelled while it has a response."""

    async def middleware(request: HttpRequest) -> HttpResponse:
        response: HttpResponse = await get_response(request)
        if keeps.is_set():
            keeps.clear()
            await asyncio.Event().wait()
        return response

    return middleware


keep_response.sync_capable = False  # type: ignore[attr-defined]
keep_response.async_capable = True  # type: ignore[attr-defined]
keeps = threading.Event()


def test_under_asgi_a_response_that_is_dropped_because_its_client_left_holds_no_slot() -> None:
    async def main() -> None:
        app, first = ASGIHandler(), Client()
        keeps.set()
        task = asyncio.create_task(app(dict(SCOPE), first.receive, first.send))
        while keeps.is_set():
            assert not task.done()
            await asyncio.sleep(0.001)
        assert await status_of(app) == 429
        first.gone.set()
        await task
        assert await is_free(app)

    async def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse("ok")

    route("view", view)
    outer = f"{__name__}.keep_response"
    with Site("asgi")(RULES=RULES), modify_settings(MIDDLEWARE={"prepend": outer}):
        asyncio.run(main())
