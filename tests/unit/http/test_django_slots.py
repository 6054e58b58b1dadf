"""Django: the middleware and views with limits hold slots until the response is closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.unit.http.test_django import Site, project, route, site

from django.core.handlers.asgi import ASGIHandler  # isort: skip
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse

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
