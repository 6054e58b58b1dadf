"""Middleware holds slots from entry to the end of the response, whichever end that is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from wsgiref.util import setup_testing_defaults

import flask
import pytest
from fastapi import BackgroundTasks, Depends, FastAPI
from fastapi.responses import StreamingResponse

from headgate import AsyncLimiter, InvalidRule, Limiter, Quota, Rule
from headgate.http.asgi import Message, RateLimitMiddleware, Receive, Scope, Send
from headgate.http.fastapi import install, limit
from headgate.http.flask import Headgate
from headgate.http.wsgi import RateLimitMiddleware as WsgiMiddleware
from headgate.testing import FakeClock
from tests.unit.http.test_asgi import START, Client, scope_of

RULES = [
    Rule(id="slots", quota="1 concurrent ttl 30s", dimension="ip"),
    Rule(id="rate", quota="100/minute", dimension="ip"),
]
PACE = Rule(id="pace", quota=Quota(1, "1s", algorithm="leaky_bucket", burst=5), dimension="ip", action="throttle")
IP = "192.0.2.7"
LAST: Message = {"type": "http.response.body", "body": b"!"}
MORE: Message = {"type": "http.response.body", "body": b"!", "more_body": True}


class Held:
    """An app that goes on when it is told to, and how many slots were free meanwhile."""

    def __init__(self, *, limiter: AsyncLimiter | None = None) -> None:
        self.limiter = limiter or AsyncLimiter(RULES)
        self.entered, self.go_on = asyncio.Event(), asyncio.Event()

    async def free(self) -> int:
        decision = await self.limiter.peek(ip=IP)
        return next(status.remaining for status in decision.limits if status.rule == "slots")

    async def status_of_another(self) -> int:
        client = Client()
        await RateLimitMiddleware(_hello, limiter=self.limiter)(scope_of(), client.receive, client.send)
        return client.status


async def _hello(scope: Scope, receive: Receive, send: Send) -> None:
    await send(START)
    await send(LAST)


def test_a_request_holds_its_slot_to_the_end_of_a_streamed_response() -> None:
    async def main() -> None:
        held = Held()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await send(START)
            await send(MORE)
            held.entered.set()
            await held.go_on.wait()
            await send(LAST)

        client = Client()
        middleware = RateLimitMiddleware(app, limiter=held.limiter)
        task = asyncio.create_task(middleware(scope_of(), client.receive, client.send))
        await held.entered.wait()
        assert (await held.free(), await held.status_of_another()) == (0, 429)
        held.go_on.set()
        await task
        assert (await held.free(), await held.status_of_another()) == (1, 200)
        assert client.headers["ratelimit-policy"] == '"slots";q=1;qu="concurrent-requests", "rate";q=100;w=60'

    asyncio.run(main())


def test_what_runs_after_the_response_holds_no_slot() -> None:
    async def main() -> None:
        held = Held()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await _hello(scope, receive, send)
            held.entered.set()
            await held.go_on.wait()  # a background task

        task = asyncio.create_task(
            RateLimitMiddleware(app, limiter=held.limiter)(scope_of(), Client().receive, Client().send)
        )
        await held.entered.wait()
        assert await held.free() == 1
        held.go_on.set()
        await task

    asyncio.run(main())


@pytest.mark.parametrize("cost", [1, 2])
def test_an_app_that_fails_or_is_cancelled_holds_no_slot(cost: int) -> None:
    async def main() -> None:
        held = Held(limiter=AsyncLimiter([Rule(id="slots", quota="2 concurrent", dimension="ip")]))

        async def failing(scope: Scope, receive: Receive, send: Send) -> None:
            raise ZeroDivisionError

        async def endless(scope: Scope, receive: Receive, send: Send) -> None:
            await send(START)
            held.entered.set()
            await asyncio.sleep(60)

        with pytest.raises(ZeroDivisionError):
            await RateLimitMiddleware(failing, limiter=held.limiter, cost=cost)(
                scope_of(), Client().receive, Client().send
            )
        assert await held.free() == 2
        middleware = RateLimitMiddleware(endless, limiter=held.limiter, cost=cost)
        task = asyncio.create_task(middleware(scope_of(), Client().receive, Client().send))
        await held.entered.wait()
        assert await held.free() == 2 - cost
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert await held.free() == 2

    asyncio.run(main())


def test_a_websocket_holds_its_slot_until_it_is_closed() -> None:
    async def main() -> None:
        held = Held()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await receive()
            await send({"type": "websocket.accept"})
            held.entered.set()
            await receive()

        client = Client({"type": "websocket.connect"})
        task = asyncio.create_task(
            RateLimitMiddleware(app, limiter=held.limiter)(scope_of(type="websocket"), client.receive, client.send)
        )
        await held.entered.wait()
        assert await held.free() == 0
        client.gone.set()
        await task
        assert await held.free() == 1

    asyncio.run(main())


def test_a_long_response_is_held_beyond_the_ttl() -> None:
    async def main() -> None:
        rules = [Rule(id="slots", quota="1 concurrent ttl 600ms", dimension="ip")]
        held = Held(limiter=AsyncLimiter(rules))

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await send(START)
            await asyncio.sleep(1.2)
            held.entered.set()
            await held.go_on.wait()

        task = asyncio.create_task(
            RateLimitMiddleware(app, limiter=held.limiter)(scope_of(), Client().receive, Client().send)
        )
        await held.entered.wait()
        assert await held.free() == 0
        held.go_on.set()
        await task
        await held.limiter.close()

    asyncio.run(main())


def test_middleware_inside_middleware_releases_both_at_the_end() -> None:
    async def main() -> None:
        held = Held()
        inner_limiter = AsyncLimiter([Rule(id="slots", quota="1 concurrent", dimension="ip")], name="inner")
        inner = Held(limiter=inner_limiter)

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            held.entered.set()
            await held.go_on.wait()
            await _hello(scope, receive, send)

        middleware = RateLimitMiddleware(RateLimitMiddleware(app, limiter=inner_limiter), limiter=held.limiter)
        task = asyncio.create_task(middleware(scope_of(), Client().receive, Client().send))
        await held.entered.wait()
        assert (await held.free(), await inner.free()) == (0, 0)
        refused = Client()
        await middleware(scope_of(), refused.receive, refused.send)
        assert refused.status == 429
        held.go_on.set()
        await task
        assert (await held.free(), await inner.free()) == (1, 1)

    asyncio.run(main())


def test_a_request_whose_connection_fails_while_it_is_held_back_holds_no_slot() -> None:
    async def main() -> None:
        held = Held(limiter=AsyncLimiter([*RULES, PACE]))

        async def receive() -> Message:
            raise ConnectionResetError

        middleware = RateLimitMiddleware(_hello, limiter=held.limiter)
        assert await held.status_of_another() == 200  # the next one has to wait for its turn
        with pytest.raises(ConnectionResetError):
            await middleware(scope_of(), receive, Client().send)
        assert await held.free() == 1

    asyncio.run(main())


# FastAPI


async def fetch(app: FastAPI, path: str) -> tuple[int, bytes]:
    client = Client()
    await app(scope_of(path, query_string=b"", http_version="1.1", scheme="http"), client.receive, client.send)
    return client.status, b"".join(message.get("body", b"") for message in client.got[1:])


def test_a_route_of_fastapi_holds_a_slot_to_the_end_of_a_stream() -> None:
    async def main() -> None:
        app = FastAPI()
        entered, go_on = asyncio.Event(), asyncio.Event()

        async def body() -> AsyncIterator[bytes]:
            yield b"a"
            entered.set()
            await go_on.wait()
            yield b"b"

        @app.get("/stream", dependencies=[Depends(limit("1 concurrent; 10/minute"))])
        async def stream() -> StreamingResponse:
            return StreamingResponse(body())

        install(app, limiter=AsyncLimiter([]))
        task = asyncio.create_task(fetch(app, "/stream"))
        await entered.wait()
        assert (await fetch(app, "/stream"))[0] == 429
        go_on.set()
        assert await task == (200, b"ab")
        assert await fetch(app, "/stream") == (200, b"ab")

    asyncio.run(main())


def test_what_runs_after_the_response_holds_no_slot_of_its_route() -> None:
    async def main() -> None:
        app, counting = FastAPI(), AsyncLimiter([])
        install(app, limiter=counting)

        @app.get("/", dependencies=[Depends(limit("1 concurrent ttl 30s"))])
        async def handler(background: BackgroundTasks, again: bool = False) -> str:
            if not again:
                background.add_task(ask_again)
            return "hello"

        statuses: list[int] = []

        async def ask_again() -> None:
            another = Client()
            await app({**scope_of(), "query_string": b"again=1"}, another.receive, another.send)
            statuses.append(another.status)

        client = Client()
        await app({**scope_of(), "query_string": b""}, client.receive, client.send)
        assert [client.status, *statuses] == [200, 200]

    asyncio.run(main())


def test_a_route_that_holds_slots_needs_the_middleware() -> None:
    app = FastAPI()

    @app.get("/", dependencies=[Depends(limit("1 concurrent"))])
    async def view() -> None: ...

    with pytest.raises(InvalidRule, match=r"needs the middleware.*call install"):
        asyncio.run(fetch(app, "/"))


# WSGI


class Wsgi:
    """A call to a WSGI app, step by step as a server takes them."""

    def __init__(self, app: Any, path: str = "/") -> None:
        environ: dict[str, Any] = {"PATH_INFO": path, "REMOTE_ADDR": IP}
        setup_testing_defaults(environ)
        self.status = ""
        self.headers: dict[str, str] = {}
        self.body = app(environ, self._start)
        self.chunks = iter(self.body)

    def _start(self, status: str, headers: list[tuple[str, str]], _: Any = None) -> Callable[[bytes], object]:
        self.status, self.headers = status, dict(headers)
        return lambda _: None

    def close(self) -> None:
        if hasattr(self.body, "close"):
            self.body.close()


def free(limiter: Limiter) -> int:
    return next(status.remaining for status in limiter.peek(ip=IP).limits if status.rule == "slots")


def streaming(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
    start_response("200 OK", [])
    yield b"a"
    yield b"b"


def test_wsgi_holds_a_slot_until_the_body_is_closed() -> None:
    limiter = Limiter(RULES)
    app = WsgiMiddleware(streaming, limiter=limiter)
    call = Wsgi(app)
    assert next(call.chunks) == b"a"
    assert (free(limiter), Wsgi(app).status) == (0, "429 Too Many Requests")
    assert call.headers["RateLimit-Policy"].startswith('"slots";q=1;qu="concurrent-requests"')
    call.close()  # before the end, as when a client has gone
    call.close()
    assert free(limiter) == 1


def test_wsgi_releases_a_slot_that_a_lazy_app_takes_inside() -> None:
    limiter = Limiter(RULES)
    inner = WsgiMiddleware(streaming, limiter=limiter)

    def lazy(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        yield from inner(environ, start_response)

    call = Wsgi(WsgiMiddleware(lazy, limiter=Limiter("100/minute")))
    assert next(call.chunks) == b"a"
    assert free(limiter) == 0
    call.close()
    assert free(limiter) == 1


def test_a_thread_that_is_stopped_while_it_holds_a_request_back_holds_no_slot() -> None:
    class Stopping(FakeClock):
        def sleep(self, seconds: float) -> None:
            raise SystemExit(seconds)

    limiter = Limiter([*RULES, PACE], clock=Stopping())
    app = WsgiMiddleware(streaming, limiter=limiter)
    Wsgi(app).close()
    with pytest.raises(SystemExit):
        Wsgi(app)
    assert free(limiter) == 1


def test_wsgi_closes_the_apps_body_first() -> None:
    limiter = Limiter(RULES)
    seen: list[int] = []

    class Body:
        def __iter__(self) -> Iterator[bytes]:
            return iter([b"a"])

        def close(self) -> None:
            seen.append(free(limiter))
            raise ZeroDivisionError

    def app(environ: dict[str, Any], start_response: Any) -> Body:
        start_response("200 OK", [])
        return Body()

    call = Wsgi(WsgiMiddleware(app, limiter=limiter))
    with pytest.raises(ZeroDivisionError):
        call.close()
    assert (seen, free(limiter)) == ([0], 1)


def test_a_wsgi_app_that_fails_holds_no_slot() -> None:
    limiter = Limiter(RULES)

    def app(environ: dict[str, Any], start_response: Any) -> Any:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Wsgi(WsgiMiddleware(app, limiter=limiter))
    assert free(limiter) == 1


# Flask


def test_a_view_of_flask_holds_a_slot_until_the_body_is_closed() -> None:
    app = flask.Flask("slots")
    headgate = Headgate(app, limiter=Limiter([]))

    @app.get("/seen")
    @headgate.limit("1 concurrent")
    def seen() -> flask.Response:
        return flask.Response(iter([b"a", b"b"]))

    @app.get("/unseen")
    @headgate.exempt
    @headgate.limit("1 concurrent")
    def unseen() -> flask.Response:
        return flask.Response(iter([b"a", b"b"]))

    @app.get("/failing")
    @headgate.limit("1 concurrent")
    def failing() -> str:
        raise ZeroDivisionError

    for path in ("/seen", "/unseen"):
        call = Wsgi(app, path)
        assert (call.status, Wsgi(app, path).status) == ("200 OK", "429 TOO MANY REQUESTS")
        call.close()
        again = Wsgi(app, path)
        assert again.status == "200 OK"
        again.close()
    for _ in range(2):
        failed = Wsgi(app, "/failing")
        assert failed.status == "500 INTERNAL SERVER ERROR"
        failed.close()
